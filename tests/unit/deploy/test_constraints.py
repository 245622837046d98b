"""The images hold every package that FedKeel needs, at a version that it takes."""

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import deploy
from tests.each import for_each

LINES = Path(deploy.__file__).with_name("constraints.txt").read_text(encoding="utf-8").splitlines()
PINNED = {
    canonicalize_name(name): Version(version)
    for name, _, version in (line.partition("==") for line in LINES if not line.startswith("#"))
}
ABSENT = {"torch", "torchvision", "ray", "uv"}  # for reasons that the file tells


def known_here() -> Iterator[str]:
    """FedKeel, and what is installed here just as it is in the images."""
    yield "fedkeel"
    for name, pinned in PINNED.items():
        with suppress(PackageNotFoundError):
            if Version(distribution(name).version) == pinned:
                yield name


def needs(name: str) -> Iterator[Requirement]:
    """What a package needs at run time here."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


@for_each("package", [*known_here()])
def test_what_is_needed_is_there_and_fits(package: str) -> None:
    for requirement in needs(package):
        name = canonicalize_name(requirement.name)
        if name not in ABSENT:
            assert name in PINNED, f"{package} needs {name}"
            assert requirement.specifier.contains(PINNED[name]), f"{package} needs {requirement}"


def test_what_is_absent_is_absent() -> None:
    assert not ABSENT & set(PINNED)
    assert len(PINNED) > 50
