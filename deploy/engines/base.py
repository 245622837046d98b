"""What an engine is: it starts a run and can be asked and told about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common.config import RunConfig
from deploy.federation.superlink_client import SuperLinkClient


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
    link: SuperLinkClient | None = None


class Job(Protocol):
    """A run that was started."""

    def is_alive(self) -> bool:
        """Whether it still goes on."""

    def stop(self) -> None:
        """End it, and everything that it started, now."""

    def why_it_ended(self) -> str:
        """What is known when it ended without an outcome."""


Engine = Callable[[RunConfig, Resources], Job]
