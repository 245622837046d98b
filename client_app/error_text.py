"""What a client tells the server about an error. The full text stays in the client's own log.

Exceptions of libraries quote whatever they worked on, for example the path of an image that names a
patient. So the server gets the type of such an exception and a sentence of ours.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from common.errors import DataError, FedError

LOCATION = "[a path on the client]"
# From the slash that begins a path to the words that our errors place after one.
PATH = re.compile(
    r"(?<![\w.:/])/(?:.*/)?.*?(?= (?:is|are|has|have|cannot|was|holds|hold) |[:;\"]|, expected|$)"
)
SEE_LOG = "the client's own log has the details"


def error_text(error: Exception, node_config: Mapping[str, Any]) -> str:
    """Return the text about an error that the server may read.

    Args:
        error: an error of ours, or any other exception.
        node_config: the config that the node was started with. A node on a machine of its own has
            the keys "watchdog" or "data", a simulated one has neither.
    """
    if isinstance(error, OSError) and error.errno is not None:  # without the name of the file
        return f"{type(error).__name__} ({os.strerror(error.errno)}); {SEE_LOG}"
    if not isinstance(error, FedError):
        return f"{type(error).__name__}; {SEE_LOG}"
    text = str(error)
    if isinstance(error, DataError):  # further lines name files
        text = text.partition("\n")[0]
    is_remote = "watchdog" in node_config or "data" in node_config
    return without_paths(text) if is_remote else text


def without_paths(text: str) -> str:
    """Return a text with each absolute path replaced, line by line."""
    return "\n".join(PATH.sub(LOCATION, line) for line in text.split("\n"))
