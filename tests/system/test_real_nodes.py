"""Runs on real nodes: over TLS, with authenticated clients, through the proxy, and with kills."""

import re
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from deploy.engines.fab import app_folder
from deploy.federation.superlink_client import SuperLinkClient
from deploy.system.flower_env import QUIET
from tests.folders import copy_repository
from tests.system.conftest import BIN, pairs
from tests.system.federation import wait_for
from tests.system.fleet import PATIENCE, SMALL, Fleet, fleet, need_nginx
from tests.system.odd import Odd

NAMES = ["0", "1", "2"]
TRAVEL_TWICE = {"fedpcd": (), "fedpvr": ("classifier.",)}  # parts of the model, by method
METHODS = pytest.mark.parametrize("method", ["fedpcd", "fedpvr"])
MB = 1_000_000
BIG = 300 * MB
STOP_SECONDS = 60.0  # in which clients end their work for a stopped run


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Odd:
    """Orders to clients to behave oddly; none so far."""
    return Odd(tmp_path_factory.mktemp("orders") / "odd")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, odd: Odd) -> Iterator[Fleet]:
    """Start a federation and let three clients join. At the end Ctrl-C ends all in order."""
    need_nginx()
    with fleet(tmp_path_factory.mktemp("fleet") / "f") as up:
        up.enroll(*NAMES)
        up.join(*NAMES, extra=odd.env())
        yield up
        for process in (*up.joined.values(), up.server):
            process.popen.send_signal(signal.SIGINT)
        for process in (*up.joined.values(), up.server):
            assert process.ended() == 0, process.text
            assert "nothing is left running" in process.text
        assert up.living() == []


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository with files that users keep there."""
    folder = tmp_path_factory.mktemp("project") / "project"
    copy_repository(folder)
    for name in ("venv/lib/big.py", "data/cifar/batch.npz", "runs/old/weights.npz"):
        path = folder / name
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:  # sparse
            file.truncate(BIG)
    for number in range(100):
        path = folder / f"data/photos/me/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x89PNG")
    return folder


def link(made: Fleet) -> SuperLinkClient:
    """Return the operator's connection."""
    return SuperLinkClient(f"127.0.0.1:{made.port}", made.ca)


def newest_status(made: Fleet) -> str:
    """Return the SuperLink's status of the newest run."""
    runs = link(made).flwr("ls")["runs"]
    return str(max(runs, key=lambda run: run["pending-at"])["status"])


def on_the_wire(made: Fleet) -> dict[str, int]:
    """Return the bytes of objects through the proxy so far, down to the clients and up."""
    text = (made.folder / "state/logs/access.log").read_text()
    line = r'"POST /v1/fleet/{}" 200 in=(\d+) out=(\d+)'
    pulls, pushes = (re.findall(line.format(name), text) for name in ("pull-object", "push-object"))
    return {"down": sum(int(out) for _, out in pulls), "up": sum(int(in_) for in_, _ in pushes)}


@pytest.fixture(scope="module")
def crossed(made: Fleet) -> Callable[[str], dict[str, int]]:
    """Return a function that runs a method once and returns the bytes through the proxy."""

    @cache
    def run(method: str) -> dict[str, int]:
        before = on_the_wire(made)
        made.run(method, method, {})
        return {way: sum_ - before[way] for way, sum_ in on_the_wire(made).items()}

    return run


@pytest.mark.slow
def test_a_run_whose_processes_are_killed_ends_with_the_weights_of_a_simulation(
    made: Fleet, odd: Odd
) -> None:
    """It ends by itself, and does the work since the last checkpoint again."""
    process = made.start_run("fedpvr", "killed", {"server.checkpoint-every": 2})
    made.reaches("killed", 2)
    made.find("flwr-serverapp").kill()
    killed = time.time()
    assert made.reaches("killed", 1, since=killed).round == 1, "no checkpoint: from the start"

    made.reaches("killed", 2, since=killed)
    made.find("flower-superlink").kill()

    since = made.reaches("killed", 3).since
    odd.give({"1": ["waits"]})
    made.find("flower-supernode", "0").kill()
    wait_for(lambda: odd.has_begun("1", since), lambda: made.tails, PATIENCE)
    made.find("flwr-clientapp", "1", since).kill()
    expected = made.reference("fedpvr", "simulated", {}, "simulation")  # while they are missed

    assert process.ended(PATIENCE) == 0, process.text + made.tails
    outcome = made.outcome("killed")
    assert outcome is not None
    assert (outcome.status, outcome.rounds) == ("completed", 3)
    records = made.records("killed")
    assert [record.round for record in records] == [1, 2, 3]
    assert [record.dropped for record in records] == [{}] * 3
    assert [record.replied for record in records] == [NAMES] * 3
    again = {*records[2].again}
    assert {"1"} <= again <= {"0", "1"}, again  # 0 may have answered before it was killed
    assert made.weights("killed") == expected


