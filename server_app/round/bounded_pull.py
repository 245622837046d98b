"""Pulls replies from a SuperLink, and refuses a reply that is too large before it is read.

Flower stores a message as a tree of objects: the message, its records, the arrays, and pieces of
arrays of at most 5 MB. The SuperLink names the objects first, so their number is known before any
is pulled. The size of each one is in the header of its answer, before the body is read.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from flwr.app import Array, ArrayRecord, Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

from common.errors import WireError
from common.flower_internals import (
    ConfirmMessageReceivedRequest,
    ErrorCode,
    HttpGrid,
    ObjectPullError,
    PullAppMessagesRequest,
    get_object_body,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    iterate_object_tree,
    make_message,
    make_pull_object_fn_protobuf,
    pull_objects,
)
from common.io.text import single_line
from common.wire.content import payload_bytes, records_of

ROOM = 10**6  # bytes of a reply beyond arrays and vectors: names, metrics, an error's text
PIECE = 5 << 20  # bytes of a piece of an array
MORE_OBJECTS = 16  # records, and further small ones of an ordinary Flower client
PULL = "/v1/runtime/pull-object"
_local = threading.local()  # `size` is the _Size of the reply that this thread pulls


class ReplyTooLargeError(WireError):
    """A reply is larger than the answer to its order can be."""


@dataclass(frozen=True)
class ReplyLimit:
    """The size that a reply to an order may have.

    Attributes:
        bytes: bytes of all parts.
        objects: number of parts.
    """

    bytes: int = ROOM
    objects: int = MORE_OBJECTS

    @classmethod
    def of(cls, contents: Iterable[RecordDict], vectors: Mapping[str, int]) -> "ReplyLimit":
        """Return the limit for the replies to orders with these contents.

        Args:
            contents: contents of the orders. A reply has the same arrays.
            vectors: sizes of the method's vectors in a reply, in float32 values.
        """
        orders = list(contents)
        arrays = [
            len(array.data)
            for record in (records_of(orders[0], ArrayRecord).values() if orders else ())
            for array in record.values()
        ]
        total = max((payload_bytes(content) for content in orders), default=0)
        total += 4 * sum(vectors.values()) + ROOM
        pieces = sum(1 + ceil(size / PIECE) for size in arrays)
        return cls(total, pieces + MORE_OBJECTS)


@dataclass
class _Size:
    """The bytes of a reply so far. Threads that pull its parts share it."""

    limit: ReplyLimit
    bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int) -> None:
        """Add the size of a part.

        Raises:
            ReplyTooLargeError: the reply is too large.
        """
        with self.lock:
            self.bytes += size
            if self.bytes > self.limit.bytes:
                raise ReplyTooLargeError(
                    f"its reply is too large: more than {self.limit.bytes / 1e6:.1f} MB, which is "
                    "the model, the method's vectors and 1 MB"
                )


def pull_replies(
    grid: Grid, message_ids: Iterable[str], limit: ReplyLimit
) -> tuple[list[Message], dict[str, str]]:
    """Return the replies that arrived, and the reason why each other one cannot be read.

    Grids other than that of a SuperLink have their clients in this machine's own processes. Their
    replies are not limited.

    Args:
        grid: Flower's grid.
        message_ids: ids of the messages that were sent.
        limit: the size that a reply may have.
    """
    if not isinstance(grid, HttpGrid):
        return list(grid.pull_messages(message_ids)), {}
    client = grid._runtime_client
    hooks = client._client.event_hooks
    if _add_size not in hooks["response"]:
        client._client.event_hooks = {**hooks, "response": [*hooks["response"], _add_size]}
    pulled = client.PullMessages(PullAppMessagesRequest(message_ids=list(message_ids)))
    replies: list[Message] = []
    refused: dict[str, str] = {}
    for reply, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
        name, order = reply.metadata.message_id, reply.metadata.reply_to_message_id
        try:
            contents = _pull(grid, tree, limit)
        except ObjectPullError as error:  # the upload did not end in time
            replies.append(_unavailable(grid, order, str(error)))
            continue
        except ReplyTooLargeError as error:
            refused[order] = str(error)
        else:
            message = _inflate(name, contents, limit)
            if isinstance(message, Message):
                replies.append(message)
            else:
                refused[order] = message
        client.ConfirmMessageReceived(  # deletes the reply from the SuperLink's database
            ConfirmMessageReceivedRequest(
                node=grid.node, run_id=grid.run.run_id, message_object_id=name
            )
        )
    return replies, refused


def _pull(grid: Any, tree: Any, limit: ReplyLimit) -> dict[str, bytes]:
    """Return the objects of one reply by id.

    Raises:
        ReplyTooLargeError: the reply is too large.
        ObjectPullError: an object is missing.
    """
    names = list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))
    if len(names) > limit.objects:
        raise ReplyTooLargeError(
            f"its reply is too large: {len(names)} parts, expected at most {limit.objects}"
        )
    client, size = grid._runtime_client, _Size(limit)
    pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, grid.run.run_id)

    def pull_within_limit(name: str) -> bytes:
        _local.size = size
        try:
            return pull(name)
        finally:
            _local.size = None

    contents: dict[str, bytes] = pull_objects(names, pull_within_limit)
    return contents


def _inflate(name: str, contents: dict[str, bytes], limit: ReplyLimit) -> Message | str:
    """Return the reply that these objects form, or the reason why they form none.

    An array may repeat a piece, so that 5 MB on the wire become any number of bytes in memory.
    """
    size = _Size(limit)
    try:
        for content in contents.values():
            size.add(_bytes_inside(content, contents))
        message = inflate_object_from_contents(name, contents)
    except ReplyTooLargeError as error:
        return str(error)
    except Exception as error:  # bytes from outside fail in many ways
        text = single_line(f"{type(error).__name__}: {error}")
        return f"its reply is malformed: {text!r}"
    if not isinstance(message, Message):
        return f"its reply is malformed: a {type(message).__name__} in place of a message"
    message.metadata.__dict__["_message_id"] = name
    return message


def _add_size(response: Any) -> None:
    """Add the announced size of a part to its reply. httpx calls this before it reads the body."""
    size = getattr(_local, "size", None)
    if size is not None and response.request.url.path == PULL:
        size.add(int(response.headers.get("content-length", 0)))


def _bytes_inside(content: bytes, contents: Mapping[str, bytes]) -> int:
    """Return the bytes that an object has in memory, those of its arrays included."""
    kind, children, _ = get_object_head_values_from_object_content(content)
    if kind == "ArrayChunk":
        return 0  # counted in its array
    if kind != "Array":
        return len(content)
    numbers = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return len(content) + sum(len(contents[children[number]]) for number in numbers)


def _unavailable(grid: Any, message_id: str, reason: str) -> Message:
    """Return the error message that Flower puts in place of a reply whose upload did not end."""
    node = grid.node.node_id
    metadata = Metadata(grid.run.run_id, "", node, node, message_id, "", 0.0, 0.0, "system")
    return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))
