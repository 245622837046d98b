"""The report of real runs in a browser has every figure and fetches nothing."""

import sys
from pathlib import Path
from subprocess import run
from typing import TYPE_CHECKING

import pytest

from tests.browser import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SETTINGS = {
    "rounds": 4, "eval-every": 2, "clients": 8, "participation": 0.5, "diagnostics.every": 2,
    "diagnostics.probe": 32, "diagnostics.gradients": "true", "data.calibration-fraction": 0.2,
    "conformal.bins": 100,
}  # fmt: skip
EXPECTED = {
    "accuracy", "clients", "spread", "tenth", "target", "difference", "drift-layers",
    "drift-rounds", "cka", "cka-clients", "memory", "cosines", "sets-lac", "sets-aps", "sets-raps",
    "sets-clients", "partition", "traffic",
}  # fmt: skip


def fedkeel(*words: str, folder: Path) -> None:
    command = [sys.executable, "-m", "deploy.cli.main", *words]
    done = run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run three methods with all diagnostics and return the report's page."""
    folder = tmp_path_factory.mktemp("report")
    pairs = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    methods = ("fedavg", "fedpcd", "fedpvr")
    fedkeel("compare", *methods, "--engine", "inline", "--name", "all", *pairs, folder=folder)
    fedkeel("report", "runs", folder=folder)
    return folder / "report.html"


def test_every_figure_is_in_the_page(report: Path) -> None:
    text = report.read_text()
    assert {name for name in EXPECTED if f'id="s1-{name}-figure_1"' in text} == EXPECTED
    assert "cannot be drawn" not in text


@pytest.mark.parametrize("phone", [False, True])
@pytest.mark.parametrize("dark", [False, True])
def test_it_looks_as_it_should(report: Path, chromium: "Browser", dark: bool, phone: bool) -> None:
    with opened(chromium, report, dark=dark, phone=phone) as view:
        view.assert_fits()
        figures = view.page.locator(".figure svg")
        assert figures.count() == len(EXPECTED)
        for box in figures.evaluate_all("all => all.map(each => each.getBoundingClientRect())"):
            assert box["width"] > 250
            assert box["height"] > 100
        paper, ink = view.page.evaluate(
            """() => [document.querySelector(".figure"), document.querySelector(".figure svg text")]
            .map((each) => getComputedStyle(each))
            .map((style, place) => place ? style.fill : style.backgroundColor)"""
        )
        assert (brightness(paper) < brightness(ink)) == dark
        for panel in ("#fk-bend", "#fk-memory"):
            assert view.page.locator(f"{panel} svg circle").count() > 2
        view.assert_quiet()


def brightness(colour: str) -> float:
    """Of a colour such as "rgb(29, 35, 48)"."""
    return sum(float(part) for part in colour[4:-1].split(","))


def test_a_reader_can_turn_the_light_on_and_off_and_look_closer(
    report: Path, chromium: "Browser"
) -> None:
    with opened(chromium, report) as view:
        view.page.click("#theme")
        assert view.page.evaluate("document.documentElement.dataset.theme") == "dark"
        view.page.click("#theme")
        assert view.page.evaluate("document.documentElement.dataset.theme") == "light"
        figure = view.page.locator(".figure").first
        before = figure.bounding_box()
        figure.locator("button").click()
        after = figure.bounding_box()
        assert before
        assert after
        assert after["width"] > 1.5 * before["width"]
        view.page.click("summary")
        assert view.page.locator("details >> text=train.lr").first.is_visible()
        view.assert_quiet()
