"""`fedkeel join`: what the owner of an edge machine runs to take part in a federation."""

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

KEYS = Path("~/.fedkeel")  # where `fedkeel key` puts them
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
    """Check everything, then serve the federation until told to stop; return the exit code.

    Args:
        superlink: HOST:PORT of the server.
        ca: the certificate of the federation's CA.
        data: the client's own folder of pictures, or where the files of a dealt data set lie.
        config: the federation's config file, if the operator gave one.
        name: the client's name; "" takes that of its key.
        key: its private key; None takes the one in ~/.fedkeel, made if there is none.
        partition: K/N, which part of a dealt data set is this client's; "" for own data.
        console: where verdicts and events go.
        check_only: end after the checks.
        health: HOST:PORT on which to offer a gRPC health service, "" for none.
        home: a folder for what the node writes; None takes one beside the key.

    Raises:
        DeployError: the command makes no sense, or the node cannot be started at all.
    """
    part = read_partition(partition)
    if data is None and part is None:
        raise DeployError(
            "this client has no data: give its folder of pictures, --data DIR, or its part of a "
            "data set that the federation deals out, --partition K/N"
        )
    name, key = name_and_key(name, key, KEYS.expanduser())
    data, ca = data and data.expanduser().absolute(), ca.expanduser().absolute()
    public, of_key = check_key(name, key)
    with (
        key_lock(key) if public else nullcontext(True) as is_free,
        _home(home or key.with_name(f"{key.name}.node")) as place,
    ):
        findings = [of_key, *judge_key_lock(name, is_free=is_free, check_only=check_only)]
        order = DryRunTask(str(data or ""), part or (), str(config.absolute()) if config else "")
        doing = f"checking {name}, the way to {superlink}, and a step of training"
        console.print(doing, markup=False, soft_wrap=True)
        findings += client_findings(superlink, ca, data, place, order)
        print_findings(console, findings, ready=CHECKED if check_only else "Ready to take part.")
        if exit_code(findings) or check_only:
            return exit_code(findings)
        assert public is not None, "a key that is none is a problem"
        told = node_config(data, part, place / KEPT)
        node = Node(name, public.fingerprint, superlink, ca, key, told, place, health)

        def say(event: str) -> None:
            line = f"{time.strftime(NOW)} {name}: {event}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        with stop_event() as stop:
            run_node(node, say, stop.is_set)
        say("stopped as asked; nothing is left running")
    return 0


def client_findings(
    superlink: str, ca: Path, data: Path | None, home: Path, order: DryRunTask
) -> Iterator[Finding]:
    """Run all checks but that of the key, each whatever the others find."""

    def check_connection() -> Iterator[Finding]:
        yield from check_server(superlink, ca)

    def check_disk() -> Iterator[Finding]:
        yield from check_space(data, home)

    def check_training_step() -> Iterator[Finding]:
        yield from run_in_child("step", order)

    def check_data() -> Iterator[Finding]:
        if data is not None or order.config:
            yield from run_in_child("data", order)

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
        DeployError: it is no part.
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
    """Return the client's name and the absolute path of its key, which may not be there yet.

    Args:
        name: as given, "" for none.
        key: as given, None for none.
        folder: where keys are if none is given.

    Raises:
        DeployError: the name cannot be one, or the folder holds several keys.
    """
    if key is not None:
        key = key.expanduser().absolute()
        return client_name(name or key.name), key
    if not name:
        found = sorted(path.stem for path in folder.glob("*.pub") if path.with_suffix("").exists())
        if len(found) > 1:
            raise DeployError(
                f"{folder} holds the keys of several clients: {', '.join(found)}; say which one "
                "joins: --name NAME"
            )
        name = found[0] if found else socket.gethostname().partition(".")[0]
    return client_name(name), folder / name


@contextmanager
def _home(wanted: Path) -> Iterator[Path]:
    """Make the node's folder, or where that cannot be written one that goes with this process."""
    try:
        make_folder(wanted)
    except DeployError:
        with tempfile.TemporaryDirectory(prefix="fedkeel-node-") as folder:
            yield Path(folder)
    else:
        yield wanted.absolute()
