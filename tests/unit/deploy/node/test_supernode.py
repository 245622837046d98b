"""A node is kept running, is told of in plain words, and leaves nothing behind.

Small scripts stand in for Flower's commands; the processes and signals are real.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DeployError
from deploy.node import supernode as nodes
from deploy.node.exit_reasons import NodeExit, exit_reason
from deploy.node.supernode import Node, node_config, run_node
from deploy.node.supernode_log import NodeLogState, read_log_line, warning_text
from tests.processes import lives

INFO, WARNING, ERROR = ("\x1b[92mINFO \x1b[0m:      ", "\x1b[93mWARNING \x1b[0m:   ",
                        "\x1b[91mERROR \x1b[0m:     ")  # fmt: skip
ROUND = f"{INFO}[RUN 83, ROUND 3]"


def told(*lines: str) -> tuple[list[str], NodeLogState]:
    """The events of lines that come a second apart."""
    heard, events = NodeLogState(), []
    for second, line in enumerate(lines):
        heard, event = read_log_line(heard, line, float(second))
        events += [event] if event else []
    return events, heard


def test_a_round_is_one_line_for_the_order_and_one_for_the_reply() -> None:
    events, heard = told(
        f"{INFO}Starting Flower SuperNode",
        f"{WARNING}EXPERIMENTAL: SuperExec authentication is experimental and may change",
        "INFO:     Uvicorn running on http://127.0.0.1:32967 (Press CTRL+C to quit)",
        f"{INFO}SuperNode ID: 17722907774446227917",
        ROUND,
        f"{INFO}Receiving: train message (ID: fc0d)",
        f"{INFO}Received successfully",
        ROUND,
        f"{INFO}Sending: train message (ID: 190a)",
        f"{INFO}Sent successfully",
        f"{INFO}[RUN 83]",
        f"{INFO}Receiving: query message (ID: fc0e)",
    )
    assert events == [
        "connected: ready for orders",
        "takes part in run 83",
        "round 3: train order received",
        "round 3: reply sent, 4.0 s after the order",
        "question received",
    ]
    assert heard.connected


def test_a_lost_connection_is_told_once_and_so_is_its_return() -> None:
    lost = f"{WARNING}Connection attempt failed, retrying in 0.60 seconds"
    back = f"{INFO}Connection successful after 43.02 seconds and 9 tries."
    events, _ = told(lost, lost, lost, back, lost)
    assert [event.partition(" reached")[0] for event in events] == [
        "the server cannot be", "the server can be", "the server cannot be",
    ]  # fmt: skip
    assert not warning_text(lost), "the app process says it of its own node"


def test_errors_are_told_as_they_are_but_for_tricks_and_length() -> None:
    assert told(f"{ERROR}this client cannot answer: disk full")[0] == [
        "this client cannot answer: disk full"
    ]
    assert warning_text(f"{ERROR}\x1b[2Jgone\rtrick").isprintable()
    assert len(warning_text(ERROR + "x" * 5000)) < 400
    assert not told("a print of an app", "", "Traceback (most recent call last):")[0]


def test_flowers_code_is_kept_for_the_explanation() -> None:
    _, heard = told(f"{ERROR}Exit Code: 305", "Failed.", "[code: 2004] Failed to activate.")
    assert heard.code == "2004"


REFUSED = replace(NodeLogState(), code="2004")
UP = NodeLogState(connected=True)


def after(*ends: tuple[NodeLogState, int | None, float]) -> NodeExit:
    life = NodeExit()
    for heard, code, now in ends:
        life = life.after(heard, code, lasted=1.0, now=now)
    return life


@pytest.mark.parametrize(
    ("life", "clock", "words"),
    [
        (after((REFUSED, 1, 0)), "", ["not enrolled", "fedkeel enroll eve --key eve.pub", "revoked",
                                      "another node with the same key is online", "SHA256:x"]),
        (after((UP, -9, 0), (REFUSED, 1, 9)), "", ["killed 9 s ago", "still counts", "a minute"]),
        (after((UP, -9, 0), (REFUSED, 1, 99)), "", ["not enrolled"]),
        (after((UP, 0, 0)), "the clock is +612 s", ["signatures", "the clock is +612 s"]),
        (after((UP, 0, 0)), "", ["exited normally", "was the client revoked?"]),
        (after((UP, -9, 0)), "", ["SIGKILL", "out of memory"]),
        (after((UP, -11, 0)), "", ["SIGSEGV"]),
        (after((NodeLogState(code="606"), 1, 0)), "", ["another version of Flower"]),
        (after((NodeLogState(code="305"), 1, 0)), "", ["exited with code 1", "305", "log"]),
        (after((UP, None, 0)), "", ["app process"]),
    ],
)  # fmt: skip
def test_the_end_of_a_node_is_explained_with_what_to_do(
    life: NodeExit, clock: str, words: list[str]
) -> None:
    sentence = exit_reason(life, "eve", "SHA256:x", clock)
    assert 'client "eve"' in sentence
    for word in words:
        assert word in sentence


def test_a_refused_node_tries_every_15_seconds_and_a_crashing_one_ever_more_rarely() -> None:
    assert after(*[(REFUSED, 1, 0.0)] * 9).pause == 15
    crashes = [after(*[(UP, 1, 0.0)] * count).pause for count in range(1, 9)]
    assert crashes == [1, 2, 4, 8, 16, 30, 30, 30]
    healthy = after(*[(UP, 1, 0.0)] * 6).after(UP, 1, lasted=61, now=0)
    assert healthy.pause == 1


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_any_folder_reaches_the_client_app_as_it_is(name: str) -> None:
    read = parse_config_args([node_config(Path(f"/data/{name}"), None, Path(f"/{name}/kept"))])
    kept = str(Path(f"/{name}/kept"))
    assert read == {"data": str(Path(f"/data/{name}")), "keep": kept, "watchdog": True}


@pytest.mark.parametrize("name", ['my "pets" = ours', "it's", "a\\", 'b\\"', "x.toml", "a=b c='d'"])
def test_odd_folders_and_parts_reach_the_client_app(name: str) -> None:
    read = parse_config_args([node_config(Path("/data") / name, (2, 3), Path("/kept"))])
    assert read == {
        "data": f"/data/{name}", "keep": "/kept", "partition-id": 2, "num-partitions": 3,
        "watchdog": True,
    }  # fmt: skip


def test_a_folder_that_cannot_be_named_in_the_config_is_refused() -> None:
    with pytest.raises(DeployError, match=r"not UTF-8.*rename"):
        node_config(Path(os.fsdecode(b"/data/\xff")), None, Path("/kept"))


SUPERNODE = """#!{python} -S
import os, signal, socket, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("\\x1b[92mINFO \\x1b[0m:      SuperNode ID: 7", flush=True)
server = socket.create_server(("127.0.0.1", int(options["--port"])))
with open("calls", "a") as calls:
    secret = open(options["--superexec-auth-secret-file"]).read()
    mode = os.stat(options["--superexec-auth-secret-file"]).st_mode & 0o777
    print(os.getpid(), secret, oct(mode), *sys.argv[1:], file=calls)
