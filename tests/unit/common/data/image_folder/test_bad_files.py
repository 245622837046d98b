"""Bad files are skipped and named; they cost no time, no memory and no good picture.

One ended the training in https://github.com/pytorch/vision/issues/138.
"""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.data import FolderOptions, load_folder
from common.data.image_folder import decode as folders
from common.data.image_folder.decode import LISTED
from common.errors import DataError
from tests.unit.common.data.image_folder.images import pets, picture, pipe, spoil

ROOT = Path(__file__).parents[5]


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# A public report of this bug: https://github.com/pytorch/vision/issues/138
def test_the_largest_pictures_stay_below_2_gb_of_memory(tmp_path: Path) -> None:
    """A 1-bit bomb of 20000 x 20000, and the largest that are accepted, several at a time."""
    place = tmp_path / "cat"
    picture(place / "small.png")
    Image.new("1", (20000, 20000)).save(place / "bomb.png")
    assert (place / "bomb.png").stat().st_size < 100_000
    Image.new("1", (8192, 8192), 1).save(place / "bits.png")
    Image.new("I;16", (8192, 8192), 9).save(place / "deep.png", compress_level=1)
    for number in range(3):
        os.link(place / "deep.png", place / f"deep{number}.png")
    script = """
import resource, sys
from pathlib import Path
from common.data import FolderOptions, load_folder
data = load_folder(Path(sys.argv[1]), FolderOptions(size=32, max_bad=0.2))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(len(data), [name for name, _ in data.skipped], peak)
"""
    count, bad, peak = run(script, tmp_path).split()
    assert (count, bad) == ("6", "['cat/bomb.png']")
    assert int(peak) < 2e9


@pytest.mark.skipif(os.getuid() != 0, reason="others cannot become somebody else")
def test_a_file_that_may_not_be_read_is_listed() -> None:
    """As a user whom permissions concern, in a folder that this user cannot write."""
    script = """
import os, tempfile
from pathlib import Path
from common.data import load_folder
from tests.unit.common.data.image_folder.images import pets
with tempfile.TemporaryDirectory() as name:
    place = Path(name)
    load_folder(pets(place / "warm", train=20))  # has imported what it needs
    pets(place / "data", train=20, test=0)
    (place / "data/train/cat/7.png").chmod(0)
    (place / "temporary").mkdir()
    (place / "temporary").chmod(0o777)
    place.chmod(0o755)
    tempfile.tempdir = str(place / "temporary")
    child = os.fork()
    if not child:
        os.setuid(65534)
        try:
            data = load_folder(place / "data")
            print(len(data), data.skipped, flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""
    assert run(script) == "39 (('train/cat/7.png', 'Permission denied'),)\n"


def test_a_pipe_among_the_pictures_is_not_waited_for(tmp_path: Path) -> None:
    pets(tmp_path)
    begin = time.monotonic()
    with pipe(tmp_path / "train" / "cat" / "pipe.jpg"):
        (tmp_path / "train" / "cat" / "endless.jpg").symlink_to("/dev/zero")
        data = load_folder(tmp_path, FolderOptions(max_bad=0.2))
    assert time.monotonic() - begin < 4
    assert len(data) == 10
    assert dict(data.skipped) == dict.fromkeys(
        ("train/cat/pipe.jpg", "train/cat/endless.jpg"), "not a regular file"
    )


def test_a_file_that_disappears_meanwhile_is_listed_and_then_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pets(tmp_path, train=20)
    victim, read = tmp_path / "train" / "dog" / "3.png", folders.read_pixels

    def read_and_remove(path: Path, **how: object) -> object:
        victim.unlink(missing_ok=True)
        return read(path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(folders, "read_pixels", read_and_remove)
    data = load_folder(tmp_path)
    assert data.skipped == (("train/dog/3.png", "No such file or directory"),)
    assert len(data) == 43
    again = load_folder(tmp_path)
    assert (len(again), again.skipped) == (43, ())


def test_a_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cat" / "1.png"
    picture(tmp_path / "cat" / "0.png", 50)
    path.write_bytes((tmp_path / "cat" / "0.png").read_bytes()[:40])  # still being copied
    half = load_folder(tmp_path, FolderOptions(max_bad=0.5))
    assert [name for name, _ in half.skipped] == ["cat/1.png"]
    picture(path, 200)
    whole = load_folder(tmp_path)
    assert whole.images[:, 0, 0, 0].tolist() == [50, 200]
    assert whole.skipped == ()


def test_only_counts_are_in_the_first_line_and_the_list_is_bounded(tmp_path: Path) -> None:
    """The first line is what a client tells the server."""
    pets(tmp_path, train=50, test=0)
    for number in range(LISTED + 10):
        (tmp_path / "train" / "cat" / f"secret{number}.jpg").write_text("x")
    with pytest.raises(DataError) as caught:
        load_folder(tmp_path)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("30 of 130 files cannot be used, at most 5.0% of them may be bad")
    assert str(tmp_path) not in first
    assert sum("secret" in line for line in rest) == LISTED
    assert rest[-1].strip() == "and 10 more"


def test_the_log_says_where_the_whole_list_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets(tmp_path, train=200, test=0)
    bad = spoil(tmp_path / "train" / "cat")
    with caplog.at_level(logging.WARNING):
        load_folder(tmp_path)
    (record,) = caplog.records
    where = Path(record.getMessage().partition("; ")[2].removesuffix(" says which and why"))
    assert len(record.getMessage().splitlines()) == 1
    assert all(name in where.read_text() for name in bad)


def test_many_files_take_little_memory(tmp_path: Path) -> None:
    """10,000 names of one file: what grows with their number stays below 2 kB a file."""
    first = tmp_path / "many" / "cat" / "0.png"
    picture(first, size=(4, 4))
    for number in range(1, 10_000):
        os.link(first, first.with_name(f"{number}.png"))
    script = """
import resource, sys
from pathlib import Path
from common.data import load_folder
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
load_folder(Path(sys.argv[1]))
before = peak()
print(len(load_folder(Path(sys.argv[2]))), peak() - before)
"""
    count, grown = run(script, pets(tmp_path / "warm"), tmp_path / "many").split()
    assert count == "10000"
    assert int(grown) < 20e6


def test_the_reason_is_one_line(tmp_path: Path) -> None:
    pets(tmp_path)
    rng = np.random.default_rng(0)
    place = tmp_path / "train" / "cat"
    for suffix in ("png", "gif", "bmp", "tif", "webp", "jpg"):
        whole = tmp_path / f"whole.{suffix}"
        Image.fromarray(rng.integers(0, 256, (50, 50, 3)).astype(np.uint8)).save(whole)
        content = bytearray(whole.read_bytes())
        for number in range(8):
            torn = content[: 1 + int(rng.integers(len(content)))]
            torn[int(rng.integers(len(torn)))] ^= 0xFF
            (place / f"{number}.torn.{suffix}").write_bytes(torn)
    data = load_folder(tmp_path, FolderOptions(max_bad=1.0))
    assert len(data.skipped) > 20
    assert all(reason and reason.isprintable() for _, reason in data.skipped)
