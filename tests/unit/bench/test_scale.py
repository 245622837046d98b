"""Growth is told from the points, and seconds go to the part that took them."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench import memory
from bench.alone import PatienceError, alone, peak, rss, settled
from bench.memory import slope
from bench.scale import Curve, drawn, full, growth, table, watched
from bench.tiny import tiny_run
from bench.trial import BenchError
from common.layout import Layout, Tensor
from common.methods.fedpcd import FedPCD
from server_app.state.server_state import next_state


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_growth_is_the_power_between_the_last_two_points(power: float) -> None:
    sizes = (10, 100, 1000)
    assert growth(sizes, [7.0, *(3 * n**power for n in sizes[1:])]) == pytest.approx(power)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 0.0]])
def test_growth_is_not_told_from_nothing(values: list[float]) -> None:
    assert growth(range(1, 1 + len(values)), values) is None


def test_a_slope_is_that_of_the_line() -> None:
    assert slope([5.0, 7.0, 9.0, 11.0]) == pytest.approx(2.0)
    assert slope([5.0, 7.0, 7.0, 5.0]) == pytest.approx(0.0)


def test_seconds_go_to_the_function_that_took_them_and_it_is_put_back() -> None:
    module = SimpleNamespace(sleep=time.sleep)
    with watched((module, "sleep")) as seconds:
        module.sleep(0.02)
        module.sleep(0.02)
    assert seconds["sleep"] >= 0.04
    assert module.sleep is time.sleep


def test_a_point_that_took_too_long_is_no_number() -> None:
    curve = Curve("clients", lambda size: {}, (10, 100), 2)
    console = Console(width=80, record=True)
    console.print(table(curve, {10: {"start, s": 1.5}, 100: None}))
    assert "> 240 s" in console.export_text()


def test_growth_is_left_out_where_points_are() -> None:
    curve = Curve("clients", lambda size: {}, (10, 100, 1000), 2)
    rows: dict[int, dict[str, float] | None] = {n: {"start, s": 3.0 * n} for n in curve.sizes}
    console = Console(width=80, record=True)
    console.print(table(curve, rows))
    assert "n^1.0" in console.export_text()
    for left_out in curve.sizes:
        console.print(table(curve, {n: row for n, row in rows.items() if n != left_out}))
        console.print(table(curve, rows | {left_out: None}))
    assert "n^" not in console.export_text()


def test_a_point_without_a_result_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alone_but(point: object, model: str, batch: int) -> dict[str, object]:
        if (model, batch) == ("vgg11", 50):
            raise PatienceError("client_point('vgg11', 50) was not done in 600 s")
        return {"model": model, "batch": batch}

    monkeypatch.setattr(memory, "alone", alone_but)
    kept: dict[str, list[dict[str, object]]] = {}
    with pytest.raises(BenchError, match=r"client, no result: .*'vgg11', 50.* not done in 600 s"):
        memory.measure(SimpleNamespace(only=["client"], quick=False), kept, Path())
    assert [(row["model"], row["batch"]) for row in kept["client"]] == [("vgg11", 1), ("cnn", 1)]
    memory.show(SimpleNamespace(json=None), kept | {"server": []}, "something failed")


def test_many_drawn_rows_lose_by_the_mean_and_some_bind() -> None:
    state, cohort = full(30)
    _, step = next_state(state, cohort, FedPCD(), Layout((Tensor("weight", (4000,)),)), 1.0)
    assert step.report["rows"] == 330
    assert 0.1 < step.report["active"] / 330 < 0.9


def test_cohorts_are_drawn_by_address() -> None:
    first, again, other = drawn(3, 1), drawn(3, 1), drawn(3, 2)
    assert (first.updates[0].delta == again.updates[0].delta).all()
    assert (first.updates[0].delta != other.updates[0].delta).any()


def test_a_process_of_its_own_tells_what_it_holds() -> None:
    before, after, most = alone(_thirty_megabytes)
    assert 25 < most - before < 40
    assert after - before < 10


def _thirty_megabytes() -> tuple[float, float, float]:
    before = settled()
    held = b"x" * 30_000_000
    del held
    return before, rss(), peak()


def test_a_process_that_dies_or_takes_too_long_is_told_apart() -> None:
    with pytest.raises(PatienceError, match=r"sleep\(60,\) was not done in 0.1 s"):
        alone(time.sleep, 60, patience=0.1)
    with pytest.raises(BenchError, match=r"exit\(3,\) ended with code 3"):
        alone(sys.exit, 3)


def test_a_tiny_federation_runs_as_any_other() -> None:
    ran = alone(tiny_run, "fedavg", 30, 3, 2)
    assert [len(record.replied) for record in ran.records] == [3, 3]
    assert ran.records[-1].evaluation.fairness.clients == 30
    assert ran.bytes["live.json"] > 0
