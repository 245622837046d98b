"""The parts of the engines: inline grid, simulated client, and keeping track of processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.run import Run

from deploy.engines import ENGINES, ignored_variable_warning, simulation
from deploy.engines.inline import FIRST_NODE, InlineGrid
from deploy.engines.simulation import (
    MARK,
    SimulatedClientApp,
    SimulationJob,
    clear_away,
    family,
    short_temp,
)
from server_app.round.error_reasons import reason_of
from tests.processes import lives

pytestmark = pytest.mark.usefixtures("flower_identity")


class Echo(ClientApp):
    """Answers with its partition and what its run config says; odd partitions fail."""

    def __call__(self, message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        if partition % 2:
            raise RuntimeError(f"partition {partition} is odd")
        config = ConfigRecord({"partition": partition, "lr": context.run_config["train.lr"]})
        return Message(RecordDict({"config": config}), reply_to=message)


@contextmanager
def grid_of(nodes: int, workers: int = 2) -> Iterator[InlineGrid]:
    grid = InlineGrid(Echo(), nodes, {"train.lr": 0.5}, workers)
    try:
        yield grid
    finally:
        grid.close()


def orders(*nodes: int) -> list[Message]:
    return [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]


def test_there_are_three_engines_with_simulation_first() -> None:
    assert list(ENGINES) == ["simulation", "inline", "superlink"]


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_engine_that_would_join_a_ray_cluster_says_that_it_does_not(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("", None, "auto"):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if address is not None:
            monkeypatch.setenv("RAY_ADDRESS", address)
        assert bool(ignored_variable_warning(engine)) == (
            engine == "simulation" and address == "auto"
        )


class TestInlineGrid:
    """A Flower grid in this process."""

    def test_every_node_has_its_own_partition_and_the_run_config(self) -> None:
        with grid_of(5) as grid:
            nodes = list(grid.get_node_ids())
            replies = list(grid.send_and_receive(orders(*nodes)))
            good = {
                reply.metadata.src_node_id: reply.content["config"]
                for reply in replies
                if not reply.has_error()
            }
        assert len(nodes) == len(set(nodes)) == 5
        assert {node: record["partition"] for node, record in good.items()} == {
            nodes[0]: 0,
            nodes[2]: 2,
            nodes[4]: 4,
        }
        assert all(record["lr"] == 0.5 for record in good.values())

    def test_a_client_that_raises_is_an_error_reply(self) -> None:
        with grid_of(2) as grid:
            [reply] = grid.send_and_receive(orders(FIRST_NODE + 1))
        assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        assert reason_of(reply.error).endswith("RuntimeError: partition 1 is odd")

    def test_replies_are_pulled_by_the_id_of_their_message_and_once(self) -> None:
        with grid_of(3) as grid:
            ids = list(grid.push_messages(orders(FIRST_NODE, FIRST_NODE + 2)))
            [second] = grid.pull_messages([ids[1]])
            assert second.metadata.reply_to_message_id == ids[1]
            assert second.metadata.src_node_id == FIRST_NODE + 2
            assert len(list(grid.pull_messages(ids))) == 1
            assert list(grid.pull_messages(ids)) == []

    def test_a_node_that_is_not_there_never_replies(self) -> None:
        with grid_of(1) as grid:
            assert len(list(grid.send_and_receive(orders(FIRST_NODE, 7)))) == 1

    def test_when_it_is_stopped_nobody_starts_and_the_server_hears_of_it(self) -> None:
        with grid_of(2) as grid:
            grid.stop.set()
            with pytest.raises(KeyboardInterrupt, match="stopped by the user"):
                grid.push_messages(orders(FIRST_NODE))

    def test_it_has_the_rest_of_flowers_grid(self) -> None:
        with grid_of(1) as grid:
            run = Run.create_empty(run_id=5)
            grid.set_run(run)
            assert grid.run is run
            message = grid.create_message(RecordDict(), MessageType.TRAIN, FIRST_NODE, "1")
            assert len(list(grid.send_and_receive([message], timeout=1))) == 1


class TestSimulatedClient:
    """What Ray's workers run."""

    def order(self, name: str) -> Message:
        [message] = orders(FIRST_NODE)
        message.metadata.__dict__["_message_id"] = name
        return message

    def context(self, partition: int) -> Context:
        config: Any = {"partition-id": partition, "num-partitions": 2}
        return Context(1, FIRST_NODE, config, RecordDict(), {})

    def test_it_gives_its_client_the_run_config(self, tmp_path: Path) -> None:
        app = SimulatedClientApp(Echo, {"train.lr": 0.25}, tmp_path)
        reply = app(self.order("m1"), self.context(0))
        assert reply.content["config"]["lr"] == 0.25

    def test_it_may_answer_the_same_node_again_and_again(self, tmp_path: Path) -> None:
        app = SimulatedClientApp(Echo, {"train.lr": 0.25}, tmp_path)
        for name in ("m1", "m2", "m2"):
            assert not app(self.order(name), self.context(0)).has_error()
        assert list(tmp_path.iterdir()) == []

    def test_a_client_that_raises_is_an_error_reply(self, tmp_path: Path) -> None:
        app = SimulatedClientApp(Echo, {}, tmp_path)
        for _ in range(2):
            reply = app(self.order("m1"), self.context(1))
            assert reason_of(reply.error).endswith("RuntimeError: partition 1 is odd")

    def test_what_a_worker_died_of_is_not_tried_again(self, tmp_path: Path) -> None:
        (tmp_path / "m1").touch()  # as the dead worker left it
        app = SimulatedClientApp(Echo, {"train.lr": 0.25}, tmp_path)
        reply = app(self.order("m1"), self.context(0))
        assert "worker process died" in reason_of(reply.error)
        assert not app(self.order("m2"), self.context(0)).has_error()


