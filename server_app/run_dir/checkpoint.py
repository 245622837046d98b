"""Checkpoints: a ServerState in a file, without pickles.

A file is an uncompressed .npz with a JSON description of the state's dataclasses, and the arrays
that the description points to. The server writes a temporary file and renames it, so a crash keeps
the previous checkpoint. The CRC or the description shows a torn or foreign file.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from common.client_vectors import ClientVectors, Entry
from common.errors import CheckpointError
from common.io.files import atomic_write
from common.layout import Layout
from common.methods import Method
from common.types import Vector
from server_app.run_dir.memory_mapped import MemoryMapError
from server_app.state.server_state import ServerState

# 2: FedPCD's and FedFV's products are in the order of `rates`, which 1 had sorted as `seen` is.
FORMAT, READABLE = 2, (1, 2)
PATTERN = "round-*.ckpt"
DISCARDED = "discarded"  # folder of the checkpoints that a rewind put aside


def save(folder: Path, state: ServerState[Any], *, fingerprint: str, keep: int) -> Path:
    """Write the state as `round-NNNNNN.ckpt` and delete all but the newest `keep` checkpoints.

    Args:
        folder: the directory of the checkpoints, created if it is missing.
        state: the state to write.
        fingerprint: digest of the run config. Only a run with the same digest can resume.
        keep: number of checkpoints to keep.

    Raises:
        CheckpointError: the state has a value of an unknown type, or the write failed.
    """
    arrays: dict[str, NDArray[Any]] = {}
    tree = _describe(state, arrays)
    head = json.dumps(
        {"format": FORMAT, "fingerprint": fingerprint, "round": state.round, "state": tree}
    )
    path = folder / f"round-{state.round:06d}.ckpt"
    packed = np.frombuffer(head.encode(), np.uint8)
    try:
        with atomic_write(path) as file:
            np.savez(file, allow_pickle=False, head=packed, **arrays)
        for old in sorted(folder.glob(PATTERN))[:-keep]:
            old.unlink()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    return path


def rewind(folder: Path, round: int) -> None:  # noqa: A002
    """Make the checkpoint of this round the newest one. Later ones move to `discarded/`.

    Args:
        folder: the directory of the checkpoints.
        round: number of the round.

    Raises:
        CheckpointError: there is no checkpoint of this round. The message lists those there are.
    """
    rounds = {int(path.stem.removeprefix("round-")): path for path in folder.glob(PATTERN)}
    if round not in rounds:
        listed = ", ".join(map(str, sorted(rounds))) or "none"
        raise CheckpointError(f"{folder} has no checkpoint of round {round}; there are: {listed}")
    for number, path in rounds.items():
        if number > round:
            (folder / DISCARDED).mkdir(exist_ok=True)
            path.replace(folder / DISCARDED / path.name)


@dataclass(frozen=True)
class Head:
    """The round and the config fingerprint of a checkpoint."""

    round: int
    fingerprint: str


def newest_head(folder: Path) -> tuple[Head | None, list[str]]:
    """Return the head of the newest readable checkpoint, and a warning for each torn one."""
    warnings: list[str] = []
    for path in sorted(folder.glob(PATTERN), reverse=True):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                said = json.loads(bytes(arrays["head"]))
            return Head(int(said["round"]), str(said["fingerprint"])), warnings
        except Exception as error:  # reading a damaged archive raises many types of errors
            warnings.append(_unreadable(path, error))
    return None, warnings


def _unreadable(path: Path, error: Exception) -> str:
    return f"{path} cannot be read ({error}); going back to the one before it"


def load_newest(
    folder: Path,
    method: Method[Any],
    layout: Layout,
    *,
    fingerprint: str,
    put: Callable[[Vector], Vector] | None = None,
) -> tuple[ServerState[Any] | None, list[str]]:
    """Return the newest checkpoint that can be read, and a warning for each that cannot.

    Args:
        folder: the directory of the checkpoints.
        method: the method with its settings.
        layout: layout of the model.
        fingerprint: digest of the run config.
        put: returns an equal vector that replaces a client's vector.

    Raises:
        CheckpointError: a readable checkpoint belongs to another run config or another model, or
            `put` raised it.
    """
    warnings: list[str] = []
    put = put or (lambda vector: vector)
    template = ServerState.first(layout, np.zeros(layout.size, np.float32), {}, method)
    for path in sorted(folder.glob(PATTERN), reverse=True):
        try:
            # np.load would not close a torn file that it opened itself
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                head = json.loads(bytes(arrays["head"]))
                if head["format"] not in READABLE:
                    raise CheckpointError(f"format {head['format']}, not one of {READABLE}")
                if head["fingerprint"] != fingerprint:
                    raise _OtherRunError(
                        f"{path} was made with another run config (fingerprint "
                        f"{head['fingerprint']}, this run's is {fingerprint}), or by another "
                        "version of FedKeel; give the run another name, or the config it was "
                        "started with"
                    )
                state = _restore(ServerState, head["state"], arrays, put, template.method)
            _refuse_other_model(path, state, layout)
            return state, warnings
        except (_OtherRunError, MemoryMapError):
            raise
        except Exception as error:  # reading a damaged archive raises many types of errors
            warnings.append(_unreadable(path, error))
    return None, warnings


class _OtherRunError(CheckpointError):
    """The checkpoint is readable but belongs to another run."""


def _refuse_other_model(path: Path, state: ServerState[Any], layout: Layout) -> None:
    held = {name: (b.shape, b.dtype.name) for name, b in state.buffers.items()}
    if state.weights.shape != (layout.size,) or held != {
        tensor.name: (tensor.shape, tensor.dtype) for tensor in layout.buffers
    }:
        raise _OtherRunError(
            f"{path} holds a model of {state.weights.size} weights and {len(held)} buffers, this "
            f"run's has {layout.size} and {len(layout.buffers)}; have the data (the number of "
            "classes, the size of the images) changed since?"
        )


def _describe(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the JSON description of a state, and add its arrays to `arrays`."""
    if isinstance(value, np.ndarray):
        key = f"a{len(arrays)}"
        arrays[key] = value
        return [key]  # no other value becomes a list
    if isinstance(value, Entry):
        return {"round": value.round, "vector": _describe(value.vector, arrays)}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _describe(getattr(value, f.name), arrays) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _describe(item, arrays) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"a state cannot hold a {type(value).__name__}")


def _restore(
    kind: Any,
    tree: Any,
    arrays: Mapping[str, Any],
    put: Callable[[Vector], Vector],
    method_state: Any = None,
) -> Any:
    """Return the value that `_describe` described, using the type hints of its dataclass."""
    if isinstance(tree, list):
        return arrays[tree[0]]
    if kind is ClientVectors:
        return ClientVectors(
            {
                client: Entry(entry["round"], put(_restore(None, entry["vector"], arrays, put)))
                for client, entry in tree["entries"].items()
            }
        )
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        missing = [f for f in fields(kind) if f.name not in tree]  # of an older version
        if not tree.keys() <= hints.keys() or any(_has_no_default(f) for f in missing):
            raise CheckpointError(f"{kind.__name__} has other fields than the file")
        values = {
            name: _restore(
                type(method_state)
                if method_state is not None and name == "method"
                else hints[name],
                part,
                arrays,
                put,
            )
            for name, part in tree.items()
        }
        return kind(**values)
    if isinstance(tree, dict):
        item = get_origin(kind) and getattr(kind, "__args__", (None, None))[1]
        return {key: _restore(item, part, arrays, put) for key, part in tree.items()}
    return tree


def _has_no_default(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING
