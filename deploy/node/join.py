"""`fedkeel join`: check an edge machine, then run its node until it is stopped."""

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console

from common.errors import DeployError
from deploy.federation.client_keys import client_name
from deploy.node.supernode import KEPT, Node, node_config, run_node
from deploy.preflight.client_checks import (
    check_key,
    check_memory,
    check_shared_memory,
    check_space,
    judge_key_lock,
    key_lock,
    run_in_child,
)
from deploy.preflight.dry_run import DryRunTask
from deploy.preflight.findings import Finding, exit_code, print_findings, run_check
from deploy.preflight.server_checks import check_server
from deploy.system.private_files import make_folder
from deploy.system.signals import stop_event

KEYS = Path("~/.fedkeel")  # folder of `fedkeel key`
NOW = "%Y-%m-%d %H:%M:%S"
CHECKED = "All is well here; whether the key is enrolled shows when the client connects."


def join(
    superlink: str,
    ca: Path,
    data: Path | None,
    config: Path | None,
    name: str,
    key: Path | None,
    partition: str = "",
    *,
    console: Console,
    check_only: bool = False,
    health: str = "",
    home: Path | None = None,
) -> int:
    """Check the machine, run the node until it is stopped, and return the exit code.

    Args:
        superlink: HOST:PORT of the server.
        ca: the certificate of the federation's CA.
        data: the client's own picture folder, or the files of a data set that is dealt out.
        config: the federation's config file, if the operator gave one.
        name: the client's name; "" takes the name of its key.
        key: its private key; None takes the one in ~/.fedkeel, and makes it if there is none.
        partition: K/N, this client's part of a data set that is dealt out; "" for own data.
        console: where findings and events are printed.
        check_only: stop after the checks.
        health: HOST:PORT of a gRPC health service to offer, "" for none.
        home: folder for the node's files; None means a folder beside the key.

    Raises:
        DeployError: the options contradict each other, or the node cannot be started.
    """
    part = read_partition(partition)
    if data is None and part is None:
        raise DeployError(
            "this client has no data: give its folder of pictures, --data DIR, or its part of a "
            "data set that the federation deals out, --partition K/N"
        )
    name, key = name_and_key(name, key, KEYS.expanduser())
    data, ca = data and data.expanduser().absolute(), ca.expanduser().absolute()
    public, key_finding = check_key(name, key)
    with (
        _claim(key, check_only) if public else nullcontext(True) as is_free,
        _node_home(home or key.with_name(f"{key.name}.node")) as node_home,
    ):
        findings = [key_finding, *judge_key_lock(name, is_free=is_free, check_only=check_only)]
        task = DryRunTask(str(data or ""), part or (), str(config.absolute()) if config else "")
        progress = f"checking {name}, the way to {superlink}, and a step of training"
        console.print(progress, markup=False, soft_wrap=True)
        findings += client_findings(superlink, ca, data, node_home, task)
        print_findings(console, findings, ready=CHECKED if check_only else "Ready to take part.")
        if exit_code(findings) or check_only:
            return exit_code(findings)
        assert public is not None, "check_key reports a missing key as a problem"
        config_text = node_config(data, part, node_home / KEPT)
        node = Node(name, public.fingerprint, superlink, ca, key, config_text, node_home, health)
        _serve(node, console)
    return 0


@contextmanager
def _claim(key: Path, check_only: bool) -> Iterator[bool]:
    """Lock the key for this process, and yield whether it was free.

    A check releases the key at once, so that the client can join meanwhile.
    """
    with key_lock(key) as is_free:
        if not check_only:
            yield is_free
            return
    yield is_free


def _serve(node: Node, console: Console) -> None:
    """Run the node until a signal stops it, and print its events with their time."""

    def print_event(event: str) -> None:
        line = f"{time.strftime(NOW)} {node.name}: {event}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with stop_event() as stop:
        run_node(node, print_event, stop.is_set)
    print_event("stopped as asked; nothing is left running")


def client_findings(
    superlink: str, ca: Path, data: Path | None, home: Path, task: DryRunTask
) -> Iterator[Finding]:
    """Run every check except the key's. A problem does not stop the later checks."""

    def check_connection() -> Iterator[Finding]:
        yield from check_server(superlink, ca)

    def check_disk() -> Iterator[Finding]:
        yield from check_space(data, home)

    def check_training_step() -> Iterator[Finding]:
        yield from run_in_child("step", task)

    def check_data() -> Iterator[Finding]:
        if data is not None or task.config:
            yield from run_in_child("data", task)

    for check in (
        check_connection,
        check_memory,
        check_disk,
        check_shared_memory,
        check_data,
        check_training_step,
    ):
        yield from run_check(check)


def read_partition(text: str) -> tuple[int, int] | None:
    """Return (K, N) of "K/N", None of "".

    Raises:
        DeployError: the text is not K/N with K below N.
    """
    if not text:
        return None
    number, _, total = text.partition("/")
    if not (number.isdecimal() and total.isdecimal() and int(number) < int(total)):
        raise DeployError(
            f'--partition is "{text}", expected K/N with K from 0 to N-1: 0/3, 1/3, 2/3'
        )
    return int(number), int(total)


def name_and_key(name: str, key: Path | None, folder: Path) -> tuple[str, Path]:
    """Return the client's name and the absolute path of its key, which need not exist.

    Args:
        name: the name from the command line, "" for none.
        key: the path from the command line, None for none.
        folder: folder of the keys if no path is given.

    Raises:
        DeployError: the name is not allowed, or the folder holds several keys.
    """
    if key is not None:
        key = key.expanduser().absolute()
        return client_name(name or key.name), key
    if not name:
        names = sorted(path.stem for path in folder.glob("*.pub") if path.with_suffix("").exists())
        if len(names) > 1:
            raise DeployError(
                f"{folder} holds the keys of several clients: {', '.join(names)}; choose one with "
                "--name NAME"
            )
        name = names[0] if names else socket.gethostname().partition(".")[0]
    return client_name(name), folder / name


@contextmanager
def _node_home(wanted: Path) -> Iterator[Path]:
    """Make the node's folder, or a temporary one where that cannot be written."""
    try:
        make_folder(wanted)
    except DeployError:
        with tempfile.TemporaryDirectory(prefix="fedkeel-node-") as folder:
            yield Path(folder)
    else:
        yield wanted.absolute()
