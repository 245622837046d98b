"""Find folders whose layout would be misread without a word.

The folder names become the classes. One folder too many above the classes, or other names for the
parts than train and test, would give one class with 100 % accuracy, or a model that tells the parts
apart. A class list in the config rules this out, because every other folder name is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.errors import DataError

NAMED = 5  # folders in a message


def refuse_misread_layout(path: Path, members: Mapping[str, Iterable[str]]) -> None:
    """Check that the class folders of a folder without a class list look like classes.

    Args:
        path: the folder.
        members: paths of the files of each class, relative to the class folder.

    Raises:
        DataError: the class folders hold nothing but other folders, with the same names in each, or
            no file within two levels.
    """
    inside: dict[str, set[str]] = {}
    depths: dict[str, int] = {}
    for name, files in members.items():
        parts = [file.split("/") for file in files]
        depths[name] = min(len(part) - 1 for part in parts)
        inside[name] = {part[0] for part in parts if len(part) > 1}
    first = next(iter(inside.values()))
    if all(depths.values()) and len(first) > 1 and all(names == first for names in inside.values()):
        raise DataError(
            f"{len(members)} folder(s) hold the same {len(first)} folders each, so these look like "
            "the classes, and the folders above them like parts of the data or like one folder "
            "too many: name the parts train and test, or give the path of the classes' parent\n"
            f"in {path}: {_named(members)} with {_named(first)}"
        )
    if all(depth > 1 for depth in depths.values()):
        raise DataError(
            "no class folder has an image within two levels, so the classes seem to be further "
            f"down: expected PATH/train/<class>/<file>, PATH/test/<class>/<file>\nin {path}: "
            f"{_named(members)}"
        )


def refuse_single_class(path: Path, classes: Sequence[str]) -> None:
    """Check that a folder for a whole federation has two classes or more.

    Raises:
        DataError: there is one class only.
    """
    if len(classes) == 1:
        raise DataError(
            "all images are in one class, so there is nothing to learn: expected one folder for "
            f"each class\nin {path}: {classes[0]}"
        )


def _named(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:NAMED]) + (f" and {len(shown) - NAMED} more" if shown[NAMED:] else "")
