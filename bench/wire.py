"""Where the seconds of a round on real nodes go, beside the training.

    python -m bench.wire [--models cnn vgg11] [--clients 2] [--rounds 5]

Starts a server and clients on loopback (TLS, keys, proxy), trains a few rounds on a handful of
random pictures, and splits the median round into its phases. The reference, in the same minutes on
the same nodes, is a quickstart-style Flower app with a model of the same shapes and Flower's own
FedAvg.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image
from rich.table import Table

from bench.command import add_json, at_least, carry_out, keep, print_tables
from bench.trial import BenchError, last_lines
from common.config import MODEL_NAMES
from common.models import FlatModel, build
from common.runs.records import read_records
from deploy.federation.superlink_client import SuperLinkClient
from deploy.system.flower_env import QUIET

BIN = Path(sys.prefix) / "bin"
CLASSES, SIDE = 10, 32
STOCK = Path(__file__).parent / "stock"
PORT, FLEET = 18600, 18643
PATIENCE_SECONDS = 120.0  # for something to begin
ROUND_SECONDS = 300.0  # for a round of it
LAST_SECONDS = 20.0  # for a process to end once it is asked to
LEGEND = """seconds, medians of the rounds but the first; round: all of it
process start: until the slowest client's process has begun its work; work: that of this client
polls and transfer: the rest until its reply is there; server: orders, aggregation and checkpoint
stock: a round of the Flower app with Flower's own FedAvg"""