NOWHERE = "/nonexistent"
SLEEPER = "import time; time.sleep(60)"
# Starts a process that lives on when this one has ended.
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])"


class TestProcesses:
    """Finding and ending what a job started, wherever it hangs in the process tree."""

    def start(self, mark: str, code: str = SLEEPER) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, MARK: mark})

    def test_a_job_is_known_by_its_mark(self) -> None:
        one, other = f"{os.getpid()}-one", f"{os.getpid()}-other"
        with self.start(one) as ours, self.start(other) as theirs:
            try:
                assert [process.pid for process in family(one, NOWHERE)] == [ours.pid]
                clear_away(one, NOWHERE)
                assert ours.wait() == -9
                assert family(one, NOWHERE) == set()
                assert [process.pid for process in family(other, NOWHERE)] == [theirs.pid]
            finally:
                ours.kill()
                theirs.kill()

    def test_a_process_without_the_mark_is_known_by_the_folder_it_works_in(
        self, tmp_path: Path
    ) -> None:
        """As Ray's agents: a new title has overwritten their environment."""
        home = tmp_path / "home"
        (home / "session").mkdir(parents=True)
        run = [sys.executable, "-c", SLEEPER]
        with (
            subprocess.Popen(run, cwd=home / "session") as ours,
            subprocess.Popen(run, cwd=tmp_path) as theirs,
        ):
            try:
                clear_away("nobody's", str(home))
                assert ours.wait(10) == -9
                assert theirs.poll() is None
                assert not home.exists()
            finally:
                ours.kill()
                theirs.kill()

    def test_orphans_are_found(self) -> None:
        mark = f"{os.getpid()}-orphan"
        with self.start(mark, PARENT) as parent:
            parent.wait()
        [orphan] = family(mark, NOWHERE)
        clear_away(mark, NOWHERE)
        assert not lives(orphan.pid)

    def test_whoever_ends_by_itself_is_given_time(self) -> None:
        mark = f"{os.getpid()}-patient"
        with self.start(mark, "import time; time.sleep(0.5)") as process:
            begin = time.monotonic()
            clear_away(mark, NOWHERE, grace=30)
            assert time.monotonic() - begin < 20
            assert process.wait() == 0


class TestTemporaryFolder:
    """Ray makes sockets in it, and the path of a socket may have about 100 bytes."""

    def test_the_usual_place_is_used_when_it_is_short(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.gettempdir", lambda: "/var/tmp")
        assert short_temp() == "/var/tmp"

    def test_a_long_place_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        long = "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"  # macOS
        monkeypatch.setattr("tempfile.gettempdir", lambda: long)
        assert short_temp() == "/tmp"

    def test_sockets_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        session = "/fk-12345678/ray/session_2026-01-01_00-00-00_000000_4194304"
        assert simulation.LONGEST_TEMP + len(session + "/sockets/plasma_store") <= 103


@pytest.mark.parametrize(
    ("code", "logged", "said"),
    [
        (-9, "", "was killed by signal 9"),
        (1, "one\n\x1b[91mERROR\x1b[0m: two\n\n", "ended with code 1 (ERROR: two)"),
    ],
)
def test_an_engine_that_fell_over_is_explained_by_its_log(
    code: int, logged: str, said: str, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(logged)
    job = object.__new__(SimulationJob)
    job.log, job.process = log, SimpleNamespace(returncode=code)  # type: ignore[assignment]
    assert job.why_it_ended() == f"the engine {said}; see {log}"