if os.path.exists("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.path.exists("refused"):
    print("[code: 2004] Failed to activate SuperNode.", flush=True)
    sys.exit(1)
while True:
    time.sleep(60)
"""
SUPEREXEC = """#!{python} -S
import os, subprocess, sys, time
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
app = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
with open("apps", "a") as calls:
    secret = open(options["--superexec-auth-secret-file"]).read()
    print(os.getpid(), app.pid, secret, os.environ["PATH"], os.environ["FLWR_HOME"],
          os.environ.get("FLWR_LOG_LEVEL"), options["--runtime-api-address"], file=calls)
print("ERROR :     an app says no", flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"supernode": SUPERNODE, "superexec": SUPEREXEC}.items():
        (folder / f"flower-{name}").write_text(text.format(python=sys.executable))
        (folder / f"flower-{name}").chmod(0o755)
    monkeypatch.setattr(nodes, "bin_folder", lambda: folder)
    monkeypatch.setattr(nodes, "POLL_SECONDS", 0.02)
    monkeypatch.setenv("FLWR_LOG_LEVEL", "DEBUG")
    return Node(
        name="eve",
        fingerprint="SHA256:x",
        superlink="127.0.0.1:1",
        ca=tmp_path / "ca.crt",
        key=tmp_path / "eve",
        config="watchdog=true",
        home=tmp_path / "home",
    )


def wait(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10  # of which milliseconds are needed
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def calls(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def served(node: Node) -> Iterator[list[str]]:
    """Serve in a thread; yields the events so far."""
    over, events = threading.Event(), list[str]()
    thread = threading.Thread(target=run_node, args=(node, events.append, over.is_set))
    thread.start()
    try:
        yield events
    finally:
        over.set()
        thread.join(20)
        assert not thread.is_alive()


def pids(node: Node) -> list[int]:
    """Everything that was started: nodes, app processes and what those started."""
    started = [int(call[0]) for call in calls(node.home / "calls")]
    return started + [int(pid) for call in calls(node.home / "apps") for pid in call[:2]]


def all_gone(node: Node) -> bool:
    return not any(map(lives, pids(node)))


def test_node_and_app_process_run_with_one_secret_and_end_with_all_their_children(
    node: Node,
) -> None:
    with served(node) as events:
        wait(lambda: bool(calls(node.home / "apps")) and len(events) == 2)
    ((_, secret, mode, *arguments),) = calls(node.home / "calls")
    ((_, _, other, path, home, level, address),) = calls(node.home / "apps")
    assert secret == other
    assert len(secret) == 64
    assert mode == "0o600"
    assert "--isolation process" in " ".join(arguments)
    assert address == f"127.0.0.1:{arguments[arguments.index('--port') + 1]}"
    assert "--health-server-address" not in arguments
    assert path.startswith(f"{node.home.parent / 'bin'}{os.pathsep}")
    assert home == str(node.home)
    assert level == "None", "settings of the person's own Flower stay out"
    assert events == ["connected: ready for orders", "an app says no"]
    assert len(pids(node)) == 3
    wait(lambda: all_gone(node))


def test_a_node_that_is_killed_comes_back_with_a_new_secret(node: Node) -> None:
    with served(node) as events:
        wait(lambda: bool(calls(node.home / "apps")))
        os.kill(pids(node)[0], signal.SIGKILL)
        wait(lambda: len(calls(node.home / "apps")) == 2)
    (one, two) = calls(node.home / "calls")
    assert one[1] != two[1]
    assert any("SIGKILL" in event and "next try in 1 s" in event for event in events)
    wait(lambda: all_gone(node))


def test_an_app_process_that_ends_takes_its_node_along_to_a_new_start(node: Node) -> None:
    with served(node) as events:
        wait(lambda: bool(calls(node.home / "apps")))
        os.kill(int(calls(node.home / "apps")[0][0]), signal.SIGKILL)
        wait(lambda: len(calls(node.home / "apps")) == 2)
    assert any("the app process" in event for event in events)
    wait(lambda: all_gone(node))


def test_a_refusal_is_told_once_and_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.node.exit_reasons.PAUSES", {"refused": 0.05})
    node.home.mkdir()
    (node.home / "refused").touch()
    with served(node) as events:
        wait(lambda: len(calls(node.home / "calls")) >= 4)
        (node.home / "refused").unlink()
        wait(lambda: len(calls(node.home / "apps")) >= 1)
    refusals = [event for event in events if "not enrolled" in event]
    assert len(refusals) == 1
    assert "next try in 0 s" in refusals[0]


def test_a_node_that_does_not_end_when_asked_is_killed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "GRACE_SECONDS", 0.3)
    node.home.mkdir()
    (node.home / "stubborn").touch()
    with served(node):
        wait(lambda: bool(calls(node.home / "apps")))
        begin = time.monotonic()
    assert 0.3 <= time.monotonic() - begin < 5
    wait(lambda: all_gone(node))


def test_a_kill_9_of_the_client_leaves_nothing_running(node: Node) -> None:
    code = (
        "import sys; from pathlib import Path; from deploy.node import supernode as node\n"
        f"node.bin_folder = lambda: Path({str(node.home.parent / 'bin')!r})\n"
        f"one = node.Node('eve', 'x', 'a:1', Path('c'), Path('k'), '', Path({str(node.home)!r}))\n"
        "node.run_node(one, print, lambda: False)\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait(lambda: bool(calls(node.home / "apps")))
        finally:
            process.kill()
    assert len(pids(node)) == 3
    wait(lambda: all_gone(node))


def test_the_log_has_all_lines_and_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LOG_BYTES", 200)
    with served(node):
        wait(lambda: bool(calls(node.home / "apps")))
        os.kill(pids(node)[0], signal.SIGKILL)
        wait(lambda: len(calls(node.home / "apps")) == 2)
    logs = sorted(node.home.glob("node.log*"))
    assert "app: ERROR :     an app says no" in "".join(log.read_text() for log in logs)
    assert len(logs) <= nodes.LOG_COPIES + 1
    assert all(log.stat().st_size <= 200 for log in logs)


def test_a_missing_flower_is_told_as_such(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "bin_folder", lambda: Path("/nowhere"))
    with pytest.raises(DeployError, match=r"flower-supernode cannot be started.*fedkeel doctor"):
        run_node(node, print, lambda: False)


def test_an_app_of_an_earlier_run_is_removed(node: Node) -> None:
    (node.home / "apps" / "old").mkdir(parents=True)
    run_node(node, print, lambda: True)
    assert not (node.home / "apps").exists()


def test_a_node_that_stopped_trying_to_reach_the_server_is_started_again() -> None:
    """Flower's process stays alive without ever reaching for the server again."""
    heard, event = read_log_line(
        NodeLogState(connected=True), "Giving up reconnection after 0.68 seconds", 0.0
    )
    assert heard.gave_up
    assert "stopped trying" in event
    life = NodeExit().after(heard, None, lasted=1.0, now=1.0)
    assert life.kind == "gave up"
    assert "it is started again" in exit_reason(life, "ward", "SHA256:x", "")


@pytest.mark.parametrize(
    "line",
    [
        "flwr.clientapp.client_app.LoadClientAppError: Failed to load",
        "shutil.Error: [('a', 'b', '[Errno 28] No space left on device')]",
    ],
)
def test_an_app_that_was_half_written_is_forgotten_so_that_it_comes_anew(
    line: str, tmp_path: Path
) -> None:
    (tmp_path / "apps/fedkeel").mkdir(parents=True)
    nodes.forget_torn_app(tmp_path, "ERROR :     another thing went wrong")
    assert (tmp_path / "apps/fedkeel").exists()
    nodes.forget_torn_app(tmp_path, line)
    assert not (tmp_path / "apps").exists()


def test_a_log_that_cannot_be_ended_on_a_full_disk_does_not_spoil_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = nodes._LogFile.close

    def full(handler: nodes._LogFile) -> None:
        close(handler)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, nodes._log(tmp_path / "log"):
        patched.setattr(nodes._LogFile, "close", full)
