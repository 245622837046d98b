"""The references of the documentation exist: links, anchors, and functions named by their file."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "deploy", "bench", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"([\w/]+\.py)::(\w+(?:\.\w+)*)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub forms them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.replace(" ", "-") for text in plain}


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            yield f"{target}: there is no such file"
        elif anchor and anchor not in anchors(other):
            yield f"{target}: the page has no such heading"


def defines(path: Path, name: str) -> bool:
    """Return whether the module defines `name`, which may be Class.method."""
    body = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
            and node.name == part
        ]
        if not found:
            return False
        body = found[0].body
    return True


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_and_anchors_resolve(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_functions_named_by_their_file_exist(page: Path) -> None:
    missing = [
        f"{path}::{name}"
        for path, name in REFERENCE.findall(page.read_text())
        if not (ROOT / path).is_file() or not defines(ROOT / path, name)
    ]
    assert missing == []


def test_a_broken_link_a_lost_anchor_and_a_lost_function_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One, two\n[a](#one-two) [b](#three) [c](no.md)\n")
    assert list(broken_links(page)) == [
        "#three: the page has no such heading",
        "no.md: there is no such file",
    ]
    module = tmp_path / "module.py"
    module.write_text("class A:\n    def f(self): ...\n")
    assert defines(module, "A.f")
    assert not defines(module, "A.g")


def test_the_page_of_settings_is_fresh() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_settings.py"))["page"]()
    assert (ROOT / "docs" / "settings.md").read_text() == made, (
        "run: PYTHONPATH=. python docs/make_settings.py"
    )
