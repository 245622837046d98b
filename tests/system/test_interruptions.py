"""Stopped runs leave nothing behind and can be resumed."""

import signal
import time

import pytest

from tests.system.conftest import SMALL, Place, pairs, wait_for

LONG = {**SMALL, "method": "fedpcd", "rounds": 1000, "train.epochs": 30}


@pytest.mark.parametrize(
    ("command", "number", "run"),
    [
        ("run", signal.SIGINT, "stopped"),
        pytest.param("run", signal.SIGTERM, "stopped", marks=pytest.mark.slow),
        pytest.param("compare", signal.SIGINT, "stopped/fedpcd", marks=pytest.mark.slow),
    ],
)
def test_an_inline_run_stops_at_a_signal_and_leaves_nothing(
    command: str, number: signal.Signals, run: str, place: Place
) -> None:
    arguments = (command, "fedpcd", *pairs(LONG), "--engine", "inline", "--name", "stopped")
    with place.started("fedkeel", *arguments) as process:
        wait_for(lambda: place.records(run))
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines() == ["fedkeel: stopped; nothing is left running"]
    assert "Traceback" not in out + err
    outcome = place.outcome(run)
    assert outcome is not None
    assert outcome.status == "stopped"
    assert outcome.rounds == place.records(run)[-1].round
    place.assert_tidy()


@pytest.mark.slow
def test_resume_of_a_stopped_and_killed_simulation_gives_the_weights_of_a_straight_run(
    place: Place,
) -> None:
    settings = pairs({**LONG, "rounds": 8})
    command = ("fedkeel", "run", *settings, "--workers", "2", "--name", "cut")

    with place.started(*command) as process:
        wait_for(lambda: place.records("cut"))
        wait_for(place.training)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "nothing is left running" in err
    assert "Traceback" not in out + err
    outcome = place.outcome("cut")
    done = place.records("cut")[-1].round
    assert outcome is not None
    assert (outcome.status, outcome.rounds) == ("stopped", done)
    place.assert_tidy()

    with place.started(*command, "--resume") as process:
        wait_for(lambda: place.records("cut")[-1].round > done)
        wait_for(place.training)
        process.kill()
        process.wait()
        begin = time.monotonic()
        wait_for(lambda: place.processes() == [], 15)
        assert time.monotonic() - begin < 15
        wait_for(lambda: not any(name.startswith("fk-") for name in place.left_over()), 5)
    assert place.outcome("cut") is None

    last = place.fedkeel("run", *settings, "--engine", "inline", "--name", "cut", "--resume")
    straight = place.fedkeel("run", *settings, "--engine", "inline", "--name", "straight")
    assert last.returncode == straight.returncode == 0, last.stderr
    assert [record.round for record in place.records("cut")] == list(range(1, 9))
    assert all(record.dropped == {} for record in place.records("cut"))
    assert place.weights("cut") == place.weights("straight")
    outcome = place.outcome("cut")
    assert outcome is not None
    assert outcome.status == "completed"


@pytest.mark.slow
def test_a_simulation_stops_at_ctrl_c_while_ray_starts(place: Place) -> None:
    command = ("fedkeel", "run", *pairs(LONG), "--name", "early")
    with place.started(*command) as process:
        wait_for(lambda: place.processes("raylet"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert place.records("early") == []
    place.assert_tidy()


@pytest.mark.slow
def test_a_comparison_on_ray_stops_at_sigterm_with_all_its_processes(place: Place) -> None:
    settings = pairs(LONG)
    command = ("fedkeel", "compare", "fedavg", "fedpcd", *settings, "--workers", "2")
    with place.started(*command, "--name", "both") as process:
        wait_for(lambda: place.records("both/fedavg"))
        assert place.processes("raylet")  # so its absence below means something
        assert place.processes("gcs_server")
        wait_for(place.training)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 130
    outcome = place.outcome("both/fedavg")
    assert outcome is not None
    assert outcome.status == "stopped"
    assert not place.run_dir("both/fedpcd").exists()
    place.assert_tidy()
