"""The report's two panels in a real browser: their numbers are those of the method itself."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.linalg import norm
from numpy.testing import assert_allclose

import deploy.report.html
from common.geometry import project_onto_halfspaces
from common.methods import FedPCD
from common.methods.history import History
from common.rng import stream
from common.types import Vector
from tests.browser import View, on_circle, opened
from tests.builders import EXACT, LR, cohort_of, compass, layout_of_size

HTML = Path(deploy.report.html.__file__).parent
ASSETS, TEMPLATES = HTML / "assets", HTML / "templates"
PAGE, AGREEING, TWO = (10, 45, 155), (35, 60, 85), (20, 150, 165)  # the examples, in degrees


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the panels and nothing else."""
    path = tmp_path_factory.mktemp("page") / "panels.html"
    path.write_text(document((TEMPLATES / "panels.html").read_text()))
    return path


def document(body: str) -> str:
    style, script = (ASSETS / "panels.css").read_text(), (ASSETS / "panels.js").read_text()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Panels</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>body {{ margin: 2.25rem }} {style}</style></head>"
        f"<body>{body}<script>{script}</script></body></html>"
    )


# ---------------------------------------------------------------- how the step is bent


@dataclass(frozen=True)
class Bend:
    """Panel A on an open page."""

    view: View

    def example(self, angles: tuple[int, ...]) -> None:
        self.view.page.click(f'[data-angles="{" ".join(map(str, angles))}"]')

    def tau(self, value: float) -> None:
        self.view.page.locator("#fk-bend-tau").fill(str(value))

    def option(self, name: str, on: bool) -> None:
        self.view.page.locator(f"[data-option={name}]").set_checked(on, force=True)

    def handle(self, client: int) -> Any:
        return self.view.page.locator(f'.fk-handle[data-client="{client}"]')

    def where(self, degrees: float) -> tuple[float, float]:
        """A point of the window to which a handle can be dragged to have about this angle."""
        box = self.view.page.locator("#fk-bend .fk-picture > svg").bounding_box()
        assert box is not None
        centre = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        return on_circle(centre, 0.43 * box["width"], degrees)

    def read(self) -> dict[str, Any]:
        """Every number that the panel shows; None is a dash."""
        return self.view.page.evaluate("""() => {
          const root = document.getElementById("fk-bend");
          const number = (node) =>
            node.dataset.value === "" ? null : Number(node.dataset.value);
          const column = (name) =>
            [...root.querySelectorAll(`[data-cell=${name}]`)].map(number);
          const facts = [...root.querySelectorAll("[data-fact]")]
            .map((node) => [node.dataset.fact, number(node)]);
          return {
            ...Object.fromEntries(facts),
            tau: number(root.querySelector("[data-part=tau]")),
            angles: [...root.querySelectorAll(".fk-handle")].map(number),
            mean: column("mean"), point: column("point"),
            mu: column("mu"), cosine: column("cosine"),
            active: [...root.querySelectorAll("[data-cell=active]")]
              .map((node) => node.dataset.value === "true"),
            feasible: root.querySelector("[data-part=verdict]").dataset.value === "feasible",
            says: root.querySelector("[data-part=verdict]").textContent,
          };
        }""")


@pytest.fixture(scope="module")
def shared_bend(chromium: Any, page: Path) -> Iterator[Bend]:
    with opened(chromium, page) as view:
        yield Bend(view)


@pytest.fixture
def bend(shared_bend: Bend) -> Bend:
    """Panel A as it opens."""
    shared_bend.example(PAGE)
    shared_bend.tau(0.25)
    shared_bend.option("normalise", True)
    shared_bend.option("primary", True)
    return shared_bend


