"""An error in one part of a report leaves the other parts as they are."""

import logging
from collections.abc import Callable
from typing import TypeVar

from common.errors import FedError

logger = logging.getLogger("fedkeel")
T = TypeVar("T")

LONGEST = 200  # characters of an error message


def with_fallback(
    name: str,
    make: Callable[[], T],
    fallback: Callable[[str], T],
    reraise: tuple[type[Exception], ...] = (),
) -> T:
    """Return the result of `make`, or of `fallback` if `make` raises. The error is also logged.

    Args:
        name: of the part of the report, for the message "NAME cannot be drawn: reason".
        make: returns the part.
        fallback: returns the replacement for that message.
        reraise: errors that are passed on to the caller.
    """
    try:
        return make()
    except reraise:
        raise
    except Exception as error:
        kind = "" if isinstance(error, FedError) else f"{type(error).__name__}: "
        message = f"{name} cannot be drawn: {kind}{error!s:.{LONGEST}}"
        logger.warning("%s", message)
        return fallback(message)
