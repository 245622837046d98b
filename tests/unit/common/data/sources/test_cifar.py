"""CIFAR files of both published forms give the same pictures; pickles can do nothing else."""

import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from common.data.sources.cifar import (
    CIFAR10,
    CIFAR100,
    BinaryBatch,
    CifarSource,
    Edition,
    PickledBatch,
)
from common.data.sources.download import RemoteFile
from common.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 3072)).astype(np.uint8)
LABELS = np.array([3, 9, 0, 7, 7])


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def old_pickle(batch: dict[str, Any]) -> bytes:
    """Write what Python 2 and an old NumPy wrote: old module names, strings for data, 0 and 1."""
    content = pickle.dumps(batch, protocol=3).replace(b"numpy._core.", b"numpy.core.")
    raw = batch["data"].tobytes()
    size = len(raw).to_bytes(4, "little")
    for new, old in ((b"B" + size + raw, b"T" + size + raw), (b"\x89\x88\x87", b"K\0K\1\x87")):
        assert content.count(new) == 1
        content = content.replace(new, old)
    return content


def binary(pixels: Any, labels: Any, label_bytes: int) -> bytes:
    coarse = np.full((len(labels), label_bytes - 1), 19, dtype=np.uint8)
    return bytes(np.hstack([coarse, labels[:, None].astype(np.uint8), pixels]).tobytes())


def contents(form: str) -> dict[str, bytes]:
    halves = {"train": slice(0, 3), "test": slice(3, 5)}
    if form == "python":
        return {
            name: old_pickle({"data": PIXELS[half], "fine_labels": LABELS[half].tolist()})
            for name, half in halves.items()
        }
    return {name: binary(PIXELS[half], LABELS[half], 2) for name, half in halves.items()}


def packed(folder: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def source(form: str) -> tuple[CifarSource, dict[str, bytes], bytes]:
    """Return a tiny CIFAR-100 in one form: the source, its files and its archive."""
    files = contents(form)
    archive = packed("tiny", files)
    batches: dict[str, Any] = {
        "python": lambda name: PickledBatch(name, md5(files[name]), "fine_labels"),
        "binary": lambda name: BinaryBatch(name, 3 if name == "train" else 2, label_bytes=2),
    }
    edition = Edition(
        RemoteFile("tiny.tar.gz", "http://127.0.0.1:9/tiny.tar.gz", md5(archive)),
        "tiny",
        train=(batches[form]("train"),),
        test=(batches[form]("test"),),
    )
    return CifarSource("tiny", (edition,), tuple("0123456789")), files, archive


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize("place", ["", "tiny"])
@pytest.mark.parametrize("unpacked", [True, False])
def test_both_forms_packed_or_not_give_the_same_pictures(
    tmp_path: Path, form: str, place: str, unpacked: bool
) -> None:
    tiny, files, archive = source(form)
    home = tmp_path / place
    (home / "tiny").mkdir(parents=True)
    if unpacked:
        for name, content in files.items():
            (home / "tiny" / name).write_bytes(content)
    else:
        (home / "tiny.tar.gz").write_bytes(archive)
    data = tiny.load(tmp_path, download=False)
    assert_array_equal(data.images, PIXELS.reshape(5, 3, 32, 32))
    assert_array_equal(data.labels, LABELS)
    assert data.train_size == 3


# A public report of this bug: https://github.com/NVIDIA/NVFlare/issues/1080
@pytest.mark.parametrize("form", ["python", "binary"])
def test_a_truncated_archive_or_file_is_refused_by_name(tmp_path: Path, form: str) -> None:
    tiny, files, archive = source(form)
    (tmp_path / "tiny.tar.gz").write_bytes(archive[:-10])
    with pytest.raises(DataError, match=r"tiny\.tar\.gz is damaged.*expected"):
        tiny.load(tmp_path)
    (tmp_path / "tiny").mkdir()
    for name, content in files.items():
        (tmp_path / "tiny" / name).write_bytes(content[: -10 if name == "test" else None])
    with pytest.raises(DataError, match=r"tiny/test is damaged.*expected"):
        tiny.load(tmp_path)


@pytest.mark.parametrize("download", [True, False])
def test_missing_data_say_what_to_put_where(tmp_path: Path, download: bool) -> None:
    tiny, _, _ = source("binary")
    with pytest.raises(
        DataError, match=rf"put tiny\.tar\.gz \(from http://.*/tiny\.tar\.gz\) into {tmp_path}/tiny"
    ):
        tiny.load(tmp_path, download=download)


class _Trap:
    def __reduce__(self) -> Any:
        return (eval, ("1 + 1",))


def test_a_pickle_that_asks_for_anything_else_is_refused_even_with_the_right_sum() -> None:
    for content in (pickle.dumps(_Trap()), pickle.dumps({"data": Path("x")})):
        batch = PickledBatch("trap", md5(content))
        with pytest.raises(pickle.UnpicklingError, match="no CIFAR file needs"):
            batch.read(content)


def test_a_trap_in_a_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    tiny, files, _ = source("python")
    files["test"] = pickle.dumps(_Trap())
    trapped = replace(
        tiny.editions[0], test=(PickledBatch("test", md5(files["test"]), "fine_labels"),)
    )
    (tmp_path / "tiny").mkdir()
    for name, content in files.items():
        (tmp_path / "tiny" / name).write_bytes(content)
    with pytest.raises(DataError, match=r"tiny/test is damaged.*builtins\.eval"):
        replace(tiny, editions=(trapped,)).load(tmp_path)


def test_class_lists_are_complete_and_in_the_published_order() -> None:
    assert len(CIFAR10.classes) == 10
    assert len(set(CIFAR100.classes)) == 100
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)
    assert list(CIFAR10.classes) == sorted(CIFAR10.classes)


def test_the_published_sums_are_torchvisions() -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    for ours, theirs in ((CIFAR10, datasets.CIFAR10), (CIFAR100, datasets.CIFAR100)):
        edition = ours.editions[1]
        assert edition.archive == RemoteFile(theirs.filename, theirs.url, theirs.tgz_md5)
        assert edition.folder == theirs.base_folder
        assert [[f.name, f.md5] for f in edition.train] == theirs.train_list
        assert [[f.name, f.md5] for f in edition.test] == theirs.test_list