def assert_computed(shown: dict[str, Any], *, normalise: bool = True, primary: bool = True) -> None:
    """What is shown is what the method, and its geometry, make of the same three clients."""
    units, tau = compass(*shown["angles"]), shown["tau"]
    mean = units.mean(axis=0)
    size, start = float(norm(mean)), np.zeros(2)
    if primary:
        start = mean / size if normalise else mean
    found = project_onto_halfspaces(start, units, np.full(3, tau), solver="exact")
    assert shown["feasible"] == found.feasible
    assert_allclose(shown["mean"], units @ mean / size, **EXACT)
    if found.feasible:
        point, length = found.point, float(norm(found.point))
        assert_allclose(shown["mu"], found.multipliers, rtol=1e-9, atol=1e-9)
        assert_allclose(shown["point"], units @ point, rtol=1e-9, atol=1e-9)
        assert shown["length"] == pytest.approx(length, rel=1e-9)
        assert on_the_compass(shown["angle"]) == pytest.approx(point / length, abs=1e-9)
        assert shown["active"] == [mu > 0 for mu in found.multipliers]
    else:
        assert (shown["mu"], shown["point"]) == ([None] * 3, [None] * 3)
        assert (shown["length"], shown["angle"]) == (None, None)
        assert shown["active"] == [False] * 3

    method = FedPCD(tau=tau, normalise=normalise, primary=primary, solver="exact")
    step = method.aggregate(cohort_of(LR * units), History(), layout_of_size(2)).direction / LR
    assert shown["step"] == pytest.approx(norm(step), rel=1e-8)
    assert_allclose(shown["cosine"], units @ step / norm(step), atol=1e-7)
    turned = np.clip(step @ mean / (norm(step) * size), -1, 1)
    assert np.cos(np.deg2rad(shown["turn"])) == pytest.approx(turned, abs=1e-7)


def on_the_compass(degrees: float) -> Vector:
    direction: Vector = compass(degrees)[0]
    return direction


