"""A checkpoint is whole or not there; whatever is wrong with it is told and never executed."""

import io
import json
import os
import pickle
import resource
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.client_vectors import ClientVectors
from common.errors import CheckpointError
from common.layout import Layout, Tensor
from common.methods import FedAvg, FedPCD, Scaffold
from common.methods.history import History
from server_app.run_dir.checkpoint import FORMAT, READABLE, load_newest, save
from server_app.state.server_state import ServerState
from tests.builders import assert_same, begin, bowls, layout_of_size, play

LAYOUT = layout_of_size(6)
NAME = "round-000002.ckpt"


def states(rounds: int = 3) -> list[ServerState[Any]]:
    start = begin(Scaffold(), LAYOUT, np.ones(6), np.float32)
    return play(Scaffold(), start, LAYOUT, bowls(3, 6), [["0", "2"]] * rounds)


def saved(folder: Path, *, keep: int = 9, rounds: int = 3) -> list[ServerState[Any]]:
    all_ = states(rounds)
    for state in all_:
        save(folder, state, fingerprint="f", keep=keep)
    return all_


def load(folder: Path, **changes: Any) -> tuple[ServerState[Any] | None, list[str]]:
    given = {"method": Scaffold(), "layout": LAYOUT, "fingerprint": "f", **changes}
    return load_newest(folder, **given)


def test_the_newest_checkpoint_is_loaded(tmp_path: Path) -> None:
    *_, last = saved(tmp_path)
    assert_same(load(tmp_path), (last, []))


def test_an_empty_or_missing_folder_has_none(tmp_path: Path) -> None:
    assert load(tmp_path) == (None, [])
    assert load(tmp_path / "missing") == (None, [])


@pytest.mark.parametrize(("keep", "left"), [(1, [6]), (2, [5, 6]), (9, [1, 2, 3, 4, 5, 6])])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int, left: list[int]) -> None:
    saved(tmp_path, keep=keep, rounds=6)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"round-{number:06d}.ckpt" for number in left]


def cut(size: float) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * size)])


def flip_one_bit(path: Path) -> None:
    """In the middle of the arrays' bytes, which only the archive's checksum notices."""
    data = bytearray(path.read_bytes())
    data[data.index(b"a0.npy") + 160] ^= 1
    path.write_bytes(data)


MARKER = "marker"


class Bomb:
    """What a pickle does when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, (MARKER,)


def as_npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def as_npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def bomb_in_npz(path: Path) -> None:
    path.write_bytes(as_npz(head=np.array([Bomb()], dtype=object)))


def huge_header(path: Path) -> None:
    """2^33 numbers, 8 bytes of data."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        member, {"descr": "<f4", "fortran_order": False, "shape": (2**33,)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("head.npy", member.getvalue() + b"\0" * 8)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "half": cut(0.5),
    "almost all": cut(0.99),
    "empty": lambda path: path.write_bytes(b""),
    "one bit": flip_one_bit,
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Bomb())),
    "a pickle in an archive": bomb_in_npz,
    "an array": lambda path: path.write_bytes(as_npy(np.ones(3))),
    "another archive": lambda path: path.write_bytes(as_npz(x=np.ones(3))),
    "a head that is no JSON": lambda path: path.write_bytes(as_npz(head=np.zeros(4, np.uint8))),
    "a head that is a list": lambda path: path.write_bytes(
        as_npz(head=np.frombuffer(b"[]", np.uint8))
    ),
    "text": lambda path: path.write_text("weights: lost"),
    "a huge header": huge_header,
}


# A public report of this bug: https://github.com/flwrlabs/flower/pull/882
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_or_hostile_file_is_told_and_the_one_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, _ = saved(tmp_path)
    DAMAGE[what](tmp_path / "round-000003.ckpt")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state, warnings = load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert_same(state, second)
    (warning,) = warnings
    assert "round-000003.ckpt cannot be read" in warning
    assert "going back" in warning
    DAMAGE[what](tmp_path / NAME)
    state, warnings = load(tmp_path)
    assert_same(state, first)
    assert len(warnings) == 2
    assert not Path(MARKER).exists()


def test_nothing_is_loaded_when_all_are_damaged(tmp_path: Path) -> None:
    saved(tmp_path)
    for path in tmp_path.iterdir():
        cut(0.5)(path)
    state, warnings = load(tmp_path)
    assert state is None
    assert len(warnings) == 3


def test_what_a_crash_left_half_written_is_harmless(tmp_path: Path) -> None:
    *_, last = saved(tmp_path)
    whole = (tmp_path / "round-000003.ckpt").read_bytes()
    (tmp_path / "round-000004.partial").write_bytes(whole[:100])
    (tmp_path / "round-000003.partial").write_bytes(whole[:100])
    assert_same(load(tmp_path), (last, []))
    save(tmp_path, last, fingerprint="f", keep=9)
    assert_same(load(tmp_path), (last, []))


