"""The distribution: declared dependencies, and a wheel that works without the repository."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = {"common", "server_app", "client_app", "deploy", "fedkeel"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normal(distribution: str) -> str:
    """Return the normal form of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def names(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[<>=~! ;]", line)[0]) for line in requirements}


def test_every_import_of_the_product_is_a_declared_dependency() -> None:
    declared = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["metrics"])
    distributions = packages_distributions()
    offenders = []
    for package in sorted(OWN - {"fedkeel"}):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    modules = [str(node.module)]
                else:
                    continue
                for top in {module.partition(".")[0] for module in modules}:
                    if top in OWN or top in sys.stdlib_module_names:
                        continue
                    providers = {normal(name) for name in distributions.get(top, [])}
                    if not providers & declared:
                        place = f"{path.relative_to(ROOT)}:{node.lineno}"
                        offenders.append(f"{place}: {top} of {sorted(providers)}")
    assert not offenders, "\n".join(["", *offenders])


def test_every_declared_dependency_is_imported() -> None:
    """osqp is imported by qpsolvers, and Flower's engine needs Ray at run time."""
    source = "\n".join(
        path.read_text()
        for name in sorted(OWN - {"fedkeel"})
        for path in (ROOT / name).rglob("*.py")
    )
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", source, flags=re.MULTILINE))
    distributions = packages_distributions()
    used = {normal(name) for top in imported for name in distributions.get(top, [])}
    assert names(PROJECT["dependencies"]) - used == {"osqp"}


@pytest.mark.slow
def test_wheel_has_all_packages_and_works_outside_the_repository(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("fedkeel-*.whl")
    unpacked = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    tops = {path.name for path in unpacked.iterdir() if path.is_dir()}
    assert tops - {path.name for path in unpacked.glob("*.dist-info")} == OWN
    tracked = subprocess.run(
        ["git", "ls-files", *sorted(OWN - {"fedkeel"})],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in tracked.stdout.split():
        if not name.startswith(("deploy/docker/", "deploy/edge/")):
            assert (unpacked / name.removeprefix("deploy/python/")).is_file(), name
    program = (
        "import fedkeel, pathlib, sys\n"
        "assert pathlib.Path(fedkeel.__file__).is_relative_to(sys.argv[1]), fedkeel.__file__\n"
        "settings = {'rounds': 1, 'clients': 4, 'participation': 0.5, 'eval-every': 1}\n"
        "result = fedkeel.run('fedavg', settings=settings)\n"
        "print(len(result.rounds))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(unpacked)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("1")