@contextmanager
def federation(home: Path, clients: int) -> Iterator[SuperLinkClient]:
    """A server and `clients` clients on loopback, for as long as the block lasts.

    Raises:
        BenchError: they do not find each other.
    """
    env = {**os.environ, **QUIET, "HOME": str(home), "FEDKEEL_SUPERLINK": f"127.0.0.1:{PORT}"}
    started: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, *arguments: str) -> None:
        with (home / f"{name}.log").open("wb") as log:
            started[name] = subprocess.Popen(
                [str(BIN / "fedkeel"), *arguments],
                cwd=home, env=env, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait_for(what: str, there: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not there():
            gone = [name for name, process in started.items() if process.poll() is not None]
            if gone or time.monotonic() > until:
                name = (gone or list(started)[-1:])[0]
                said = last_lines(home / f"{name}.log")
                raise BenchError(f"{what} did not come about; the {name} said last:\n  {said}")
            time.sleep(0.5)

    fedkeel = partial(quiet, home, env)
    fedkeel("pki", "init")
    link = SuperLinkClient(f"127.0.0.1:{PORT}", home / "pki/public/ca.crt")
    try:
        start("server", "server", "--port", str(PORT), "--fleet", f"127.0.0.1:{FLEET}")
        asked = [BIN / "fedkeel", "clients"]
        wait_for(
            "a server", lambda: not subprocess.run(
                asked, cwd=home, env=env, check=False, capture_output=True, start_new_session=True
            ).returncode,
        )  # fmt: skip
        for number in range(clients):
            fedkeel("key", str(number), "--dir", "keys")
            fedkeel("enroll", str(number), "--key", f"keys/{number}.pub")
            start(
                f"client-{number}",
                *("join", "--superlink", f"localhost:{FLEET}", "--ca", "pki/public/ca.crt"),
                *("--key", f"keys/{number}", "--partition", f"{number}/{clients}"),
                *("--data", "pictures"),
            )
        wait_for(
            f"a federation of {clients} clients",
            lambda: sum(node["status"] == "online" for node in link.nodes()) >= clients,
        )
        yield link
    finally:
        for process in reversed(started.values()):
            process.terminate()
        for process in started.values():
            with suppress(subprocess.TimeoutExpired):  # then it is killed, as all that is left
                process.wait(LAST_SECONDS)


def quiet(home: Path, env: Mapping[str, str], *arguments: str, seconds: float = 60.0) -> None:
    """Carry out a command of fedkeel.

    Raises:
        BenchError: it fails, or takes longer than so many seconds.
    """
    log = home / "command.log"
    try:
        with log.open("wb") as out:
            subprocess.run(
                [BIN / "fedkeel", *arguments], cwd=home, env=env, check=True, timeout=seconds,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
    except subprocess.SubprocessError:
        said = last_lines(log)
        raise BenchError(f"fedkeel {arguments[0]} failed; it said last:\n  {said}") from None


def draw(folder: Path, pictures: int) -> None:
    """Write random pictures, PATH/CLASS/*.png."""
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(pictures // CLASSES):
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}/{number}.png")


def ours(home: Path, model: str, clients: int, rounds: int) -> Mapping[str, float]:
    """Return the seconds of each phase of the median round after the first."""
    settings = {
        "model": model, "clients": clients, "participation": 1.0, "rounds": rounds,
        "data.name": f'"folder:{home / "pictures"}"', "data.partition": "iid",
        "eval-every": 0, "server.checkpoint-every": 1, "train.device": "cpu", "name": model,
    }  # fmt: skip
    pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    env = {**os.environ, **QUIET, "FEDKEEL_SUPERLINK": f"127.0.0.1:{PORT}"}
    patience = PATIENCE_SECONDS + ROUND_SECONDS * rounds
    quiet(home, env, "run", "fedpcd", "--engine", "superlink", *pairs, seconds=patience)
    records = read_records(home / "runs" / model)[1:]
    last = [max(record.arrived, key=lambda c: record.arrived[c]) for record in records]
    start = median(r.worked[c]["start"] for r, c in zip(records, last, strict=True))
    work = median(r.worked[c]["work"] for r, c in zip(records, last, strict=True))
    train = median(record.seconds["train"] for record in records)
    server = median(
        sum(record.seconds.get(phase, 0.0) for phase in ("configure", "aggregate", "checkpoint"))
        for record in records
    )
    return {
        "round": train + server, "process start": start, "work": work,
        "polls and transfer": train - start - work, "server": server,
    }  # fmt: skip


def stock(home: Path, link: SuperLinkClient, model: str, clients: int, rounds: int) -> float:
    """Return the median seconds of a round of the reference after the first."""
    layout = FlatModel(build(model, (3, SIDE, SIDE), CLASSES, seed=0)).layout
    shapes = ",".join("x".join(map(str, tensor.shape)) for tensor in layout.tensors)
    out = home / f"stock-{model}.json"
    given = home / "stock.toml"
    given.write_text(
        f'shapes = "{shapes}"\nrounds = {rounds}\nclients = {clients}\nout = "{out}"\n'
    )
    said = link.flwr("run", str(STOCK), "--run-config", str(given))
    until = time.monotonic() + PATIENCE_SECONDS + ROUND_SECONDS * rounds
    while not out.exists():
        status = str(link.flwr("ls", "--run-id", str(said["run-id"]))["runs"][0]["status"])
        if status.startswith("finished:failed") or time.monotonic() > until:
            raise BenchError(f"the stock app with {model} has no result; its run is {status}")
        time.sleep(2)
    time.sleep(2)
    ends = json.loads(out.read_text())
    return median(np.diff(ends)[1:])


Rows = dict[str, Mapping[str, float]]  # by model


def measure(given: argparse.Namespace, rows: Rows, home: Path) -> None:
    """Measure all models; `rows` gets each of them."""
    draw(home / "pictures", 40 * given.clients)
    with federation(home, given.clients) as link:
        for model in given.models:
            print(model, file=sys.stderr)  # noqa: T201
            reference = stock(home, link, model, given.clients, given.rounds)
            own = ours(home, model, given.clients, given.rounds)
            rows[model] = {**own, "stock": reference}


def show(given: argparse.Namespace, rows: Rows, why: str | None) -> None:
    """Print the table and write the file."""
    table = Table(title=f"seconds of a round, {given.clients} clients on loopback")
    for title in ("model", *next(iter(rows.values()), ())):
        table.add_column(title, justify="right")
    for model, row in rows.items():
        table.add_row(model, *(f"{value:.2f}" for value in row.values()))
    print_tables([table], LEGEND)
    keep(given.json, why, rows=rows)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, default=["cnn", "vgg11"])
    parser.add_argument("--clients", type=at_least(1), default=2)
    parser.add_argument("--rounds", type=at_least(2), default=5, help="the first does not count")
    add_json(parser)
    given = parser.parse_args()
    rows: Rows = {}
    carry_out(partial(measure, given, rows), partial(show, given, rows))


if __name__ == "__main__":
    main()
