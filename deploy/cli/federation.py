"""The commands of operators and edge owners. Other modules do the work."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.errors import DeployError
from deploy.federation.superlink_client import SuperLinkClient
from deploy.system.signals import stop_event

FAILED = 1
KEYS = Path("~/.fedkeel")
console = Console(highlight=False)

Pki = Annotated[Path, typer.Option("--dir", help="Folder of keys and certificates.")]
Hosts = Annotated[
    list[str],
    typer.Option("--host", metavar="NAME_OR_IP", help="Host name or IP address of the server."),
]
Days = Annotated[int, typer.Option("--days", min=1, help="Validity of the certificate in days.")]
Address = Annotated[
    str,
    typer.Option(
        "--superlink", envvar="FEDKEEL_SUPERLINK", help="HOST:PORT of the SuperLink, not the proxy."
    ),
]
Authority = Annotated[
    Path, typer.Option("--ca", envvar="FEDKEEL_CA", help="The federation's public/ca.crt.")
]
Client = Annotated[str, typer.Argument(help="The client's name.")]
Folder = Annotated[Path, typer.Option("--dir", help="Folder of the client's key.")]

SUPERLINK, CA = "127.0.0.1:8000", Path("pki/public/ca.crt")
pki = typer.Typer(help="Keys and certificates of the server.", no_args_is_help=True)


def add_to(cli: typer.Typer) -> None:
    """Add these commands to the command line."""
    cli.add_typer(pki, name="pki")
    for command in (server, key, enroll, revoke, clients, join, status):
        cli.command()(command)


def say(text: str) -> None:
    """Print an event with its time."""
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
    console.print(line, markup=False, soft_wrap=True)


@pki.command("init")
def pki_init(home: Pki = Path("pki"), host: Hosts = [], days: Days = 825) -> None:  # noqa: B006
    """Make a certificate authority, the server's certificate and the shared secret."""
    from deploy.federation.pki import init

    for sentence in init(home, host, days):
        console.print(sentence, markup=False, soft_wrap=True)


@pki.command("renew")
def pki_renew(home: Pki = Path("pki"), host: Hosts = [], days: Days = 825) -> None:  # noqa: B006
    """Make a new server certificate, signed by the same CA. --host adds names."""
    from deploy.federation.pki import renew

    for sentence in renew(home, host, days):
        console.print(sentence, markup=False, soft_wrap=True)


def server(
    pki: Annotated[Path, typer.Option("--pki", help="Folder of `pki init`.")] = Path("pki"),
    state: Annotated[Path, typer.Option("--state", help="Database and logs.")] = Path("state"),
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="Port of the SuperLink on loopback.")
    ] = 8000,
    fleet: Annotated[
        str, typer.Option("--fleet", help='HOST:PORT on which clients connect. "" starts no proxy.')
    ] = "0.0.0.0:8443",
    largest_message: Annotated[
        int,
        typer.Option(
            "--largest-message",
            min=1,
            max=2000,
            help="Largest part of a client's message that the proxy accepts, in MB.",
        ),
    ] = 300,
) -> None:
    """Run the server (SuperLink, app process and proxy) until stopped."""
    from deploy.federation.server import ServerOptions, run_server

    options = ServerOptions(
        pki.absolute(), state.absolute(), Path.cwd(), port, fleet, largest_message
    )
    with stop_event() as stop:
        run_server(options, say, stop)
    say("stopped; nothing is left running")


def key(
    name: Client,
    folder: Folder = KEYS,
) -> None:
    """Make this client's key if it has none, and print the public half."""
    from deploy.federation.client_keys import client_name, make_key, public_line

    path = folder.expanduser() / client_name(name)
    make_key(path)
    typer.echo(public_line(path))


