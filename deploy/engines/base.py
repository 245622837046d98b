"""The interface of an engine, which starts a run and controls it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common.config import RunConfig
from deploy.federation.superlink_client import SuperLinkClient


@dataclass(frozen=True)
class Resources:
    """The resources that a run may use.

    Attributes:
        workers: clients that run at the same time.
        client_gpus: share of a GPU that each of them gets.
        link: the SuperLink whose nodes train. The other engines need none.
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
        """The reason why the run ended without an outcome, as far as it is known."""


Engine = Callable[[RunConfig, Resources], Job]
