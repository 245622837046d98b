"""The cache of decoded pictures: complete or absent, whatever the disk does."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from common.data import FolderOptions, load_folder
from common.errors import DataError
from tests.unit.common.data.image_folder.images import pets, picture

ROOT = Path(__file__).parents[5]
LOAD = """
import resource, sys
from pathlib import Path
from common.data import load_folder
from common.errors import DataError
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    print("loaded", len(load_folder(Path(sys.argv[1]))))
except DataError as error:
    print(error)
"""


def may_mount() -> bool:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.returncode == 0


needs_mounts = pytest.mark.skipif(not may_mount(), reason="needs a mount namespace of its own")


def loaded(path: Path, *arguments: object, before: str = "", temporary: Path) -> str:
    """What another process says of the folder, after `before` in a mount namespace of its own."""
    python = [sys.executable, "-c", LOAD, str(path), *map(str, arguments)]
    mounts = ["unshare", "--mount", "sh", "-ec", f'{before}\nexec "$@"', "sh"] if before else []
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [*mounts, *python], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def homes(path: Path) -> list[str]:
    return sorted(inside.name for inside in (path / ".fedkeel-cache").iterdir())


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten pictures that take 120 kB when decoded."""
    root = pets(tmp_path / "data")
    for path in root.rglob("*.png"):
        picture(path, size=(64, 64))
    return root


@needs_mounts
def test_pictures_on_a_read_only_mount_are_decoded_elsewhere(data: Path, temporary: Path) -> None:
    read_only = f"mount --bind {data} {data}; mount -o remount,bind,ro {data}"
    for _ in range(2):
        assert loaded(data, before=read_only, temporary=temporary) == "loaded 10\n"
    assert not (data / ".fedkeel-cache").exists()
    assert len(list(temporary.glob("fedkeel-*/*/*/images.npy"))) == 1


@needs_mounts
def test_a_cache_made_before_serves_a_machine_where_nothing_can_be_written(
    data: Path, temporary: Path
) -> None:
    load_folder(data)
    read_only = f"mount --bind {data.parent} {data.parent}; mount -o remount,bind,ro {data.parent}"
    assert loaded(data, before=read_only, temporary=temporary) == "loaded 10\n"


@needs_mounts
def test_on_a_full_disk_the_cache_goes_to_another(data: Path, temporary: Path) -> None:
    (data / ".fedkeel-cache").mkdir()
    small = f"mount -t tmpfs -o size=64k none {data}/.fedkeel-cache"
    assert loaded(data, before=small, temporary=temporary) == "loaded 10\n"
    assert len(list(temporary.glob("fedkeel-*/*/*/images.npy"))) == 1


@needs_mounts
def test_when_all_disks_are_full_it_says_where_and_what_to_do(data: Path, temporary: Path) -> None:
    (data / ".fedkeel-cache").mkdir()
    places = (f"{data}/.fedkeel-cache", temporary)
    small = "; ".join(f"mount -t tmpfs -o size=64k none {place}" for place in places)
    told = loaded(data, before=small, temporary=temporary)
    first, *refusals = told.splitlines()
    assert "make room" in first
    assert "TMPDIR" in first
    for place, refusal in zip(places, refusals, strict=True):
        assert str(place) in refusal
        assert "No space left on device: 0 MB needed, 0 MB free" in refusal


@pytest.mark.parametrize("most", [0, 1000, 100_000, 122_900])
def test_a_disk_that_fills_up_meanwhile_leaves_nothing_that_is_used_later(
    data: Path, temporary: Path, most: int
) -> None:
    """The first file of the cache cannot grow beyond `most` bytes; it needs 122,880 and a bit."""
    told = loaded(data, most, temporary=temporary)
    assert "there is no place for the decoded images" in told
    assert homes(data) == [".lock"]
    assert loaded(data, temporary=temporary) == "loaded 10\n"


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "meta.json"])
@pytest.mark.parametrize("left", [0, 40, None])
def test_a_cache_that_a_power_cut_tore_is_built_anew(
    data: Path, name: str, left: int | None
) -> None:
    whole = load_folder(data)
    (file,) = (data / ".fedkeel-cache").glob(f"*/{name}")
    if left is None:
        file.unlink()
    else:
        os.truncate(file, left)
    again = load_folder(data)
    assert (again.images == whole.images[:]).all() if name != "images.npy" else len(again) == 10
    assert again.labels.tolist() == whole.labels.tolist()


def test_a_process_that_reads_keeps_its_pictures_when_another_builds_anew(data: Path) -> None:
    before = load_folder(data)
    shades = before.images[:, 0, 0, 0].tolist()
    (data / "train" / "cat" / "1.png").unlink()
    assert len(load_folder(data)) == 9
    assert before.images[:, 0, 0, 0].tolist() == shades


def test_without_any_temporary_folder_the_folder_itself_is_enough(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert len(load_folder(data)) == 10
    (data / ".fedkeel-cache" / ".lock").unlink()
    (data / ".fedkeel-cache" / ".lock").mkdir()
    with pytest.raises(DataError, match=r"(?s)no place.*No usable temporary directory.*Is a dir"):
        load_folder(data, FolderOptions(size=3))
