"""Which files of a folder belong to which class, found without opening any."""

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import DataError, did_you_mean

PARTS = ("train", "test")
SUFFIXES = {f".{s}" for s in ("jpg", "jpeg", "png", "ppm", "bmp", "tif", "tiff", "webp", "gif")}
LEFT_BEHIND = {"thumbs.db", "desktop.ini", "__macosx"}  # by file managers, not by people


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file in a class folder; `name` is relative to the folder of pictures."""

    name: str
    label: int
    part: str


@dataclass(frozen=True)
class FolderContents:
    """What a folder holds.

    Attributes:
        files: of known classes; train before test, then by class, then by name.
        classes: the federation's, or without such a list the folders' names.
        unknown: class folders with files that are no class of the federation, each with a hint.
    """

    files: tuple[ImageFile, ...]
    classes: tuple[str, ...]
    unknown: tuple[str, ...]


def scan_folder(path: Path, classes: Sequence[str] | None) -> FolderContents:
    """List PATH/train/<class>/* and PATH/test/<class>/*, or PATH/<class>/* without PATH/train.

    In the second layout everything is for training. A class folder is everything below it, but
    not what lies behind a link to a folder: such a link is listed as a file that cannot be used.
    Links to files, and class folders that are links, are followed, wherever they lead: whoever
    may write to the folder decides what is trained on. Hidden and empty folders are ignored, and
    so are files outside of class folders and hidden files without a picture's suffix.

    Args:
        path: the folder.
        classes: the class list; none takes the folders' names, "2" before "10".

    Raises:
        DataError: no such folder, no files in it, or a layout that could mean two things.
    """
    try:
        found = _by_class(path)
    except OSError as error:
        raise DataError(
            f"cannot list a folder of pictures: {error.strerror}; make it readable\n"
            f"{printable_name(str(error.filename))}"
        ) from error
    names = sorted({name for _, name in found}, key=_natural)
    known = tuple(classes or names)
    if not classes and (odd := [printable_name(name) for name in names if not name.isprintable()]):
        raise DataError(f"folders whose names are no plain text: {', '.join(odd)}; rename them")
    labels = {normalised_name(name): label for label, name in enumerate(known)}
    files = [
        ImageFile(member, labels[name], part)
        for (part, name), members in found.items()
        if name in labels
        for member in members
    ]
    files.sort(key=lambda file: (PARTS.index(file.part), file.label, file.name))
    unknown = tuple(f'"{printable_name(n)}"{_hint(n, known)}' for n in names if n not in labels)
    return FolderContents(tuple(files), known, unknown)


def normalised_name(name: str) -> str:
    """Return a name in the one spelling that its letters have: macOS splits an accent off."""
    return unicodedata.normalize("NFC", name)


def printable_name(name: str) -> str:
    """Return a file's name as one line that any log can hold."""
    return name if name.isprintable() else ascii(name)


def file_fingerprint(root: Path, name: str) -> list[str | int]:
    """Return what changes when the file does."""
    try:
        status = os.stat(f"{root}/{name}")  # noqa: PTH116 - five times as fast, for each picture
    except OSError:
        return [name]
    return [name, status.st_size, status.st_mtime_ns, status.st_mode]


def _by_class(path: Path) -> dict[tuple[str, str], list[str]]:
    """Return the names, relative to `path`, of the files of each (part, class) that has any."""
    if not path.is_dir():
        raise _no_data_set("the folder of pictures is missing or is no folder", path)
    in_parts = (path / "train").is_dir()
    where = {part: f"{part}/" for part in PARTS} if in_parts else {"train": ""}
    found: dict[tuple[str, str], list[str]] = {}
    for part, prefix in where.items():
        for folder in _class_folders(path / prefix):
            if members := list(_members(path, prefix + folder)):
                found.setdefault((part, normalised_name(folder)), []).extend(members)
    if not found:
        raise _no_data_set("the folder of pictures has no file in any class folder", path)
    if not in_parts and (parts := [n for _, n in found if n.strip().casefold() in PARTS]):
        raise _no_data_set(f'there is a folder "{parts[0]}", but none that is called "train"', path)
    return found


def _no_data_set(problem: str, path: Path) -> DataError:
    return DataError(
        f"{problem}\nexpected {path}/train/<class>/<file> and {path}/test/<class>/<file>, or "
        f"{path}/<class>/<file> with no class that is called train or test"
    )


def _class_folders(part: Path) -> list[str]:
    inside = part.iterdir() if part.is_dir() else ()
    return [folder.name for folder in inside if not _ignored(folder.name) and folder.is_dir()]


def _members(root: Path, folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    for where, folders, names in os.walk(root / folder, onerror=refuse):
        inside = where.removeprefix(f"{root}/")
        seen = [name for name in folders if not _ignored(name)]
        folders[:] = [name for name in seen if not os.path.islink(f"{where}/{name}")]  # noqa: PTH114
        links = set(seen) - set(folders)
        for name in (*names, *links):
            if not _ignored(name) or Path(name).suffix.lower() in SUFFIXES:
                yield f"{inside}/{name}"


def _ignored(name: str) -> bool:
    return name.startswith(".") or name.casefold() in LEFT_BEHIND


def _hint(name: str, classes: Sequence[str]) -> str:
    folded = name.strip().casefold()
    same = (known for known in classes if known.strip().casefold() == folded)
    return did_you_mean(next(same, name), classes)


def _natural(name: str) -> tuple[list[str | int], str]:
    parts = re.split(r"(\d+)", name)  # text and digits take turns, text first
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
