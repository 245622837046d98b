"""What one run breaks is told in its place, and the report of all the others stays."""

import logging
from collections.abc import Callable
from typing import TypeVar

from common.errors import FedError

logger = logging.getLogger("fedkeel")
T = TypeVar("T")

LONGEST = 200  # signs of a reason


def with_fallback(
    name: str,
    make: Callable[[], T],
    instead: Callable[[str], T],
    passing: tuple[type[Exception], ...] = (),
) -> T:
    """Return what `make` makes, or what stands in its place where it fails; the log tells it too.

    Args:
        name: of the part of the report, for the sentence "NAME cannot be drawn: reason".
        make: makes that part of what lies in runs; whatever it raises is told.
        instead: makes the part of that sentence.
        passing: errors that are not the runs' and go on to the caller.
    """
    try:
        return make()
    except passing:
        raise
    except Exception as error:
        kind = "" if isinstance(error, FedError) else f"{type(error).__name__}: "
        sentence = f"{name} cannot be drawn: {kind}{error!s:.{LONGEST}}"
        logger.warning("%s", sentence)
        return instead(sentence)
