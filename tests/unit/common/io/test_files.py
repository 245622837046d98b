"""A file is the old one or the new one, never half of it."""

from pathlib import Path

import pytest

from common.io.files import atomic_write


def test_a_block_that_ends_puts_its_file_in_place(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with atomic_write(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"whole"


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        fail_half_way()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"
