"""A very big model on real nodes, checked by hand: the time and memory of a round.

    python -m tests.system.check_big_model [--megabytes 600] [--clients 3] [--rounds 1]

The clients send back the model that they get. The exchange, the wire and the federation's
processes are the product's own. It prints JSON; 600 MB take minutes and several GB of memory.
"""

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from deploy.federation.superlink_client import SuperLinkClient
from tests.system.federation import wait_for
from tests.system.fleet import Fleet, fleet

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "big"
version = "1.0.0"
description = "Sends a very big model around."
license = { text = "Apache-2.0" }
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "fedkeel"
[tool.flwr.app.components]
serverapp = "big:server"
clientapp = "big:client"
[tool.flwr.app.config]
out = ""
floats = 0
clients = 0
rounds = 0
"""
APP = '''
"""Every client sends the model back; the server looks whether it is the same."""
import json, time
from pathlib import Path
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from common.layout import Layout, Tensor
from common.wire.arrays import FlatCodec
from common.wire.content import payload_bytes
from common.wire.messages import Order, TrainReply, read_train_reply
from server_app.round.messaging import Messenger, ExchangeLimits
from server_app.round.ready_clients import clients_by_name

server = ServerApp()
client = ClientApp()

def codec(context):
    return FlatCodec(Layout((Tensor("w", (context.run_config["floats"],)),), ()))

@server.main()
def main(grid, context):
    config, flat = context.run_config, codec(context)
    model = np.random.default_rng(1).standard_normal(config["floats"], dtype=np.float32)
    while len(clients_by_name(grid).nodes) < config["clients"]:
        time.sleep(0.5)
    rounds, post = [], Messenger()
    for number in range(1, config["rounds"] + 1):
        begin = time.monotonic()
        arrays = flat.pack(model, {})
        contents = {
            name: RecordDict({"arrays": arrays,
                              "config": Order(number, 0.1, flat.layout.digest, {}, name).config()})
            for name in clients_by_name(grid).clients
        }
        sent = payload_bytes(next(iter(contents.values())))
        limits = ExchangeLimits(3000.0)
        answers = post.exchange(
            grid, "train", contents, clients_by_name, limits, round=number
        )
        same = {}
        for name in sorted(answers.replies):
            reply = answers.replies.pop(name)
            if reply.has_error():
                same[name] = str(reply.error)
                continue
            weights = read_train_reply(reply.content, flat, number).weights
            same[name] = bool((weights == model).all())
        rounds.append({"seconds": time.monotonic() - begin, "arrived": answers.seconds,
                       "bytes": sent, "same": same, "missing": answers.missing})
    Path(config["out"]).write_text(json.dumps(rounds))

@client.train()
def train(message, context):
    flat = codec(context)
    order = Order.read(message.content, flat.layout)
    weights, _ = flat.unpack(message.content["arrays"])
    reply = TrainReply(order.client, order.round, weights, {}, 1, 1, 0.1).record(flat)
    return Message(reply, reply_to=message)
'''
PROGRAMS = ("flower-superlink", "flwr-serverapp", "flower-supernode", "flwr-clientapp", "nginx")


@contextmanager
def peaks(made: Fleet) -> Iterator[dict[str, int]]:
    """Largest resident memory of one process of each kind, in MB, while the block runs."""
    found: dict[str, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            for process in made.family():
                with suppress(psutil.Error, IndexError):
                    words = {Path(word).name for word in process.cmdline()[:2]} | {process.name()}
                    for program in words & {*PROGRAMS}:
                        megabytes = process.memory_info().rss // 10**6
                        found[program] = max(found.get(program, 0), megabytes)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def main() -> None:
    """Make a federation, send the model around, and print what it took."""
    parser = argparse.ArgumentParser(description="A very big model on real nodes.")
    for name, default in (("megabytes", 600), ("clients", 3), ("rounds", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    with tempfile.TemporaryDirectory(prefix="fedkeel-big-") as home:
        folder, out = Path(home) / "app", Path(home) / "out.json"
        folder.mkdir()
        (folder / "pyproject.toml").write_text(PYPROJECT)
        (folder / "big.py").write_text(APP)
        names = [str(number) for number in range(given.clients)]
        with fleet(Path(home) / "f", given.clients) as made, peaks(made) as found:
            made.enroll(*names)
            made.join(*names)
            config = {"out": str(out), "floats": given.megabytes * 250_000}
            config |= {"clients": given.clients, "rounds": given.rounds}
            said = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
            link = SuperLinkClient(f"127.0.0.1:{made.port}", made.ca)
            link.flwr("run", str(folder), "--run-config", said)
            begin = time.monotonic()

            def is_over() -> bool:
                ended = link.flwr("ls")["runs"][0]["status"].startswith("finished")
                assert out.exists() or not ended, f"the run ended without a result{made.tails}"
                return out.exists()

            wait_for(is_over, lambda: made.tails, 3600)
            took = {"seconds": round(time.monotonic() - begin, 1), "peak MB": dict(found)}
            told = {**took, "rounds": json.loads(out.read_text())}
            sys.stdout.write(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