def enroll(
    name: Client,
    public: Annotated[
        str, typer.Option("--key", help="File with the client's public key, - for stdin.")
    ] = "",
    superlink: Address = SUPERLINK,
    ca: Authority = CA,
) -> None:
    """Enroll a client under this name with this key."""
    from deploy.federation import enrollment
    from deploy.federation.client_keys import client_name, make_key, public_line, read_public

    client_name(name)
    if public:
        text = sys.stdin.read(1 << 16) if public == "-" else _text(Path(public))
    else:
        # First, so that no key is made for a name that is in use.
        enrollment.check_free(SuperLinkClient(superlink, ca), name)
        make_key(Path(name))
        text = public_line(Path(name))
        console.print(
            f"made {name} (private key; move it to the client safely) and {name}.pub", markup=False
        )
    message = enrollment.enroll(SuperLinkClient(superlink, ca), name, read_public(text))
    console.print(message, markup=False, soft_wrap=True)


def revoke(name: Client, superlink: Address = SUPERLINK, ca: Authority = CA) -> None:
    """Revoke a client at once and for good."""
    from deploy.federation import enrollment

    console.print(
        enrollment.revoke(SuperLinkClient(superlink, ca), name), markup=False, soft_wrap=True
    )


def clients(
    superlink: Address = SUPERLINK,
    ca: Authority = CA,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the enrolled clients, their status and their last heartbeat."""
    from deploy.federation import enrollment

    enrolled = enrollment.enrolled_clients(SuperLinkClient(superlink, ca))
    if as_json:
        rows = [{**asdict(client), "last_seen": str(client.last_seen or "")} for client in enrolled]
        typer.echo(json.dumps(rows))
    else:
        console.print(enrollment.clients_table(enrolled))


def join(
    superlink: Annotated[
        str, typer.Option("--superlink", metavar="HOST:PORT", help="The server's address.")
    ],
    ca: Annotated[Path, typer.Option("--ca", help="The ca.crt from the operator.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="This client's folder of images.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The federation.toml from the operator.")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="The client's name. Default: the key's file name.")
    ] = "",
    key: Annotated[
        Path | None, typer.Option("--key", help="The client's private key. It is made if missing.")
    ] = None,
    partition: Annotated[
        str,
        typer.Option("--partition", metavar="K/N", help="Its partition of a built-in data set."),
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="Run the checks only.")] = False,
    health: Annotated[
        str, typer.Option("--health", metavar="HOST:PORT", help="Offer a gRPC health service.")
    ] = "",
    home: Annotated[
        Path | None, typer.Option("--home", help="Folder for what the node writes.")
    ] = None,
) -> None:
    """Join a federation: check this machine, then train on request until stopped."""
    from deploy.node.join import join as take_part

    code = take_part(
        *(superlink, ca, data, config, name, key, partition),
        console=console,
        check_only=check,
        health=health,
        home=home,
    )
    raise typer.Exit(code)


def status(
    name: Annotated[str, typer.Argument(help="The run's name. Default: the newest run.")] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of the runs.")] = Path("runs"),
    follow: Annotated[
        bool, typer.Option("--follow", help="Print changes until the run ends.")
    ] = False,
    every_client: Annotated[
        bool, typer.Option("--all", help="List all clients, not only those with problems.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--metrics", min=1, max=65535, help="Serve Prometheus metrics on this port of loopback."
        ),
    ] = None,
) -> None:
    """Print the state of a run: its round and replies, and each client's state."""
    from deploy.federation import prometheus
    from deploy.federation.status import find_run, print_status

    if port is not None:
        folder = find_run(out, name)
        say(f"metrics of {folder.name} on http://{prometheus.HOST}:{port}/metrics")
        with stop_event() as stop:
            prometheus.serve_metrics(folder, port, stop)
        return
    raise typer.Exit(print_status(console, out, name, follow=follow, every_client=every_client))


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[: 1 << 16].decode("utf-8", errors="replace")
    except OSError as error:
        raise DeployError(f"the public key cannot be read: {error}") from error
