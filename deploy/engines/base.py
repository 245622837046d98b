"""What an engine is: it starts a run and can be asked and told about it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from common.config import RunConfig
from deploy.link import Link

logger = logging.getLogger("flwr")


@dataclass(frozen=True)
class Resources:
    """What a run may use of this machine.

    Attributes:
        workers: clients that run at the same time.
        client_gpus: share of a GPU that each of them gets.
        link: the SuperLink whose nodes train; the other engines need none.
    """

    workers: int
    client_gpus: float = 0.0
    link: Link | None = None


class Job(Protocol):
    """A run that was started."""

    def is_alive(self) -> bool:
        """Whether it still goes on."""

    def stop(self) -> None:
        """End it, and everything that it started, now."""

    def why_it_ended(self) -> str:
        """What is known when it ended without an outcome."""


Engine = Callable[[RunConfig, Resources], Job]


def answer(app: ClientApp, message: Message, context: Context) -> Message:
    """Return a client's reply; what it raises goes into the log, and into the reply in short."""
    try:
        reply = app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"the ClientApp returned {reply!r} instead of a Message")
        return reply
    except (Exception, SystemExit) as error:  # as Flower does: a client's failure is a reply
        logger.exception("client %s raised an error", context.node_config.get("partition-id"))
        reason = f"{type(error).__name__}: {error}"
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return Message(Error(code, reason), reply_to=message)
