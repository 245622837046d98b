"""Find the image files of a folder and their classes, without opening them."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.data.image_folder.layout_check import refuse_misread_layout
from common.errors import DataError, did_you_mean

PARTS = ("train", "test")
SUFFIXES = {f".{s}" for s in ("jpg", "jpeg", "png", "ppm", "bmp", "tif", "tiff", "webp", "gif")}
LEFT_BEHIND = {"thumbs.db", "desktop.ini", "__macosx"}  # created by file managers
COMPANION = "._"  # prefix of the companion that macOS writes beside a file on foreign disks
OTHER_KINDS = {  # files that often lie beside images and are none
    f".{s}"
    for s in (
        *("json", "jsonl", "xml", "txt", "csv", "tsv", "yaml", "yml", "toml", "ini", "md", "html"),
        *("log", "pdf", "doc", "docx", "xls", "xlsx", "npy", "npz", "pkl", "pt", "h5", "db"),
        *("zip", "tar", "gz", "7z", "py", "ipynb", "sh", "mp4", "avi", "mov", "wav", "mp3"),
    )
}


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file in a class folder. `name` is relative to the scanned folder."""

    name: str
    label: int
    part: str


@dataclass(frozen=True)
class FolderContents:
    """The files and classes of a folder.

    Attributes:
        files: files of known classes, sorted by part (train first), class and name.
        classes: the federation's class list, or without one the names of the folders.
        unknown: class folders with files that are no class of the federation, each with a hint.
        left_out: number of files that are not used, by a description of their kind or folder.
    """

    files: tuple[ImageFile, ...]
    classes: tuple[str, ...]
    unknown: tuple[str, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def scan_folder(path: Path, classes: Sequence[str] | None) -> FolderContents:
    """List PATH/train/<class>/* and PATH/test/<class>/*, or PATH/<class>/* without PATH/train.

    In the second layout all files are for training. Rules:

    - A class folder includes its subfolders, but not links to folders. Such a link is listed as
      an unusable file.
    - Links to files, and class folders that are links, are followed wherever they lead.
    - Ignored are hidden and empty folders, files outside of class folders, the companions "._*"
      of macOS, and hidden files without the suffix of an image.
    - Not used and counted are files in class folders whose suffix says that they are no images,
      and files in folders beside train and test.

    Args:
        path: the folder.
        classes: the class list. None uses the names of the folders, "2" before "10".

    Raises:
        DataError: the folder is missing, has no files, or its layout is ambiguous.
    """
    left_out: Counter[str] = Counter()
    try:
        found = _by_class(path, left_out)
    except OSError as error:
        raise DataError(
            f"cannot list a folder of images: {error.strerror}; make it readable\n"
            f"{printable_name(str(error.filename))}"
        ) from error
    names = sorted({name for _, name in found}, key=_natural)
    known = tuple(classes or names)
    if not classes and (odd := [printable_name(name) for name in names if not name.isprintable()]):
        raise DataError(f"folder names with unprintable characters: {', '.join(odd)}; rename them")
    if not classes:
        refuse_misread_layout(path, _below_class(found))
    labels = {normalised_name(name): label for label, name in enumerate(known)}
    files = [
        ImageFile(member, labels[name], part)
        for (part, name), members in found.items()
        if name in labels
        for member in members
    ]
    files.sort(key=lambda file: (PARTS.index(file.part), file.label, file.name))
    unknown = tuple(f'"{printable_name(n)}"{_hint(n, known)}' for n in names if n not in labels)
    return FolderContents(tuple(files), known, unknown, dict(sorted(left_out.items())))


def normalised_name(name: str) -> str:
    """Return a name in Unicode form NFC, because macOS stores accents separately (NFD)."""
    return unicodedata.normalize("NFC", name)


def printable_name(name: str) -> str:
    """Return a file name as one line without unprintable characters."""
    return name if name.isprintable() else ascii(name)


def file_fingerprint(root: Path, name: str) -> list[str | int]:
    """Return values that change when the file changes."""
    try:
        status = os.stat(f"{root}/{name}")  # noqa: PTH116 - five times as fast, for each image
    except OSError:
        return [name]
    return [name, status.st_size, status.st_mtime_ns, status.st_mode]


def _below_class(found: Mapping[tuple[str, str], Sequence[str]]) -> dict[str, list[str]]:
    """Return the files of each class, relative to the class folder, in all parts."""
    below: dict[str, list[str]] = {}
    for (_, name), members in found.items():
        for member in members:
            start = normalised_name(member).index(f"{name}/") + len(name) + 1
            below.setdefault(name, []).append(normalised_name(member)[start:])
    return below


def _by_class(path: Path, left_out: Counter[str]) -> dict[tuple[str, str], list[str]]:
    """Return the names, relative to `path`, of the files of each (part, class) that has any."""
    if not path.is_dir():
        raise _no_data_set("the folder of images is missing or is no folder", path)
    in_parts = (path / "train").is_dir()
    prefixes = {part: f"{part}/" for part in PARTS} if in_parts else {"train": ""}
    found: dict[tuple[str, str], list[str]] = {}
    for part, prefix in prefixes.items():
        for folder in _class_folders(path / prefix):
            if members := list(_members(path, prefix + folder, left_out)):
                found.setdefault((part, normalised_name(folder)), []).extend(members)
    if not found:
        raise _no_data_set("the folder of images has no file in any class folder", path)
    if not in_parts and (parts := [n for _, n in found if n.strip().casefold() in PARTS]):
        raise _no_data_set(f'there is a folder "{parts[0]}", but no folder "train"', path)
    if in_parts:
        for folder in sorted(set(_class_folders(path)) - set(PARTS)):
            if count := sum(1 for _ in _members(path, folder, Counter())):
                left_out[f'files in the folder "{printable_name(folder)}" beside train'] += count
    return found


def _no_data_set(problem: str, path: Path) -> DataError:
    return DataError(
        f"{problem}\nexpected {path}/train/<class>/<file> and {path}/test/<class>/<file>, or "
        f"{path}/<class>/<file> where no class is called train or test"
    )


def _class_folders(part: Path) -> list[str]:
    inside = part.iterdir() if part.is_dir() else ()
    return [folder.name for folder in inside if not _ignored(folder.name) and folder.is_dir()]


def _members(root: Path, folder: str, left_out: Counter[str]) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    for where, folders, names in os.walk(root / folder, onerror=refuse):
        inside = where.removeprefix(f"{root}/")
        seen = [name for name in folders if not _ignored(name)]
        folders[:] = [name for name in seen if not os.path.islink(f"{where}/{name}")]  # noqa: PTH114
        links = set(seen) - set(folders)
        for name in (*names, *links):
            suffix = Path(name).suffix.lower()
            if name.startswith(COMPANION) or (_ignored(name) and suffix not in SUFFIXES):
                continue
            if suffix in OTHER_KINDS:
                left_out[f"{suffix} files"] += 1
            else:
                yield f"{inside}/{name}"


def _ignored(name: str) -> bool:
    return name.startswith(".") or name.casefold() in LEFT_BEHIND


def _hint(name: str, classes: Sequence[str]) -> str:
    folded = name.strip().casefold()
    same = (known for known in classes if known.strip().casefold() == folded)
    return did_you_mean(next(same, name), classes)


def _natural(name: str) -> tuple[list[str | int], str]:
    parts = re.split(r"(\d+)", name)  # text and digits alternate, text first
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
