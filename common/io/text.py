"""Text from other machines, made safe for a terminal, a log and a record."""

import logging
from collections.abc import Iterable

LONGEST = 300  # characters
LONGEST_LINE = 1000  # characters of a log line, which may quote several texts
NAMES_SHOWN = 5


def single_line(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line of printable characters, cut after `longest` characters."""
    line = "".join(sign if sign.isprintable() else " " for sign in text[: longest + 1])
    return line if len(line) <= longest else f"{line[:longest]} ..."


def name_list(names: Iterable[str]) -> str:
    """Return the first five names, each as a single line, and the number of the others."""
    known = list(names)
    shown = ", ".join(single_line(name, 60) for name in known[:NAMES_SHOWN])
    more = len(known) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def printable(text: str) -> str:
    """Return a text that any file can hold: no control characters, no lone surrogates."""
    return "".join(
        sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text
    )


class SingleLineFilter(logging.Filter):
    """Makes each record of a logger one printable line, followed by an indented traceback.

    Without it, a client's text that holds a line break could forge a line of the log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the message and the traceback of a record. Return True: every record is kept."""
        record.msg, record.args = single_line(record.getMessage(), LONGEST_LINE), None
        if record.exc_info and not record.exc_text:
            lines = logging.Formatter().formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(f"    {single_line(line, LONGEST_LINE)}" for line in lines)
        return True


def log_single_lines(logger: logging.Logger) -> None:
    """Add a `SingleLineFilter` to a logger that has none."""
    if not any(isinstance(one, SingleLineFilter) for one in logger.filters):
        logger.addFilter(SingleLineFilter())
