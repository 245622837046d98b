"""`mypy --strict` accepts right programs of a user and refuses wrong ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # mypy reads the whole product anew
PROGRAMS = Path(__file__).parent / "typing"
ROOT = Path(__file__).parents[3]
MARK = "# error: "


@pytest.fixture(scope="module")
def errors_by_file(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """Return the message of each line that mypy refuses, by program."""
    cache = tmp_path_factory.mktemp("mypy")
    config = cache / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = True\n"
        "[mypy-torch.*,ray.*,psutil.*]\nfollow_imports = skip\nignore_missing_imports = True\n"
    )
    programs = [str(PROGRAMS / name) for name in ("accepted.py", "refused.py")]
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(config), "--no-error-summary"]
    done = subprocess.run(
        [*mypy, "--no-pretty", "--cache-dir", str(cache), *programs],
        env={**os.environ, "MYPYPATH": f"{ROOT}:{ROOT / 'deploy/python'}"},
        cwd=cache,  # where no pyproject.toml is
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    found: dict[str, dict[int, str]] = {"accepted.py": {}, "refused.py": {}}
    for line in done.stdout.splitlines():
        path, number, kind, message = line.split(":", 3)
        if kind.strip() == "error":
            found.setdefault(Path(path).name, {})[int(number)] = message.strip()
    return found


def test_mypy_strict_accepts_a_right_program(
    errors_by_file: dict[str, dict[int, str]],
) -> None:
    assert errors_by_file["accepted.py"] == {}


def test_mypy_strict_refuses_exactly_the_marked_lines(
    errors_by_file: dict[str, dict[int, str]],
) -> None:
    lines = (PROGRAMS / "refused.py").read_text().splitlines()
    expected = {n: line.split(MARK)[1] for n, line in enumerate(lines, start=1) if MARK in line}
    refused = errors_by_file["refused.py"]
    assert refused.keys() == expected.keys()
    for number, message in expected.items():
        assert refused[number].startswith(message)