@pytest.mark.slow
@METHODS
def test_nodes_give_the_weights_of_the_inline_engine_and_send_the_bytes_of_the_records(
    method: str, made: Fleet, crossed: Callable[[str], dict[str, int]]
) -> None:
    """Each way crosses the model once, for FedPVR with its classifier's variates.

    A run of another project sent far more: https://github.com/flwrlabs/flower/issues/5273.
    """
    bytes_ = crossed(method)
    assert made.weights(method) == made.reference(method, f"{method}-inline", {}, "inline")

    records = made.records(method)
    assert [record.round for record in records] == [1, 2, 3]
    for record in records:
        assert record.cohort == record.replied == NAMES
        assert (record.dropped, record.again, record.late, record.void) == ({}, [], {}, None)
        for values in (record.arrived, record.worked, record.bytes_down, record.bytes_up):
            assert sorted(values) == NAMES
        assert all(0 < record.worked[c]["work"] < record.arrived[c] for c in NAMES)
        assert all(0 < record.worked[c]["start"] < record.arrived[c] for c in NAMES)
    model, extra = sizes(made, method, "", TRAVEL_TWICE[method])
    down = sum(sum(record.bytes_down.values()) for record in records)
    up = sum(sum(record.bytes_up.values()) for record in records)
    orders = len(NAMES) * len(records)
    assert down == pytest.approx(orders * (model + extra), rel=0.01)
    assert up == pytest.approx(orders * (model + extra), rel=0.01)
    evaluation = len(NAMES) * model
    assert bytes_["down"] == pytest.approx(down + evaluation, rel=0.05)
    assert bytes_["up"] == pytest.approx(up, rel=0.05)


def sizes(made: Fleet, name: str, *prefixes: str | tuple[str, ...]) -> list[int]:
    """Return the bytes of the parts of a run's final model with each prefix of names."""
    with np.load(made.run_dir(name) / "weights.npz") as file:
        bytes_ = {key: file[key].nbytes for key in file.files}
    return [sum(n for key, n in bytes_.items() if key.startswith(prefix)) for prefix in prefixes]


@pytest.mark.slow
def test_status_and_clients_show_the_clients_by_name(
    made: Fleet, crossed: Callable[[str], dict[str, int]]
) -> None:
    crossed("fedpvr")
    output = made.succeed("status", "fedpvr")
    assert output.startswith("fedpvr: completed after 3 rounds")
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines()[2:] if line.strip()}
    assert [rows[name][:2] for name in NAMES] == [["round", "3"]] * 3
    assert all(float(rows[name][2]) > 0 for name in NAMES)
    clients = made.succeed("clients")
    assert re.findall(r"│ (\w+) +│ (\w+)", clients)[:3] == [(name, "online") for name in NAMES]


@pytest.mark.slow
def test_ctrl_c_stops_a_run_and_kill_9_of_its_command_does_not(made: Fleet) -> None:
    """A run that is under way is not started a second time."""
    settings = {"participation": 0.34, "rounds": 2}
    process = made.start_run("fedpvr", "left", settings)
    made.done("left", 1)
    process.popen.send_signal(signal.SIGINT)
    assert process.ended(PATIENCE) == 130, process.text + made.tails
    assert "stopped; nothing is left running" in process.text
    outcome = made.outcome("left")
    assert outcome is not None
    assert (outcome.status, outcome.message) == ("stopped", "stopped by the user")
    assert newest_status(made) == "finished:stopped"
    wait_for(lambda: not made.all("flwr-serverapp"), lambda: made.tails, 15)

    again = time.time()
    process = made.start_run("fedpvr", "left", settings, "--resume")
    wait_for(lambda: made.outcome("left") is None, lambda: made.tails)
    made.reaches("left", 2, since=again)
    process.kill()
    done = made.fedkeel(*made.arguments("fedpvr", "left", settings), "--resume")
    assert done.code == 2
    assert "is being served already" in done.err
    assert "fedkeel status left --follow" in done.err
    outcome = wait_for(lambda: made.outcome("left"), lambda: made.tails, PATIENCE)
    assert outcome.status == "completed"
    assert made.succeed("status", "left").startswith("left: completed after 2 rounds")
    assert [record.round for record in made.records("left")] == [1, 2]
    assert made.weights("left") == made.reference("fedpvr", "left-inline", settings, "inline")


