"""Runs on real nodes: over TLS, with authenticated clients, through the proxy, and undisturbed by
whatever is killed."""

import re
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deploy.engines.fab import app_folder
from deploy.federation.superlink_client import Link
from deploy.system.flower_env import QUIET
from tests.system.conftest import BIN, pairs
from tests.system.federation import wait_for
from tests.system.fleet import PATIENCE, SMALL, Fleet, fleet, need_nginx
from tests.system.odd import Odd

SOURCE = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "runs", "venv")
NAMES = ["0", "1", "2"]
METHODS = {"fedpcd": (), "fedpvr": ("classifier.",)}  # parts of the model that travel twice
MB = 1_000_000
BIG = 300 * MB


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A federation of three clients, none of them there yet."""
    need_nginx()
    with fleet(tmp_path_factory.mktemp("fleet") / "f") as up:
        up.enroll(*NAMES)
        yield up


@pytest.fixture(scope="module")
def odd(made: Fleet) -> Odd:
    """What clients are made to do; nothing but to wait for their end."""
    return Odd(made.folder / "odd")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, with what people keep in such a folder."""
    folder = tmp_path_factory.mktemp("project") / "project"
    shutil.copytree(SOURCE, folder, ignore=NOT_COPIED)
    shutil.copy(SOURCE / ".gitignore", folder)
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


def simulated(made: Fleet, method: str) -> bytes:
    """The model of the same run in Flower's simulation engine, which nothing happens to."""
    name = f"{method}-simulated"
    if not made.run_dir(name).exists():
        made.reference(method, name, {}, "simulation")
    return made.weights(name)


def link(made: Fleet) -> Link:
    """The operator's connection."""
    return Link(f"127.0.0.1:{made.port}", made.ca)


def newest_status(made: Fleet) -> str:
    """What the SuperLink says of the run that was handed in last."""
    runs = link(made).flwr("ls")["runs"]
    return str(max(runs, key=lambda run: run["pending-at"])["status"])


def on_the_wire(made: Fleet) -> dict[str, int]:
    """Bytes of objects that went through the proxy so far, down to the clients and up."""
    text = (made.folder / "state/logs/access.log").read_text()
    line = r'"POST /v1/fleet/{}" 200 in=(\d+) out=(\d+)'
    pulls, pushes = (re.findall(line.format(name), text) for name in ("pull-object", "push-object"))
    return {"down": sum(int(out) for _, out in pulls), "up": sum(int(in_) for in_, _ in pushes)}


def test_whatever_is_killed_the_run_ends_with_the_bits_of_a_calm_one(made: Fleet, odd: Odd) -> None:
    """And by itself; what was done since the last checkpoint is done again."""
    made.join(*NAMES, extra=odd.env())
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
    expected = {method: simulated(made, method) for method in METHODS}  # while they are missed

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
    assert made.weights("killed") == expected["fedpvr"]


@pytest.mark.parametrize(("method", "beside"), METHODS.items())
def test_nodes_give_the_bits_of_a_simulation_and_send_what_the_records_say(
    method: str, beside: tuple[str, ...], made: Fleet
) -> None:
    """FLB-07(b) with it: once the model each way, for FedPVR the head's variates beside it."""
    before = on_the_wire(made)
    made.run(method, method, {})
    crossed = {way: sum_ - before[way] for way, sum_ in on_the_wire(made).items()}
    assert made.weights(method) == simulated(made, method)

    records = made.records(method)
    assert [record.round for record in records] == [1, 2, 3]
    for record in records:
        assert record.cohort == record.replied == NAMES
        assert (record.dropped, record.again, record.late, record.void) == ({}, [], {}, None)
        for told in (record.arrived, record.worked, record.bytes_down, record.bytes_up):
            assert sorted(told) == NAMES
        assert all(0 < record.worked[c]["work"] < record.arrived[c] for c in NAMES)
        assert all(0 < record.worked[c]["start"] < record.arrived[c] for c in NAMES)
    model, extra = sizes(made, method, "", beside)
    down = sum(sum(record.bytes_down.values()) for record in records)
    up = sum(sum(record.bytes_up.values()) for record in records)
    orders = len(NAMES) * len(records)
    assert down == pytest.approx(orders * (model + extra), rel=0.01)
    assert up == pytest.approx(orders * (model + extra), rel=0.01)
    assert crossed["down"] == pytest.approx(down + len(NAMES) * model, rel=0.05)  # the evaluation
    assert crossed["up"] == pytest.approx(up, rel=0.05)


def sizes(made: Fleet, name: str, *prefixes: str | tuple[str, ...]) -> list[int]:
    """Bytes of the parts of a run's final model whose names begin so."""
    with np.load(made.run_dir(name) / "weights.npz") as file:
        bytes_ = {key: file[key].nbytes for key in file.files}
    return [sum(n for key, n in bytes_.items() if key.startswith(prefix)) for prefix in prefixes]


def test_status_and_clients_show_the_clients_by_name(made: Fleet) -> None:
    said = made.succeed("status", "fedpvr")
    assert said.startswith("fedpvr: completed after 3 rounds")
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines()[2:] if line.strip()}
    assert [rows[name][:2] for name in NAMES] == [["round", "3"]] * 3
    assert all(float(rows[name][2]) > 0 for name in NAMES)
    clients = made.succeed("clients")
    assert re.findall(r"│ (\w+) +│ (\w+)", clients)[:3] == [(name, "online") for name in NAMES]


@pytest.mark.slow
def test_ctrl_c_stops_a_run_on_the_server_and_without_its_command_it_goes_on(made: Fleet) -> None:
    """A kill -9 of the command ends nothing; a run that is served is not started a second time."""
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
def test_plain_flwr_run_works_too_and_plain_flwr_stop_is_no_failure(
    made: Fleet, repository: Path
) -> None:
    """With nothing but what Flower and the settings document; FLB-07(a) with it."""
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


def test_neither_bundle_holds_what_lies_beside_the_app(repository: Path) -> None:
    """FLB-07(a): of `flwr run .`, and of the fedkeel command."""
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


def test_the_server_and_the_clients_leave_nothing_running(made: Fleet) -> None:
    """The last test of this file: everything is asked to end, as by Ctrl-C."""
    for process in (*made.joined.values(), made.server):
        process.popen.send_signal(signal.SIGINT)
    for process in (*made.joined.values(), made.server):
        assert process.ended() == 0, process.text
        assert "nothing is left running" in process.text
    assert made.living() == []
