"""Text from other machines, made safe for a terminal, a log and a record."""

LONGEST = 300  # characters


def single_line(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line of printable characters, cut after `longest` characters."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return line if len(line) <= longest else f"{line[:longest]} ..."


def printable(text: str) -> str:
    """Return a text that any file can hold: no control characters, no lone surrogates."""
    return "".join(
        sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text
    )
