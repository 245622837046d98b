"""UpdateLimits: refuses the updates that are far longer than those of the other clients.

One client can otherwise end a run: its update enters the model whole, and from the next round on no
client can train. Neither paper of FedPCD or FedPVR has such a rule. It refuses updates, and changes
no update that it accepts.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import TypeAlias

from common.types import ClientId

UPDATE = "update"  # name of the displacement among the vectors of a reply
FEW = 5  # a smaller cohort is compared with earlier rounds too
MEMORY = 10  # lengths of earlier updates that are kept
FEWEST = 3  # two lengths alone do not tell which client is the odd one

Lengths: TypeAlias = Mapping[str, float]  # length of each vector of a reply, by name


class UpdateLimits:
    """The largest length of a client's vectors, relative to the other clients'.

    Args:
        max_ratio: largest ratio of a length to the median length; 0 for no limit.
        max_norm: largest length of a displacement; 0 for no limit.
    """

    def __init__(self, max_ratio: float, max_norm: float) -> None:
        self.max_ratio, self.max_norm = max_ratio, max_norm
        self._earlier: dict[str, deque[float]] = {}
        self._newest: Mapping[ClientId, float] = {}  # of the displacements of the last step

    def remember(self, accepted: Mapping[ClientId, Lengths]) -> None:
        """Keep the lengths of a round's accepted updates, for the next small cohorts."""
        self._newest = {client: lengths[UPDATE] for client, lengths in accepted.items()}
        for lengths in accepted.values():
            for name, length in lengths.items():
                self._earlier.setdefault(name, deque(maxlen=MEMORY)).append(length)

    def refusals(self, lengths: Mapping[ClientId, Lengths]) -> dict[ClientId, str]:
        """Return the reason for each client whose update must not be used.

        Args:
            lengths: length of each finite vector of each usable reply.
        """
        medians = self._medians(list(lengths.values()))
        reasons: dict[ClientId, str] = {}
        for client, own in lengths.items():
            for name, length in own.items():
                if reason := self._reason(name, length, medians.get(name)):
                    reasons[client] = reason
                    break
        return reasons

    @property
    def longest(self) -> str:
        """A sentence about the longest update of the last step, "" without any."""
        if not self._newest:
            return ""
        client = max(self._newest, key=lambda name: self._newest[name])
        others = median_low(self._newest.values())
        return (
            f"the longest update in it came from client {client}: {self._newest[client]:.3g}, and "
            f"the median is {others:.3g}"
        )

    def _medians(self, cohort: Sequence[Lengths]) -> dict[str, float]:
        """Return the median length of each vector, without the names that have too few lengths.

        Zero lengths do not count: a client that did not move says nothing about the others.
        """
        medians = {}
        for name in {name for lengths in cohort for name in lengths}:
            known = [lengths[name] for lengths in cohort if lengths.get(name, 0) > 0]
            if len(cohort) < FEW:
                known += [length for length in self._earlier.get(name, ()) if length > 0]
            if len(known) >= FEWEST:
                medians[name] = median_low(known)
        return medians

    def _reason(self, name: str, length: float, median: float | None) -> str:
        if name == UPDATE and 0 < self.max_norm < length:
            return (
                f"its update has the length {length:.3g}, and server.max-update-norm allows "
                f"{self.max_norm:g}"
            )
        if self.max_ratio and median and length > self.max_ratio * median:
            what = "its update" if name == UPDATE else f'its vector "{name}"'
            return (
                f"{what} has the length {length:.3g}, {length / median:.3g} times the median of "
                f"{median:.3g}; server.max-update-ratio allows {self.max_ratio:g} times"
            )
        return ""
