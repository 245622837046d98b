"""A federation of clients that bring their own pictures, with real folders and the real apps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp
from PIL import Image

from client_app.app import app
from common.config import parse
from common.errors import ClientError
from common.rng import stream
from common.runs.records import read_records
from common.wire.content import METRICS
from common.wire.reply_metrics import EXAMPLES
from deploy.engines.inline import InlineGrid
from server_app.app import run

CLASSES = ("cat", "dog", "zebra")
FEDERATION: Mapping[str, Any] = {
    "data.name": "own",
    "data.classes": ",".join(CLASSES),
    "data.image-size": 8,
    "data.channels": 1,
    "train.device": "cpu",
    "train.batch-size": 4,
    "participation": 1.0,
    "eval-every": 1,
    "server.start-timeout": 5.0,
}


class Owners(ClientApp):
    """The real clients, each with the folder that its owner named, as `fedkeel join` does."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self.folders = folders
        self.replies: list[Message] = []

    def __call__(self, message: Message, context: Context) -> Message:
        context.node_config["data"] = str(self.folders[int(context.node_config["partition-id"])])
        reply = app(message, context)
        self.replies.append(reply)
        return reply


def pictures(folder: Path, *names: str, each: int = 10) -> Path:
    """Noisy pictures, whose classes differ in the rows that are bright."""
    for name in names:
        label = CLASSES.index(name.strip().lower()) if name.strip().lower() in CLASSES else 0
        (folder / name).mkdir(parents=True)
        rng = stream(0, "pictures", folder.name, name)
        for number in range(each):
            pixels = rng.integers(0, 100, (12, 12), dtype=np.uint8)
            pixels[label::3] += 150
            Image.fromarray(pixels).save(folder / name / f"secret{number}.png")
    return folder


def federate(owners: Owners, out: Path, **settings: Any) -> None:
    clients = len(owners.folders)
    config = parse({**FEDERATION, "clients": clients, "out": str(out), "name": "run", **settings})
    grid = InlineGrid(owners, clients, config.to_flat(), workers=1)
    try:
        run(grid, config)
    finally:
        grid.close()


# A public report of this bug: https://github.com/ultralytics/ultralytics/issues/13936
@pytest.mark.parametrize("method", ["fedpcd", "fedpvr"])
def test_clients_with_different_classes_learn_one_model(method: str, tmp_path: Path) -> None:
    folders = [
        pictures(tmp_path / "a", "cat", "dog"),
        pictures(tmp_path / "b" / "train", "dog", "zebra").parent,
        pictures(tmp_path / "c", "zebra"),
    ]
    pictures(tmp_path / "b" / "test", "cat", each=5)
    federate(Owners(folders), tmp_path, method=method, rounds=12)
    records = read_records(tmp_path / "run")
    assert all(len(record.replied) == 3 and not record.dropped for record in records)
    last = records[-1].evaluation
    assert last is not None
    assert [score.examples for score in last.clients.values()] == [4, 5, 4]
    right = [score.correct for score in last.clients.values()]
    assert right == [4, 5, 4]  # also the cats that the second client never trained on


def test_a_client_that_spells_classes_differently_is_refused_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    folders = [
        pictures(tmp_path / "a", "cat", "dog"),
        pictures(tmp_path / "b", "dog", "zebra"),
        pictures(tmp_path / "c", "Cat", "dog "),
    ]
    with pytest.raises(ClientError, match="2 folders are no class of the federation"):
        federate(Owners(folders), tmp_path / "all", rounds=1)
    federate(Owners(folders), tmp_path / "two", rounds=1, **{"server.quorum": 2})
    (record,) = read_records(tmp_path / "two" / "run")
    assert record.replied == ["0", "1"]


# A public report of this bug: https://github.com/pytorch/vision/issues/138
def test_counts_leave_a_client_and_names_do_not(tmp_path: Path) -> None:
    folders = [pictures(tmp_path / name, "cat", "dog") for name in ("a", "b", "c")]
    for number in range(5):
        (folders[2] / "cat" / f"secretbad{number}.png").write_text("no picture")
    strict, mild = Owners(folders), Owners(folders)
    with pytest.raises(ClientError, match="5 of 25 files cannot be used"):
        federate(strict, tmp_path / "strict", rounds=1)
    federate(mild, tmp_path / "mild", rounds=1, **{"data.max-bad": 0.2})
    trained = [
        reply.content[METRICS][EXAMPLES]
        for reply in mild.replies
        if reply.metadata.message_type == MessageType.TRAIN
    ]
    assert trained == [16, 16, 16]  # of 20 good pictures each; 4 are for the test
    for reply in (*strict.replies, *mild.replies):
        said = str(reply.error if reply.has_error() else reply.content)
        assert "secret" not in said
        assert str(tmp_path) not in said
