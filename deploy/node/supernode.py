"""Run one SuperNode and its app process: start them, read their logs, restart and end them."""

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
from deploy.node.run_watch import IsOver, RunWatch, run_question
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
KEPT = "kept"  # folder of the client's own models
LOG_BYTES, LOG_COPIES = 2**20, 2
POLL_SECONDS = 0.2
TASK_POLL_SECONDS = 0.2  # of the app process; Flower's default of 1 s delays every message
GRACE_SECONDS = 10.0  # for a node to sign off at the server
REPEAT_TRIES = 20  # the reason of an exit is printed again after this number of tries

Print = Callable[[str], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Node:
    """The arguments of a node.

    Attributes:
        name: the client's name, for people.
        fingerprint: fingerprint of its key.
        superlink: HOST:PORT of the server.
        ca: the CA's certificate.
        key: the private key.
        config: Flower's --node-config.
        home: the node's own folder, for its log and for the app that the server sends.
        health: HOST:PORT of a gRPC health service to offer, "" for none.
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
    """Return Flower's --node-config, which tells the client app where its data are.

    Args:
        data: absolute path of the client's own picture folder or of a data set's files.
        part: (partition id, number of partitions) of a data set that the federation deals out.
        keep: absolute path of the folder for the client's own models.

    Raises:
        DeployError: a path is not UTF-8.
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
        # A TOML string. Flower's parser ends it at the next double quote, escaped or not.
        text = json.dumps(str(path), ensure_ascii=False)[1:-1]
        text = text.replace('\\"', "\\u0022").replace("\x7f", "\\u007f")
        words.append(f'{word}="{text}"')
    return " ".join(words)


def run_node(node: Node, print_event: Print, stop: Stop) -> None:
    """Keep the node running until `stop` returns True. Then end all of its processes.

    Raises:
        DeployError: the node's folder cannot be used, or Flower is not installed here.
    """
    make_folder(node.home)
    shutil.rmtree(node.home / "apps", ignore_errors=True)  # the server sends the app again
    node_exit = NodeExit()
    is_over = run_question(node.superlink, node.ca, node.key)
    with _log(node.home / LOG) as log:
        while not stop():
            begin = time.monotonic()
            state, code, run_ended = _run_once(node, print_event, log, stop, is_over)
            if stop():
                return
            if run_ended:
                continue
            now = time.monotonic()
            node_exit = node_exit.after(state, code, lasted=now - begin, now=now)
            if node_exit.tries % REPEAT_TRIES == 1:
                reason = exit_reason(node_exit, node.name, node.fingerprint, _wrong_clock(node))
                print_event(f"{reason}; next try in {node_exit.pause:.0f} s")
            _wait(node_exit.pause, stop)


def _run_once(
    node: Node, print_event: Print, log: logging.Logger, stop: Stop, is_over: IsOver
) -> tuple[NodeLogState, int | None, bool]:
    """Run the node once.

    Returns:
        What its log says, its exit code if it exited by itself, and whether it was ended because
        the run that it worked for had ended.
    """
    states = [NodeLogState()]

    def read_node(line: str) -> None:
        log.info("%s", without_colours(line))
        states[0], event = read_log_line(states[0], line, time.monotonic())
        if event:
            print_event(event)

    def read_apps(line: str) -> None:
        log.info("app: %s", without_colours(line))
        forget_torn_app(node.home, line)
        if event := warning_text(line):
            print_event(event)

    port, secret = _free_port(), node.home / "superexec.secret"
    write_file(secret, token_hex(32).encode(), PRIVATE, replace=True)
    watch, run_ended = RunWatch(is_over), False
    with PipedProcessGroup(node.home, _environment(node), GRACE_SECONDS) as group:
        process = group.start(_node_command(node, port, secret), read_node)
        while not stop() and group.is_whole() and not states[0].gave_up and not run_ended:
            time.sleep(POLL_SECONDS)
            if len(group.members) == 1 and _listens(port):  # the app process needs the node's port
                group.start(_executor_command(port, secret), read_apps)
            run_ended = watch.has_ended(states[0], time.monotonic())
        code = process.poll()
        if run_ended:
            print_event(f"run {states[0].run} has ended: its work here is stopped")
    return states[0], code, run_ended


def forget_torn_app(home: Path, line: str) -> None:
    """Remove the app that the server sent if the disk is full or the app cannot be loaded.

    A full disk leaves half of an app, which Flower takes for installed. The next reply would say
    that the app cannot be loaded, and not that the disk is full. The next order brings the app
    again.
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
        # The node's own port hands out tasks. Without a secret any local user could take them.
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *(("--health-server-address", node.health) if node.health else ()),
    ]


def _executor_command(port: int, secret: Path) -> list[str]:
    return [
        *(str(bin_folder() / "flower-superexec"), "--insecure"),  # on loopback only
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
    """A log file that ignores a full disk."""

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
        with suppress(OSError):  # the buffer does not fit on a full disk
            handler.close()