@pytest.mark.slow
def test_clients_end_their_work_for_a_stopped_run_and_resume_works_at_once(
    made: Fleet, odd: Odd
) -> None:
    """They trained on until the round's timeout, an hour by default, and --resume missed them.

    The same happened in https://github.com/NVIDIA/NVFlare/issues/3830.
    """
    settings = {"rounds": 2, "server.round-timeout": 3600}
    odd.give({"1": ["", "hangs"]})
    process = made.start_run("fedpvr", "ended", settings)
    since = made.reaches("ended", 2).since
    wait_for(lambda: odd.has_begun("1", since), lambda: made.tails, PATIENCE)
    working = made.find("flwr-clientapp", "1", since)
    nodes = {name: made.find("flower-supernode", name) for name in NAMES}
    process.popen.send_signal(signal.SIGINT)
    assert process.ended(PATIENCE) == 130, process.text + made.tails
    stopped = time.time()
    wait_for(lambda: not working.is_running(), lambda: made.tails, STOP_SECONDS)
    assert time.time() - stopped < STOP_SECONDS
    assert all(nodes[name].is_running() for name in ("0", "2")), "idle nodes go on"
    log = (made.folder / "keys/1.node/node.log").read_text()
    assert "has ended" in made.joined["1"].text, log

    odd.give({})
    made.run("fedpvr", "ended", settings, "--resume")
    assert [record.dropped for record in made.records("ended")] == [{}, {}]
    assert made.weights("ended") == made.reference("fedpvr", "ended-inline", settings, "inline")


@pytest.mark.slow
def test_plain_flwr_run_trains_and_flwr_stop_is_recorded_as_a_stop(
    made: Fleet, repository: Path
) -> None:
    """The documented settings suffice, and the virtual environment and data are not sent."""
    home = made.folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "link"\n[superlink.link]\naddress = "127.0.0.1:{made.port}"\n'
        f'root-certificates = "{made.ca}"\n'
    )
    given = " ".join(pairs({**SMALL, "rounds": 30, "method": "fedpvr", "name": "flwr"})[1::2])
    extra = {**QUIET, "FLWR_HOME": str(home)}
    flwr = BIN / "flwr"
    done = made.call(flwr, "run", repository, "link", "--run-config", given, extra=extra)
    assert done.code == 0, done.out + done.err
    first = made.done("flwr", 1)
    assert first.replied == NAMES
    number = re.search(r"Successfully started run (\d+)", done.out + done.err)
    assert number is not None, done.out
    assert made.call(flwr, "stop", number[1], "link", extra=extra).code == 0
    outcome = wait_for(lambda: made.outcome("flwr"), lambda: made.tails, PATIENCE)
    assert outcome.status == "stopped"


def test_bundles_hold_the_app_and_no_environment_or_data(repository: Path) -> None:
    """Of `flwr run .` and of `fedkeel run`; see https://github.com/flwrlabs/flower/issues/5273."""
    with tempfile.TemporaryDirectory() as home:
        for folder in (repository, app_folder(Path(home))):
            subprocess.run(
                [BIN / "flwr", "build"], cwd=folder, check=True, env={**QUIET, "FLWR_HOME": home}
            )
            [bundle] = folder.glob("*.fab")
            assert bundle.stat().st_size < MB
            with zipfile.ZipFile(bundle) as archive:
                names = {name for name in archive.namelist() if "/" in name}
            tops = {name.partition("/")[0] for name in names}
            assert tops == {".info", "client_app", "common", "server_app"}
            assert not [name for name in names if name.endswith((".png", ".npz"))]
