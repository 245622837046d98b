"""Open a report from disk in Chromium and watch everything that it does.

Chromium is Debian's (apt-get install chromium). Playwright drives it and downloads nothing. Tests
take the fixture `chromium` of tests/system/conftest.py, then

    with opened(chromium, path, dark=True, phone=True) as view:
        view.page.click("text=play")
        view.assert_quiet()
"""

import importlib.util
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = Path("/usr/bin/chromium")
DESK: dict[str, Any] = {"viewport": {"width": 1100, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
PATIENCE = 30_000  # milliseconds for anything to appear, also on a busy machine


@contextmanager
def chromium_started() -> Iterator["Browser"]:
    """Start Chromium without a window; it and its driver end with the block.

    Inside the block Playwright runs an event loop in this thread, so no other code can use asyncio
    there. Therefore start it for a file of tests and not for a whole session.
    """
    if not CHROMIUM.exists():
        pytest.skip("CHROMIUM IS NOT INSTALLED (apt-get install chromium)")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("PLAYWRIGHT IS NOT INSTALLED (pip install -e '.[test]')")
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory() as home,
        sync_playwright() as driver,
        driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
            env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home},
        ) as browser,
    ):
        yield browser


@dataclass(frozen=True)
class View:
    """An open page, with its console, errors and requests so far."""

    page: "Page"
    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # except for the file itself

    def assert_quiet(self) -> None:
        """Assert that the console is empty, no script failed, and nothing was fetched."""
        assert (self.console, self.errors, self.requests) == ([], [], [])

    def assert_fits(self) -> None:
        """Assert that the page is not wider than the window."""
        wide, window = self.page.evaluate(
            "[document.scrollingElement.scrollWidth, window.innerWidth]"
        )
        assert wide <= window

    def drag(self, what: "Locator", points: Sequence[tuple[float, float]]) -> None:
        """Drag with the mouse from the middle of `what` along these points of the window."""
        mouse = self.page.mouse
        mouse.move(*middle(what))
        mouse.down()
        for point in points:
            mouse.move(*point)
        mouse.up()

    def swipe(self, what: "Locator", points: Sequence[tuple[float, float]]) -> None:
        """Drag with a finger; the page must have been opened as on a phone."""
        session = self.page.context.new_cdp_session(self.page)
        at = middle(what)
        touches = [("touchStart", [at]), *(("touchMove", [point]) for point in points)]
        for kind, places in [*touches, ("touchEnd", [])]:
            where = [{"x": x, "y": y} for x, y in places]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})
        session.detach()


@contextmanager
def opened(
    browser: "Browser", path: Path, *, dark: bool = False, phone: bool = False, still: bool = False
) -> Iterator[View]:
    """Open the file as a page of its own.

    Args:
        browser: from `chromium_started`.
        path: an HTML file.
        dark: the reader prefers dark pages.
        phone: 360 x 740 pixels and touch, instead of a large window and a mouse.
        still: the reader prefers no animations.
    """
    file = path.resolve().as_uri()
    with browser.new_context(
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce" if still else "no-preference",
        **(PHONE if phone else DESK),
    ) as context:
        context.set_default_timeout(PATIENCE)
        view = View(context.new_page())
        view.page.on("console", lambda message: view.console.append(message.text))
        view.page.on("pageerror", lambda error: view.errors.append(str(error)))
        view.page.on("request", lambda request: view.requests.append(request.url))
        view.page.goto(file)
        view.requests.remove(file)
        yield view


def middle(what: "Locator") -> tuple[float, float]:
    """Return the middle of an element, in pixels of the window."""
    what.scroll_into_view_if_needed()
    box = what.bounding_box()
    assert box is not None, "it is not shown"
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def on_circle(centre: tuple[float, float], radius: float, degrees: float) -> tuple[float, float]:
    """Return a point of the window at this angle, anticlockwise from the right."""
    angle = math.radians(degrees)
    return centre[0] + radius * math.cos(angle), centre[1] - radius * math.sin(angle)