CARD: list[tuple[tuple[int, ...], float, dict[str, Any]]] = [
    (PAGE, 0.0, {
        "mu": [0, 0, 0.10590698400229],
        "point": [0.57035066593908, 0.93440782793118, 0],
        "length": 0.99437604091186, "angle": 65.0, "turn": 6.0794242942,
    }),
    (PAGE, 0.02, {
        "mu": [0, 0, 0.12590698400229],
        "point": [0.55396762505330, 0.92756742506466, 0.02],
        "length": 0.99457715172808, "angle": 66.152241263575, "turn": 7.2316655578,
    }),
    (PAGE, 0.25, {
        "mean": [0.65710458838904, 0.97063014977883, -0.10590698400229],
        "mu": [0, 0, 0.35590698400229],
        "point": [0.36556265486684, 0.84890279209976, 0.25],
        "length": 1.0253212719629, "angle": 79.112465493344, "turn": 20.1918897876,
        "step": 0.50727591805519,
        "cosine": [0.35653474170784, 0.82793834021861, 0.24382601515855],
    }),
    (PAGE, 1.0, {
        "mu": [3.7958650730185, 0, 4.2152976184106],
        "point": [1, 2.6383040885780, 1],
        "length": 3.3255095234230, "angle": 82.5, "turn": 23.5794242942,
        "cosine": [0.30070579950427, 0.79335334029124, 0.30070579950427],
    }),
    (AGREEING, 0.25, {
        "mean": [0.90630778703665, 1, 0.90630778703665],
        "mu": [0, 0, 0], "point": [0.90630778703665, 1, 0.90630778703665],
        "length": 1.0, "angle": 60.0, "turn": 0.0, "step": 0.93753852469110,
    }),
    (TWO, 0.25, {
        "mu": [0.57599157871825, 0, 0],
        "length": float(np.hypot(-0.088413341873861, 0.97386476041773)),
        "angle": 95.187437300912, "turn": 129.0256603046 - 95.187437300912,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("angles", "tau", "numbers"), CARD)
def test_the_examples_show_the_published_numbers(
    bend: Bend, angles: tuple[int, ...], tau: float, numbers: dict[str, Any]
) -> None:
    bend.example(angles)
    bend.view.page.click(f'[data-tau="{tau:g}"]')
    shown = bend.read()
    assert shown["angles"] == list(angles)
    for name, number in numbers.items():
        assert_allclose(shown[name], number, err_msg=name, **EXACT)
    assert shown["active"] == [mu > 0 for mu in numbers["mu"]]
    assert_computed(shown)


def test_it_opens_with_one_client_left_behind_and_names_who_bends_the_step(
    chromium: Any, page: Path
) -> None:
    with opened(chromium, page) as view:
        shown = Bend(view).read()
        assert (tuple(shown["angles"]), shown["tau"]) == (PAGE, 0.25)
        assert shown["says"] == "Client 3 bends the step."
        assert view.page.locator('[data-client="3"] [data-cell="mu"]').inner_text() == "0.3559"


def test_handles_dragged_anywhere_show_what_the_method_computes(bend: Bend) -> None:
    feasible = []
    for seed in range(12):
        rng = stream(seed, "handles")
        bend.tau(round(float(rng.uniform(0.01, 1)) * 200) / 200)
        angles = 18 * rng.choice(20, 3, replace=False) + rng.uniform(-2, 2, 3)  # none on another
        for client, angle in enumerate(angles % 360, start=1):
            before = bend.read()["angles"]
            bend.view.drag(bend.handle(client), [bend.where(angle - 30), bend.where(angle)])
            after = bend.read()["angles"]
            assert abs(after[client - 1] - angle) < 1
            assert after[: client - 1] + after[client:] == before[: client - 1] + before[client:]
        assert_computed(bend.read())
        feasible.append(bend.read()["feasible"])
    assert 2 <= sum(feasible) <= 10


def test_a_finger_turns_a_handle(chromium: Any, page: Path) -> None:
    with opened(chromium, page, phone=True) as view:
        bend = Bend(view)
        for client, angle in ((2, 100), (3, 250)):
            bend.handle(client).scroll_into_view_if_needed()
            view.swipe(bend.handle(client), [bend.where(angle - 20), bend.where(angle)])
            assert abs(bend.read()["angles"][client - 1] - angle) < 2
            assert_computed(bend.read())
        assert bend.read()["angles"][0] == PAGE[0]


def test_arrow_keys_turn_a_handle_by_one_degree_and_with_shift_by_five(bend: Bend) -> None:
    handle, angles = bend.handle(1), []
    for key in ("ArrowRight", "ArrowUp", "ArrowDown", "Shift+ArrowLeft", *["Shift+ArrowLeft"] * 2):
        handle.press(key)
        angles.append(bend.read()["angles"][0])
        assert_computed(bend.read())
    assert angles == [11, 12, 11, 6, 1, 356]
    assert handle.get_attribute("aria-valuenow") == "356"


def test_the_slider_moves_the_numbers(bend: Bend) -> None:
    slider = bend.view.page.locator("#fk-bend-tau")
    before = bend.read()
    slider.press("ArrowRight")
    after = bend.read()
    assert (before["tau"], after["tau"]) == (0.25, 0.255)
    assert after["mu"][2] == pytest.approx(before["mu"][2] + 0.005, abs=1e-9)
    assert_computed(after)
    slider.press("End")
    assert bend.read()["tau"] == 1


@pytest.mark.parametrize("angles", [PAGE, AGREEING, TWO])
def test_the_ablations_are_those_of_the_method(bend: Bend, angles: tuple[int, ...]) -> None:
    bend.example(angles)
    for normalise, primary in ((False, True), (True, False), (False, False)):
        bend.option("normalise", normalise)
        bend.option("primary", primary)
        assert_computed(bend.read(), normalise=normalise, primary=primary)


def test_opposed_clients_leave_fedavgs_step_and_at_tau_zero_a_way_between(bend: Bend) -> None:
    bend.example(TWO)
    for _ in range(10):
        bend.handle(1).press("Shift+ArrowLeft")
    shown = bend.read()
    assert shown["angles"][:2] == [330, 150]
    assert not shown["feasible"]
    assert shown["says"] == "Infeasible: FedPCD takes FedAvg\u2019s step."
    assert shown["turn"] == 0
    assert_computed(shown)
    bend.tau(0)
    assert_computed(bend.read())
    assert bend.read()["feasible"]


def test_where_any_move_harms_somebody_tau_zero_stands_still(bend: Bend) -> None:
    bend.example(TWO)
    for _ in range(17):
        bend.handle(3).press("Shift+ArrowRight")
    assert not bend.read()["feasible"]
    bend.tau(0)
    shown = bend.read()
    assert shown["feasible"]
    assert shown["step"] == 0
    assert shown["length"] == pytest.approx(0, abs=1e-12)
    assert (shown["angle"], shown["turn"], shown["cosine"]) == (None, None, [None] * 3)
    units = compass(*shown["angles"])
    step = FedPCD(tau=0.0).aggregate(cohort_of(units), History(), layout_of_size(2))
    assert norm(step.direction) == 0


# ---------------------------------------------------------------- who is remembered


@dataclass(frozen=True)
class Memory:
    """Panel B on an open page."""

    view: View

    def set(self, **inputs: float) -> None:
        for name, value in inputs.items():
            self.view.page.locator(f"[data-input={name}]").fill(f"{value:g}")

    def act(self, name: str, times: int = 1) -> None:
        button = self.view.page.locator(f"[data-act={name}]")
        button.evaluate("(button, times) => { while (times--) button.click(); }", times)

    def fact(self, name: str) -> float:
        node = self.view.page.locator(f"#fk-memory [data-fact={name}]")
        return float(node.get_attribute("data-value") or "nan")

    def held(self) -> list[int]:
        """How many were held after round 0, 1, ..."""
        text = self.view.page.locator("#fk-memory").get_attribute("data-held")
        return [int(number) for number in (text or "").split()]

    def dots(self, *states: str) -> int:
        return sum(self.view.page.locator(f"#fk-memory .fk-picture > svg [data-state={state}]")
                   .count() for state in states)  # fmt: skip


@contextmanager
def remembering(chromium: Any, page: Path, **how: Any) -> Iterator[Memory]:
    with opened(chromium, page, **how) as view:
        yield Memory(view)


def test_the_number_expected_is_the_formula(chromium: Any, page: Path) -> None:
    published = {0: 10, 1: 19, 2: 27.1, 3: 34.39, 6: 52.17031, 10: 68.618940}
    with remembering(chromium, page) as memory:
        for history, count in published.items():
            memory.set(history=history)
            assert memory.fact("expected") == pytest.approx(count, abs=1e-5)
        for clients, share, history in ((30, 0.1, 10), (200, 1, 0), (10, 0.01, 20), (75, 0.29, 5)):
            memory.set(clients=clients, share=share, history=history)
            cohort = max(1, int(share * clients + 1e-9))
            count = clients * (1 - (1 - cohort / clients) ** (history + 1))
            assert memory.fact("cohort") == cohort
            assert memory.fact("expected") == pytest.approx(count, abs=1e-9)


def test_whoever_is_held_was_drawn_within_the_window(chromium: Any, page: Path) -> None:
    with remembering(chromium, page) as memory:
        for clients, share, history in ((100, 0.1, 10), (200, 0.05, 3), (10, 1, 2), (40, 0.2, 0)):
            memory.set(clients=clients, share=share, history=history)
            memory.act("step", 4)
            held, cohort = memory.held(), int(memory.fact("cohort"))
            full = min(clients, cohort * (history + 1))
            assert held[:2] == [0, cohort]
            assert all(cohort <= number <= full for number in held[1:])
            assert all(after - before <= cohort for before, after in itertools.pairwise(held))
            assert memory.dots("now") == cohort
            assert memory.dots("now", "held") == held[-1] == memory.fact("held")
            assert memory.dots("now", "held", "lost", "never") == clients


def test_over_many_rounds_as_many_are_held_as_expected(chromium: Any, page: Path) -> None:
    with remembering(chromium, page) as memory:
        settled = []
        for seed in range(1, 31):
            memory.set(seed=seed)
            settled.append(memory.held()[11:])
        assert np.mean(settled) == pytest.approx(memory.fact("expected"), abs=1.0)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    chromium: Any, page: Path
) -> None:
    with remembering(chromium, page) as memory:
        memory.act("step", 5)
        first, place = memory.held(), memory.view.page.locator("#fk-memory svg").first.inner_html()
        memory.set(seed=2)
        assert memory.held() != first
        memory.set(seed=1)
        assert memory.held() == first
        assert memory.view.page.locator("#fk-memory svg").first.inner_html() == place
        memory.act("reset")
        assert memory.held() == [0]
        memory.act("step", len(first) - 1)
        assert memory.held() == first
    with remembering(chromium, page) as memory:
        memory.act("step", 5)
        assert memory.held() == first


def test_a_seed_that_is_none_leaves_the_run_as_it_was(chromium: Any, page: Path) -> None:
    with remembering(chromium, page) as memory:
        before = memory.held()
        for seed in ("", "-1", "1.5"):
            memory.view.page.locator("[data-input=seed]").fill(seed)
            assert memory.held() == before
        memory.view.assert_quiet()


def test_it_plays_only_when_asked_and_until_paused(chromium: Any, page: Path) -> None:
    with remembering(chromium, page) as memory:
        start = memory.fact("round")
        memory.view.page.wait_for_timeout(400)
        assert memory.fact("round") == start
        memory.act("play")
        memory.view.page.wait_for_function(
            f"document.querySelector('#fk-memory [data-fact=round]').dataset.value > {start + 1}"
        )
        assert memory.view.page.locator("[data-act=play]").inner_text() == "pause"
        memory.act("play")
        paused = memory.fact("round")
        memory.view.page.wait_for_timeout(400)
        assert memory.fact("round") == paused


# ---------------------------------------------------------------- on every page


OVERFULL = """() => [...document.querySelectorAll(".fk-table td, .fk-facts dd")].filter((cell) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  const [inner, outer] = [text, cell].map((each) => each.getBoundingClientRect());
  return inner.left < outer.left || inner.right > outer.right;
}).map((cell) => cell.textContent)"""
LOOKS = [{}, {"dark": True, "still": True}, {"phone": True}, {"phone": True, "dark": True}]


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_the_panels_are_quiet_fetch_nothing_and_fit(
    chromium: Any, page: Path, look: dict[str, bool]
) -> None:
    with opened(chromium, page, **look) as view:
        bend, memory = Bend(view), Memory(view)
        for example, tau in itertools.product((PAGE, TWO), (0, 0.5, 1)):
            bend.example(example)
            bend.tau(tau)
            view.assert_fits()
            assert view.page.evaluate(OVERFULL) == []
        bend.handle(3).press("Shift+ArrowRight")
        for clients, history in ((10, 0), (200, 20)):
            memory.set(clients=clients, history=history)
            memory.act("step")
            view.assert_fits()
        view.assert_quiet()


def test_every_control_has_a_name(chromium: Any, page: Path) -> None:
    with opened(chromium, page) as view:
        for role, count in (("slider", 7), ("button", 10), ("checkbox", 2), ("spinbutton", 1)):
            assert view.page.get_by_role(role).count() == count
            assert view.page.get_by_role(role, name=re.compile(r"\w")).count() == count


def test_the_script_leaves_a_page_without_panels_alone(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "bare.html"
    path.write_text(document("<p>Nothing here.</p>"))
    with opened(chromium, path) as view:
        view.assert_quiet()
        before = set(view.page.evaluate("Object.keys(window)"))
        view.page.add_script_tag(content=(ASSETS / "panels.js").read_text())
        assert set(view.page.evaluate("Object.keys(window)")) == before
        assert view.page.locator("body > p").inner_text() == "Nothing here."


# ---------------------------------------------------------------- the harness itself


def test_whatever_a_page_says_or_fetches_or_lets_stick_out_is_noticed(
    chromium: Any, tmp_path: Path
) -> None:
    path = tmp_path / "loud.html"
    path.write_text(
        '<div style="width: 3000px">wide</div><script>console.info("hello"); '
        'new Image().src = "missing.png"; fetch("http://127.0.0.1:9/");'
        'setTimeout(() => { throw Error("oops") })</script>'
    )
    with opened(chromium, path) as view:
        view.page.wait_for_timeout(200)
        assert "hello" in view.console
        assert "oops" in view.errors
        assert {url.rsplit("/", 1)[1] for url in view.requests} == {"missing.png", ""}
        with pytest.raises(AssertionError):
            view.assert_quiet()
        with pytest.raises(AssertionError):
            view.assert_fits()
