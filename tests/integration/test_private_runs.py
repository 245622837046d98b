"""Other users of the machine cannot read a run: it holds each client's updates by name."""

import stat
from pathlib import Path

import pytest

from tests.integration.conftest import Runner


def open_to(folder: Path, bits: int) -> list[Path]:
    """Return what is below a folder, itself included, that has one of these permission bits."""
    return [path for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & bits]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_run_is_readable_by_its_user_only(carried_out: Runner, on_disk: bool) -> None:
    ran = carried_out("private", {"method": "fedpcd", "rounds": 1, "server.on-disk": on_disk})
    assert ran.outcome.status == "completed"
    assert len(list(ran.folder.rglob("*"))) > 5
    assert open_to(ran.folder, stat.S_IRWXG | stat.S_IRWXO) == []


def test_a_setting_lets_the_group_read_a_run(carried_out: Runner) -> None:
    ran = carried_out("shared", {"rounds": 1, "server.group-access": True})
    assert open_to(ran.folder, stat.S_IWGRP | stat.S_IRWXO) == []
    assert open_to(ran.folder, stat.S_IRGRP) == [ran.folder, *ran.folder.rglob("*")]
