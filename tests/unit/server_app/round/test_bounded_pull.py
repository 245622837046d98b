"""Replies are pulled from a SuperLink within a limit. Flower's own client talks to a fake one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from server_app.round.bounded_pull import MORE_OBJECTS, ROOM, ReplyLimit, pull_replies

pytestmark = pytest.mark.usefixtures("flower_identity")
SIZE = 100_000  # weights


class _Unread(httpx.SyncByteStream):
    """A body that must not be read."""

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("the body was read")


@dataclass
class FakeSuperLink:
    """The Runtime API of a SuperLink that has these replies.

    Attributes:
        unread: objects of more bytes have a body that must not be read.
        confirmed: ids of the messages that were confirmed, which a SuperLink then deletes.
        pulled: number of objects that were pulled.
    """

    replies: list[Message]
    unread: int = 10**12
    confirmed: list[str] = field(default_factory=list)
    pulled: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    trees: list[ObjectTree] = field(default_factory=list)

    def __post_init__(self) -> None:
        for reply in self.replies:
            reply.metadata.__dict__["_message_id"] = reply.object_id
            nested = get_all_nested_objects(reply)
            self.objects |= {name: part.deflate() for name, part in nested.items()}
            self.trees.append(get_object_tree(reply))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        action = request.url.path.rpartition("/")[2]
        if action == "pull-messages":
            pulled = PullAppMessagesResponse(
                messages_list=[
                    message_to_proto(remove_content_from_message(r)) for r in self.replies
                ],
                message_object_trees=self.trees,
            )
            return httpx.Response(200, content=pulled.SerializeToString())
        if action == "confirm-message-received":
            told = ConfirmMessageReceivedRequest.FromString(request.content)
            self.confirmed.append(told.message_object_id)
            return httpx.Response(200, content=ConfirmMessageReceivedResponse().SerializeToString())
        self.pulled += 1
        content = self.objects[PullObjectRequest.FromString(request.content).object_id]
        answer = PullObjectResponse(
            object_found=True, object_available=True, object_content=content
        ).SerializeToString()
        if len(content) > self.unread:
            return httpx.Response(
                200, headers={"content-length": str(len(answer))}, stream=_Unread()
            )
        return httpx.Response(200, content=answer)

    def grid(self) -> HttpGrid:
        grid = HttpGrid("127.0.0.1:1", insecure=True, token="t")
        grid.set_run(Run.create_empty(run_id=1))
        grid._runtime_client._client = httpx.Client(transport=httpx.MockTransport(self))
        return grid


def order() -> Message:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(SIZE, "float32"))})})
    message = Message(content, 7, "train")
    message.metadata.__dict__["_message_id"] = "order"
    return message


def reply(**more: ArrayRecord | ConfigRecord) -> Message:
    weights = Array(np.arange(SIZE, dtype="float32"))
    return Message(RecordDict({"arrays": ArrayRecord({"w": weights}), **more}), reply_to=order())


DATA = len(Array(np.zeros(SIZE, "float32")).data)
LIMIT = ReplyLimit(DATA + ROOM, 2 + MORE_OBJECTS)


def test_the_limit_is_the_order_the_vectors_and_one_megabyte() -> None:
    assert ReplyLimit.of([order().content], vectors={}) == LIMIT
    assert ReplyLimit.of([order().content], vectors={"c": 100}).bytes == LIMIT.bytes + 400
    assert ReplyLimit.of([], vectors={}) == ReplyLimit(ROOM, MORE_OBJECTS)


def test_an_honest_reply_is_returned_and_deleted_at_the_superlink() -> None:
    link = FakeSuperLink([reply()])
    [message], refused = pull_replies(link.grid(), ["order"], LIMIT)
    assert refused == {}
    assert message.metadata.reply_to_message_id == "order"
    assert (message.content["arrays"]["w"].numpy() == np.arange(SIZE)).all()  # type: ignore[index,union-attr]
    assert link.confirmed == [message.metadata.message_id]


def test_an_object_that_is_too_large_is_refused_before_its_body_is_read() -> None:
    link = FakeSuperLink([reply(config=ConfigRecord({"note": "x" * 3_000_000}))], unread=2_000_000)
    messages, refused = pull_replies(link.grid(), ["order"], LIMIT)
    assert messages == []
    assert refused["order"].startswith("its reply is too large: more than 1.4 MB")
    assert len(link.confirmed) == 1


def test_many_small_arrays_are_refused_before_any_is_pulled() -> None:
    many = ArrayRecord({str(k): Array(np.full(3, k)) for k in range(50)})
    link = FakeSuperLink([reply(more=many)])
    messages, refused = pull_replies(link.grid(), ["order"], LIMIT)
    assert (messages, link.pulled) == ([], 0)
    assert "parts, expected at most 18" in refused["order"]
    assert len(link.confirmed) == 1


def test_an_array_that_repeats_one_piece_is_refused_before_it_is_put_together() -> None:
    """A piece of 400 kB, repeated 100,000 times, is 40 GB."""
    link = FakeSuperLink([reply()])
    [name] = [key for key, data in link.objects.items() if data.startswith(b"Array ")]
    head, _, body = link.objects[name].partition(b"\x00")
    bomb = {**json.loads(body), "arraychunk_ids": [0] * 100_000}
    link.objects[name] = head + b"\x00" + json.dumps(bomb).encode()
    messages, refused = pull_replies(link.grid(), ["order"], LIMIT)
    assert messages == []
    assert "too large" in refused["order"]


@pytest.mark.parametrize("kind", [b"Array ", b"ArrayRecord ", b"RecordDict ", b"Message "])
def test_a_malformed_reply_is_refused_and_the_others_are_returned(kind: bytes) -> None:
    link = FakeSuperLink([reply()])
    [name] = [key for key, data in link.objects.items() if data.startswith(kind)]
    head, _, _ = link.objects[name].partition(b"\x00")
    link.objects[name] = head + b"\x00\xff{"
    messages, refused = pull_replies(link.grid(), ["order"], LIMIT)
    assert messages == []
    assert refused["order"].startswith("its reply is malformed: ")
    assert refused["order"].isprintable()
