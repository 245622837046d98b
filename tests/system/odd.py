"""Make the clients of a fleet behave oddly, by a sitecustomize.py in their processes.

    odd = Odd(tmp_path / "odd")
    made.join("2", extra=odd.env())
    odd.give({"2": ["", "nan", "hangs"]})    # with its first, second and third order to train

The odd behaviour is in the ClientApp's process. All other code is the client's own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SITECUSTOMIZE = """
import json, os, sys, time
from pathlib import Path

program = Path(sys.orig_argv[1]).name if len(sys.orig_argv) > 1 else ""
beat = int(os.environ.get("FEDKEEL_TEST_BEAT", "0"))
if program == "flower-supernode" and "FEDKEEL_TEST_QUICK" in os.environ:
    import types
    import flwr.supernode.start_client_internal as node
    node.time = types.SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, 0.2)))
if program == "flower-supernode" and beat:  # its own heartbeats to the SuperLink stay as they are
    import flwr.supercore.corestate.in_memory_corestate
    flwr.supercore.corestate.in_memory_corestate.HEARTBEAT_DEFAULT_INTERVAL = beat
if program == "flwr-clientapp" and beat:
    import flwr.supercore.heartbeat
    flwr.supercore.heartbeat.HEARTBEAT_DEFAULT_INTERVAL = beat

if program == "flwr-clientapp":
    import hashlib, pickle
    import numpy as np
    from flwr.app import Array, ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

    def weights(reply, change):
        record = reply.content["arrays"]
        record["weights"] = change(record["weights"])

    def nan(reply):
        weights(reply, lambda old: Array(np.full(old.shape, np.nan, "float32")))

    def shape(reply):
        weights(reply, lambda old: Array(np.zeros(3, "float32")))

    def stamp(reply):
        reply.content["config"]["server-round"] = 99

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (os.environ["FEDKEEL_TEST_ORDERS"] + "/bombed",)

    def pickled(reply):
        config = reply.content["config"]
        data = pickle.dumps(Bomb())
        data += bytes(-len(data) % 4)
        [name] = [key for key in config if key.startswith("fedkeel.") and key[-7:] != ".digest"]
        config[name] = data
        config[name + ".digest"] = hashlib.blake2b(data, digest_size=8).digest()

    def header(reply):
        said = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }"
        said += b" " * (64 - (10 + len(said) + 1) % 64) + b"\\n"
        data = b"\\x93NUMPY\\x01\\x00" + len(said).to_bytes(2, "little") + said + bytes(64)
        weights(reply, lambda old: Array("float32", old.shape, "numpy.ndarray", data))

    def malformed(reply):
        ArrayRecord.deflate = lambda self: add_header_to_object_body(b"\\xff, no JSON", self)

    def raises(reply):
        raise RuntimeError("one two three")

    def large(reply):
        reply.content["arrays"]["more"] = Array(np.random.default_rng(0).random(37_500_000))

    def long(reply):
        reply.content["config"]["note"] = "x" * 50_000_000

    replies = (nan, shape, stamp, pickled, header, malformed, raises, large, long)
    ODD = {f.__name__: f for f in replies}
    honest = ClientApp.__call__

    def call(self, message, context):
        if message.metadata.message_type != "train":
            return honest(self, message, context)
        folder, client = Path(os.environ["FEDKEEL_TEST_ORDERS"]), os.environ["FEDKEEL_TEST_CLIENT"]
        words = json.loads((folder / "orders.json").read_text()).get(client, [])
        count = len(list(folder.glob(f"begun-{client}-*")))
        word = words[count] if count < len(words) else ""
        import client_app.app
        train = client_app.app.train

        def slowly(*parts, **more):
            (folder / f"begun-{client}-{count}").touch()
            time.sleep(1e6 if word == "hangs" else 0.5)
            while word == "waits" and not (folder / f"go-{client}-{count}").exists():
                time.sleep(0.1)
            return train(*parts, **more)

        client_app.app.train = slowly
        reply = honest(self, message, context)
        ODD.get(word, lambda reply: None)(reply)
        return reply

    ClientApp.__call__ = call
"""


@dataclass(frozen=True)
class Odd:
    """Orders to clients, in a folder that their processes read."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        self.give({})

    def env(self, *, quick: bool = False, beat: int = 0) -> dict[str, str]:
        """Return the environment of a client's processes.

        Args:
            quick: its node looks for orders every 0.2 s instead of Flower's 3 s.
            beat: seconds between heartbeats, at least 6, instead of Flower's 30. Its node notices
                a killed ClientApp's process after two of them.
        """
        env = {"PYTHONPATH": str(self.folder), "FEDKEEL_TEST_ORDERS": str(self.folder)}
        env |= {"FEDKEEL_TEST_QUICK": "1"} if quick else {}
        return env | ({"FEDKEEL_TEST_BEAT": str(beat)} if beat else {})

    def give(self, orders: Mapping[str, Sequence[str]]) -> None:
        """Set the behaviour of each client for its next orders to train, one word for each."""
        for pattern in ("begun-*", "go-*"):
            for note in self.folder.glob(pattern):
                note.unlink()
        self.replace(orders)

    def replace(self, orders: Mapping[str, Sequence[str]]) -> None:
        """Replace the words of `give`; the count of each client's orders goes on."""
        (self.folder / "new").write_text(json.dumps(orders))
        (self.folder / "new").replace(self.folder / "orders.json")

    def go(self, client: str, count: int) -> None:
        """Let a client continue that waits with this order, counted from 0."""
        (self.folder / f"go-{client}-{count}").touch()

    def has_begun(self, client: str, since: float) -> bool:
        """Return whether a client has begun to train since then (seconds since 1970)."""
        return any(n.stat().st_mtime > since for n in self.folder.glob(f"begun-{client}-*"))

    @property
    def bombed(self) -> bool:
        """Return whether a process has unpickled a client's reply."""
        return (self.folder / "bombed").exists()
