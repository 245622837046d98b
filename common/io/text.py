"""Texts that came from somebody else, made fit for a terminal, a log and a record."""

LONGEST = 300  # characters


def single_line(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line that cannot play tricks on a terminal or a log."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return line if len(line) <= longest else f"{line[:longest]} ..."
