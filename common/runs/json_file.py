"""JSON files of a run directory: plain values, written in one piece.

Undefined numbers are null. The files never contain NaN.
"""

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import FedError
from common.io.files import atomic_write


class RecordError(FedError):
    """A file of a run cannot be written or read. The message names the file and the line."""


def json_values(value: Any, where: str) -> Any:
    """Return a value in the types of JSON: numpy becomes Python, non-finite becomes None.

    Args:
        value: scalars, strings, None, numpy scalars and arrays, also nested in dicts, lists and
            dataclasses.
        where: the place of the value in the record, for the error message.

    Raises:
        RecordError: a part has another type.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(part, f"{where}.{key}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(part, f"{where}[{index}]") for index, part in enumerate(value)]
    raise RecordError(
        f"{where} is a {type(value).__name__}, which a record cannot hold; "
        "give numbers, bools, strings, or lists and dicts of them"
    )


def write_json(path: Path, value: Any, *, indent: int) -> None:
    """Write a value as a JSON file, in one piece or not at all.

    Args:
        path: the file.
        value: see `json_values`.
        indent: spaces per level.

    Raises:
        RecordError: the value has no JSON form, or the file cannot be written.
    """
    text = json.dumps(json_values(value, path.stem), allow_nan=False, indent=indent) + "\n"
    write_file(path, text.encode())


def write_file(path: Path, data: bytes) -> None:
    """Write bytes in one piece or not at all.

    Raises:
        RecordError: the file cannot be written.
    """
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error
