"""Attempts with Flower's own programs to do in a federation more than is allowed.

Each attempt from outside is repeated on the private side, where it succeeds. So the guard refuses
it, and not a mistake in the attempt.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.errors import DeployError
from deploy.federation import client_keys, enrollment
from deploy.federation.superlink_client import SuperLinkClient
from tests.system.federation import BIN, Federation, Process, federation, free_port, wait_for

pytestmark = pytest.mark.slow

REFUSED = 1  # the process's exit code; its log says "Exit Code: 305"
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "census"
version = "1.0.0"
description = "Asks every client again and again, and writes down who is there and who answers."
license = { text = "Apache-2.0" }
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "fedkeel"
[tool.flwr.app.components]
serverapp = "census:server"
clientapp = "census:client"
[tool.flwr.app.config]
out = ""
"""
CENSUS = '''
"""Ask every client again and again; one line of JSON each time that something is new."""
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    out, names, asked, last = Path(context.run_config["out"]), {}, {}, None
    while True:
        present = {node.node_id: node.name for node in grid.get_nodes()}
        names |= present
        free = [node for node in present if node not in asked.values()]
        sent = [Message(RecordDict({"q": ConfigRecord({"q": 1})}), dst_node_id=node,
                        message_type="query") for node in free]
        asked |= dict(zip(grid.push_messages(sent), free))
        replies = [(names[asked.pop(reply.metadata.reply_to_message_id)], reply)
                   for reply in grid.pull_messages(list(asked))]
        line = {
            "present": sorted(present.values()),
            "answered": sorted(name for name, reply in replies if reply.has_content()),
            "failed": sorted(f"{name}: {reply.error.code}"
                             for name, reply in replies if reply.has_error()),
        }
        if line != last or replies:
            with out.open("a") as file:
                file.write(json.dumps({"time": time.time(), **line}) + "\\n")
        last = line
        time.sleep(0.2)

@client.query()
def answer(message, context):
    return Message(RecordDict({"a": ConfigRecord({"a": 1})}), reply_to=message)
'''


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small app for Flower and return its folder."""
    folder = tmp_path_factory.mktemp("census")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "census.py").write_text(CENSUS)
    return folder


@dataclass
class Census:
    """A run without end, in which clients get work."""

    fed: Federation
    out: Path

    def lines(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Return the lines that it wrote since then."""
        text = self.out.read_text() if self.out.exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return [line for line in found if line["time"] >= since]

    def answered(self, name: str, since: float = 0.0) -> bool:
        """Return whether this client has answered since then."""
        return any(name in line["answered"] for line in self.lines(since))


@pytest.fixture(scope="module")
def census(app: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Census]:
    """Start a federation in which the census runs."""
    with federation(tmp_path_factory.mktemp("federation")) as fed:
        out = fed.folder / "census.jsonl"
        fed.link.flwr("run", str(app), "--run-config", f'out="{out}"')
        made = Census(fed, out)
        wait_for(made.lines, lambda: fed.executor.text)
        yield made


def status(fed: Federation, run: str) -> str:
    """Return the status of the run of this id, as seen on the private side."""
    [found] = fed.link.flwr("ls", "--run-id", run)["runs"]
    return str(found["status"])


def node_id(node: Process) -> str:
    """Return Flower's number of a client, which its process logs."""
    return node.text.partition("SuperNode ID: ")[2].split()[0]


