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
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from common.models import FlatModel, build
from deploy.environment import QUIET
from deploy.link import Link
from server_app.records import read_records

BIN = Path(sys.prefix) / "bin"
CLASSES, SIDE = 10, 32
STOCK = Path(__file__).parent / "stock"
PORT, FLEET = 18600, 18643


@contextmanager
def federation(home: Path, clients: int) -> Iterator[Link]:
    """A server and `clients` clients on loopback, for as long as the block lasts."""
    env = {**os.environ, **QUIET, "HOME": str(home), "FEDKEEL_SUPERLINK": f"127.0.0.1:{PORT}"}
    started: list[subprocess.Popen[bytes]] = []

    def fedkeel(*arguments: str) -> None:
        subprocess.run([BIN / "fedkeel", *arguments], cwd=home, env=env, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip

    def start(name: str, *arguments: str) -> None:
        with (home / f"{name}.log").open("wb") as log:
            command = [str(BIN / "fedkeel"), *arguments]
            started.append(subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log))

    fedkeel("pki", "init")
    link = Link(f"127.0.0.1:{PORT}", home / "pki/public/ca.crt")
    try:
        start("server", "server", "--port", str(PORT), "--fleet", f"127.0.0.1:{FLEET}")
        while subprocess.run([BIN / "fedkeel", "clients"], cwd=home, env=env, check=False,
                             capture_output=True).returncode:  # fmt: skip
            time.sleep(0.5)
        for number in range(clients):
            fedkeel("key", str(number), "--dir", "keys")
            fedkeel("enroll", str(number), "--key", f"keys/{number}.pub")
            start(
                f"client-{number}",
                *("join", "--superlink", f"localhost:{FLEET}", "--ca", "pki/public/ca.crt"),
                *("--key", f"keys/{number}", "--partition", f"{number}/{clients}"),
                *("--data", "pictures"),
            )
        while sum(node["status"] == "online" for node in link.nodes()) < clients:
            time.sleep(1)
        yield link
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()


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
    command = [str(BIN / "fedkeel"), "run", "fedpcd", "--engine", "superlink", *pairs]
    subprocess.run(command, cwd=home, env=env, check=True, stdout=subprocess.DEVNULL)
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
        "round": train + server, "start": start, "work": work, "way": train - start - work,
        "server": server,
    }  # fmt: skip


def stock(home: Path, link: Link, model: str, clients: int, rounds: int) -> float:
    """Return the median seconds of a round of the reference after the first."""
    layout = FlatModel(build(model, (3, SIDE, SIDE), CLASSES, seed=0)).layout
    shapes = ",".join("x".join(map(str, tensor.shape)) for tensor in layout.tensors)
    out = home / f"stock-{model}.json"
    given = home / "stock.toml"
    given.write_text(
        f'shapes = "{shapes}"\nrounds = {rounds}\nclients = {clients}\nout = "{out}"\n'
    )
    said = link.flwr("run", str(STOCK), "--run-config", str(given))
    while not out.exists():
        status = link.flwr("ls", "--run-id", str(said["run-id"]))["runs"][0]["status"]
        assert not str(status).startswith("finished:failed"), status
        time.sleep(2)
    time.sleep(2)
    ends = json.loads(out.read_text())
    return median(np.diff(ends)[1:])


def main() -> None:
    """Measure and print the table; `--json` keeps it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["cnn", "vgg11"])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory(prefix="fedkeel-bench-") as folder:
        home = Path(folder)
        draw(home / "pictures", 40 * given.clients)
        with federation(home, given.clients) as link:
            for model in given.models:
                reference = stock(home, link, model, given.clients, given.rounds)
                rows[model] = {
                    **ours(home, model, given.clients, given.rounds), "stock": reference
                }  # fmt: skip
    table = Table(title=f"seconds of a round, {given.clients} clients on loopback, medians")
    titles = ("model", "round", "process start", "work", "polls and transfer", "server", "stock")
    for title in titles:
        table.add_column(title, justify="right")
    for model, row in rows.items():
        table.add_row(model, *(f"{value:.2f}" for value in row.values()))
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
