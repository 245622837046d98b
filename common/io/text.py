"""Texts that came from somebody else, made fit for a terminal, a log and a record."""

LONGEST = 300  # characters


def single_line(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line that cannot play tricks on a terminal or a log."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return line if len(line) <= longest else f"{line[:longest]} ..."


def printable(text: str) -> str:
    """Return a text that any file can hold: no control characters, no lone surrogates."""
    return "".join(
        sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text
    )
