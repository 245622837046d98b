"""One SuperNode and its app process: started, listened to, started again, and ended as a whole."""

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from secrets import token_hex

from common.errors import DeployError
from deploy.node.exit_reasons import NodeExit, exit_reason
from deploy.node.supernode_log import (
    NodeLogState,
    is_disk_full,
    read_log_line,
    warning_text,
    without_colours,
)
from deploy.preflight.server_checks import judge_clock
from deploy.preflight.tls_probe import clock_ahead
from deploy.system.flower_env import child_env
from deploy.system.piped_process_group import PipedProcessGroup
from deploy.system.private_files import PRIVATE, make_folder, write_file
from deploy.system.process_group import bin_folder

LOG = "node.log"
KEPT = "kept"  # models of the client's own
LOG_BYTES, LOG_COPIES = 2**20, 2
POLL_SECONDS = 0.2
TASK_POLL_SECONDS = 0.2  # of the app process; Flower's own is 1 s, which every message waits for
LAST_SECONDS = 10.0  # that a node gets to take its leave
FORGOTTEN = 20  # the same reason is told again after so many tries

Say = Callable[[str], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Node:
    """What a node is started with.

    Attributes:
        name: the client's name, for people.
        fingerprint: its key's.
        superlink: HOST:PORT of the server.
        ca: the CA's certificate.
        key: the private key.
        config: Flower's --node-config.
        home: a folder of the node's own, for its log and for the app that the server sends.
        health: HOST:PORT to offer a gRPC health service on, "" for none.
    """

    name: str
    fingerprint: str
    superlink: str
    ca: Path
    key: Path
    config: str
    home: Path
    health: str = ""


def node_config(data: Path | None, part: tuple[int, int] | None, keep: Path) -> str:
    """Return what tells the client app where things are, as Flower's --node-config reads it.

    Args:
        data: the client's own folder of pictures, or where a dealt data set lies; absolute.
        part: (partition id, number of partitions) of a data set that is dealt out.
        keep: where the client may keep a model of its own; absolute.

    Raises:
        DeployError: the path cannot be carried.
    """
    words = ["watchdog=true"]
    if part is not None:
        words += [f"partition-id={part[0]}", f"num-partitions={part[1]}"]
    for word, path in {"data": data, "keep": keep}.items():
        if path is None:
            continue
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise DeployError(
                f"the name of the {word} folder is not UTF-8: {os.fsencode(path)!r}; rename it"
            ) from None
        # A TOML text; Flower's parser ends it at the next double quote, escaped or not.
        text = json.dumps(str(path), ensure_ascii=False)[1:-1]
        text = text.replace('\\"', "\\u0022").replace("\x7f", "\\u007f")
        words.append(f'{word}="{text}"')
    return " ".join(words)


def run_node(node: Node, say: Say, stop: Stop) -> None:
    """Keep the node running until `stop` says so; on return nothing of it is left running.

    Raises:
        DeployError: the node's folder cannot be used, or Flower is not installed here.
    """
    make_folder(node.home)
    shutil.rmtree(node.home / "apps", ignore_errors=True)  # of earlier runs; they come again
    life = NodeExit()
    with _log(node.home / LOG) as raw:
        while not stop():
            begin = time.monotonic()
            heard, code = _run_once(node, say, raw, stop)
            if stop():
                return
            now = time.monotonic()
            life = life.after(heard, code, lasted=now - begin, now=now)
            if life.tries % FORGOTTEN == 1:
                reason = exit_reason(life, node.name, node.fingerprint, _wrong_clock(node))
                say(f"{reason}; next try in {life.pause:.0f} s")
            _wait(life.pause, stop)


def _run_once(
    node: Node, say: Say, raw: logging.Logger, stop: Stop
) -> tuple[NodeLogState, int | None]:
    """Run the node once; return what it told, and its exit code if it was the one that ended."""
    told = [NodeLogState()]

    def of_node(line: str) -> None:
        raw.info("%s", without_colours(line))
        told[0], event = read_log_line(told[0], line, time.monotonic())
        if event:
            say(event)

    def of_apps(line: str) -> None:
        raw.info("app: %s", without_colours(line))
        forget_torn_app(node.home, line)
        if event := warning_text(line):
            say(event)

    port, secret = _free_port(), node.home / "superexec.secret"
    write_file(secret, token_hex(32).encode(), PRIVATE, replace=True)
    with PipedProcessGroup(node.home, _environment(node), LAST_SECONDS) as crew:
        process = crew.start(_node_command(node, port, secret), of_node)
        while not stop() and crew.is_whole() and not told[0].gave_up:
            time.sleep(POLL_SECONDS)
            if len(crew.members) == 1 and _listens(port):  # before, it would wait in vain
                crew.start(_executor_command(port, secret), of_apps)
        code = process.poll()
    return told[0], code


def forget_torn_app(home: Path, line: str) -> None:
    """Remove the app that the server sent if the disk is full or the app cannot be loaded.

    A full disk leaves half of the app behind. Flower takes it for installed, and the next reply
    would say that it cannot be loaded instead of why. The next order brings the app again.
    """
    if "LoadClientAppError" in line or is_disk_full(line):
        shutil.rmtree(home / "apps", ignore_errors=True)


def _wait(seconds: float, stop: Stop) -> None:
    end = time.monotonic() + seconds
    while not stop() and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def _wrong_clock(node: Node) -> str:
    ahead = clock_ahead(node.superlink, node.ca)
    finding = judge_clock(ahead) if ahead is not None else None
    is_wrong = finding is not None and finding.verdict == "problem"
    return f"{finding.sentence} - {finding.remedy}" if finding and is_wrong else ""


def _node_command(node: Node, port: int, secret: Path) -> list[str]:
    return [
        str(bin_folder() / "flower-supernode"),
        *("--superlink", node.superlink),
        *("--root-certificates", str(node.ca)),
        *("--auth-supernode-private-key", str(node.key)),
        *("--node-config", node.config),
        # Its own port hands out tasks; without a secret any user of this machine could take them.
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *(("--health-server-address", node.health) if node.health else ()),
    ]


def _executor_command(port: int, secret: Path) -> list[str]:
    return [
        *(str(bin_folder() / "flower-superexec"), "--insecure"),  # it never leaves this machine
        *("--runtime-api-address", f"127.0.0.1:{port}"),
        *("--superexec-auth-secret-file", str(secret)),
    ]


def _environment(node: Node) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    return {
        **kept,
        **child_env(),
        "FLWR_HOME": str(node.home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(TASK_POLL_SECONDS),
        "PATH": f"{bin_folder()}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class _LogFile(RotatingFileHandler):
    """Goes on when the disk is full."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        pass


@contextmanager
def _log(path: Path) -> Iterator[logging.Logger]:
    logger = logging.Logger("node", logging.INFO)
    handler = _LogFile(path, maxBytes=LOG_BYTES, backupCount=LOG_COPIES, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        with suppress(OSError):  # what is left to write does not fit on a full disk
            handler.close()