def test_a_crash_while_writing_leaves_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = states(2)
    save(tmp_path, first, fingerprint="f", keep=1)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, second, fingerprint="f", keep=1)
    assert_same(load(tmp_path), (first, []))


def test_another_runs_checkpoint_is_refused_and_not_skipped(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(CheckpointError, match=r"fingerprint f, this run's is g"):
        load(tmp_path, fingerprint="g")


@pytest.mark.parametrize(
    "layout",
    [
        layout_of_size(7),
        layout_of_size(6, (Tensor("n.mean", (2,)),)),
        Layout((Tensor("w", (5,)),)),
    ],
)
def test_another_models_checkpoint_is_refused(tmp_path: Path, layout: Layout) -> None:
    """The same config with more classes in the folder makes another model."""
    saved(tmp_path)
    with pytest.raises(CheckpointError, match=r"6 weights and 0 buffers, this run's has"):
        load(tmp_path, layout=layout)


@pytest.mark.parametrize("change", [("shape", (3,)), ("dtype", "float64")])
def test_buffers_of_another_kind_are_refused(tmp_path: Path, change: tuple[str, Any]) -> None:
    tensor = Tensor("n.mean", (2,))
    state = replace(begin(FedAvg(), LAYOUT, np.ones(6)), buffers={"n.mean": np.ones(2, np.float32)})
    save(tmp_path, state, fingerprint="f", keep=1)
    same = layout_of_size(6, (tensor,))
    assert_same(load(tmp_path, method=FedAvg(), layout=same), (state, []))
    other = layout_of_size(6, (replace(tensor, **dict([change])),))
    with pytest.raises(CheckpointError, match="1 buffers"):
        load(tmp_path, method=FedAvg(), layout=other)


@pytest.mark.parametrize("name", ["array", "head", "a0", "entries", "round", "site/ä b.ckpt", "1"])
def test_a_client_may_be_called_anything(tmp_path: Path, name: str) -> None:
    seen = ClientVectors().put(3, {name: np.arange(6, dtype=np.float32)})
    history = History(seen, {name: 0.1 + 0.2}, np.array([[55.0]]))
    state = ServerState(3, np.ones(6, np.float32), {}, history)
    save(tmp_path, state, fingerprint="f", keep=1)
    assert_same(load(tmp_path, method=FedPCD()), (state, []))


@pytest.mark.parametrize("name", ["array", "head", "a0", "file"])
def test_a_buffer_may_be_called_anything(tmp_path: Path, name: str) -> None:
    layout = layout_of_size(6, (Tensor(name, (2,)),))
    state = ServerState(3, np.ones(6, np.float32), {name: np.ones(2, np.float32)}, None)
    save(tmp_path, state, fingerprint="f", keep=1)
    assert_same(load(tmp_path, method=FedAvg(), layout=layout), (state, []))


@dataclass(frozen=True)
class Odd:
    value: Any


@pytest.mark.parametrize("value", [{1, 2}, (1, 2), np.int64(3), object()])
def test_a_state_that_cannot_be_written_is_refused_and_leaves_no_file(
    tmp_path: Path, value: Any
) -> None:
    state = ServerState(1, np.ones(6), {}, Odd(value))
    with pytest.raises(CheckpointError, match="cannot hold a"):
        save(tmp_path, state, fingerprint="f", keep=1)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_our_own_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"round-000001\.ckpt cannot be written"):
        save(tmp_path / "file", states(1)[0], fingerprint="f", keep=1)


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a checkpoint as another version would have."""
    with path.open("rb") as file, np.load(file) as arrays:
        head, rest = json.loads(bytes(arrays["head"])), dict(arrays)
    change(head)
    rest["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **rest)


def test_what_an_older_version_did_not_write_has_its_default(tmp_path: Path) -> None:
    start = begin(FedPCD(), LAYOUT, np.ones(6), np.float32)
    state = play(FedPCD(), start, LAYOUT, bowls(3, 6), [["0", "2"]])[-1]
    path = save(tmp_path, state, fingerprint="f", keep=1)
    rewritten(path, lambda head: head["state"]["method"].pop("exact"))
    assert_same(load(tmp_path, method=FedPCD()), (state, []))
    assert state.method.exact


def test_a_field_without_a_default_must_be_there(tmp_path: Path) -> None:
    saved(tmp_path, rounds=1)
    rewritten(tmp_path / "round-000001.ckpt", lambda head: head["state"]["method"].pop("total"))
    state, warnings = load(tmp_path)
    assert state is None
    assert "other fields" in warnings[0]


def test_older_formats_are_read_and_newer_ones_are_not(tmp_path: Path) -> None:
    *_, state = saved(tmp_path, rounds=1)
    path = tmp_path / "round-000001.ckpt"
    for number in READABLE:
        rewritten(path, lambda head, number=number: head.update(format=number))
        assert_same(load(tmp_path), (state, []))
    rewritten(path, lambda head: head.update(format=FORMAT + 1))
    back, (warning,) = load(tmp_path)
    assert back is None
    assert f"format {FORMAT + 1}, not one of" in warning
