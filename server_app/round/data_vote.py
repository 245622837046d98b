"""DataVote: decides which kind of data the clients of a run must have."""

from collections import Counter
from collections.abc import Mapping

from common.types import ClientId
from common.wire.client_card import DataKind

SHOWN = 3  # names in a sentence


class DataVote:
    """The kind of data that the run config demands, or else the kind that most clients have.

    Without a demand the kind follows the majority until `close` is called.

    Args:
        demanded: the kind that the run config demands, None if the clients decide.
    """

    def __init__(self, demanded: DataKind | None) -> None:
        self.demanded = self.chosen = demanded

    def winner(self, kinds: Mapping[ClientId, DataKind]) -> DataKind | None:
        """Return the chosen kind, or else the most frequent one, None without clients.

        Args:
            kinds: the kind of each connected client, sorted by client. Of equally frequent kinds
                the kind of the first client wins.
        """
        if self.chosen or not kinds:
            return self.chosen
        counts = Counter(kinds.values())  # keeps the order of the clients
        return max(counts, key=lambda kind: counts[kind])

    def close(self, kinds: Mapping[ClientId, DataKind]) -> None:
        """Keep the winner from now on, because the run starts with it."""
        self.chosen = self.winner(kinds)

    def losers(self, kinds: Mapping[ClientId, DataKind]) -> tuple[dict[ClientId, str], bool]:
        """Return the reason why each client with another kind cannot take part.

        Args:
            kinds: the kind of each connected client, sorted by client.

        Returns:
            The reasons by client, and whether the winner is settled: it is the chosen one, or more
            clients have it than any other kind.
        """
        winner = self.winner(kinds)
        holders = [client for client, kind in kinds.items() if kind == winner]
        others = {client: kind for client, kind in kinds.items() if kind != winner}
        most = max(Counter(others.values()).values(), default=0)
        shown = ", ".join(holders[:SHOWN]) + (" ..." if len(holders) > SHOWN else "")
        if self.demanded:
            majority = f"the run config demands {winner}"
        elif len(holders) == 1:
            majority = f"client {shown} has {winner}"
        else:
            majority = f"the {len(holders)} clients {shown} have {winner}"
        reasons = {client: self._reason(client, kind, majority) for client, kind in others.items()}
        return reasons, self.chosen is not None or len(holders) > most

    @staticmethod
    def _reason(client: ClientId, kind: DataKind, majority: str) -> str:
        return (
            f"client {client} has {kind}, {majority}; all clients must hold the same kind of data"
        )
