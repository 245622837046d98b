"""`partition.json`: the classes of the training samples of each client."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from common.data.facts import DataFacts
from common.io.files import atomic_write
from common.io.typed_json import Int64, JsonTypeError, from_json
from common.types import ClientId

PARTITION = "partition.json"


@dataclass(frozen=True)
class ClassCounts:
    """The number of training samples of each client by class.

    Attributes:
        classes: names of the classes [C].
        clients: counts [C] by client.
        data: the data set, None in files of older versions.
    """

    classes: list[str]
    clients: dict[ClientId, list[Int64]]
    data: DataFacts | None = None


def write_class_counts(run_dir: Path, counts: ClassCounts) -> None:
    """Write `partition.json` in one piece or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(run_dir / PARTITION) as file:
        file.write(json.dumps(asdict(counts)).encode() + b"\n")


def read_class_counts(run_dir: Path) -> ClassCounts | None:
    """Return the counts of a run, None if the file is missing or damaged."""
    try:
        read = from_json(ClassCounts, json.loads((run_dir / PARTITION).read_bytes()))
    except (OSError, ValueError, RecursionError, JsonTypeError):
        return None
    rows = read.clients.values()
    fits = {len(counts) for counts in rows} <= {len(read.classes)}
    return read if fits and read.classes and all(n >= 0 for row in rows for n in row) else None