def test_outsiders_cannot_submit_runs_register_nodes_or_take_tasks(
    app: Path, tmp_path: Path
) -> None:
    with federation(tmp_path, executor=False) as fed:
        outside = SuperLinkClient(fed.outside, fed.ca)
        public = fed.folder / "mallory.pub"
        public.write_text(client_keys.public_line(fed.key("mallory")))
        run = ("run", str(app), "--run-config", f'out="{tmp_path}/out"')
        register = ("supernode", "register", str(public), "--name", "mallory")
        for attempt in (run, register):
            with pytest.raises(DeployError, match="403"):
                outside.flwr(*attempt)
        assert fed.link.flwr("ls")["runs"] == []
        assert enrollment.enrolled_clients(fed.link) == []
        assert fed.link.flwr(*register)["success"]
        task = fed.link.flwr(*run)["run-id"]

        wrong = tmp_path / "wrong.secret"
        wrong.write_text("0" * 64)
        attempts = {
            "through the proxy": (fed.outside, []),
            "through the proxy, with the stolen secret": (fed.outside, [fed.secret]),
            "to the SuperLink, without the secret": (fed.address, []),
            "to the SuperLink, with a wrong secret": (fed.address, [wrong]),
        }
        rogues = {
            how: fed.start(
                how.replace(" ", "-"),
                *(BIN / "flower-superexec", "--runtime-api-address", address),
                *("--root-certificates", fed.ca),
                *(part for file in secret for part in ("--superexec-auth-secret-file", file)),
            )
            for how, (address, secret) in attempts.items()
        }
        for how, rogue in rogues.items():  # who is let in waits for tasks and does not end
            rogue.ended()
            assert ("403 Forbidden" in rogue.text) == ("proxy" in how), rogue.text
        assert status(fed, task) == "pending"
        fed.start_executor()  # the same command with the right secret
        wait_for(lambda: status(fed, task) == "running", lambda: fed.executor.text)


def test_only_enrolled_clients_get_work_and_each_key_once(census: Census) -> None:
    """By default any machine may join: https://github.com/flwrlabs/flower/issues/6896."""
    fed = census.fed
    fed.enroll("alice")
    alice, stranger = fed.start_node("alice"), fed.start_node("stranger")
    keyless = fed.start(  # makes a key itself and tries to register it
        "keyless",
        *(BIN / "flower-supernode", "--superlink", fed.outside, "--root-certificates", fed.ca),
        *("--port", str(free_port())),
    )
    assert (stranger.ended(), keyless.ended()) == (REFUSED, REFUSED)
    assert "[code: 2004] Failed to activate SuperNode" in stranger.text
    assert "[code: 2001]" in keyless.text
    wait_for(lambda: census.answered("alice"), lambda: alice.text)

    begin = time.time()
    double = fed.start_node("alice", label="double")
    assert [(one.name, one.status) for one in enrollment.enrolled_clients(fed.link)] == [
        ("alice", "online")
    ]
    assert double.ended() == REFUSED
    assert "[code: 2004] Failed to activate SuperNode" in double.text
    wait_for(lambda: census.answered("alice", since=time.time() - 0.5), lambda: alice.text)
    assert all(line["present"] == ["alice"] for line in census.lines(since=begin))
    assert alice.stop() == 0


def test_a_revoked_client_is_out_at_once_and_returns_only_with_a_new_key(
    census: Census,
) -> None:
    fed = census.fed
    fed.enroll("bob")
    bob = fed.start_node("bob")
    wait_for(lambda: census.answered("bob"), lambda: bob.text)
    number = node_id(bob)

    enrollment.revoke(fed.link, "bob")
    out = wait_for(lambda: not (last := census.lines()[-1])["present"] and last["time"], seconds=10)
    # It ends by itself with code 0 at its next request.
    assert bob.ended(30) == 0
    assert fed.status("bob") == ""
    assert not census.answered("bob", since=out)  # a reply under way is not used
    again = fed.start_node("bob", label="again")
    with pytest.raises(DeployError, match='enrolled as "bob" and revoked'):
        fed.enroll("bob")
    public = fed.key("bob").with_name("bob.pub")
    with pytest.raises(DeployError, match="registered already, or was revoked"):
        fed.link.flwr("supernode", "register", str(public), "--name", "bob")

    assert again.ended() == REFUSED

    fed.key("bob").unlink()
    public.unlink()
    fed.enroll("bob")
    back = fed.start_node("bob", label="back")
    wait_for(lambda: census.answered("bob", since=out), lambda: back.text)
    assert node_id(back) != number
