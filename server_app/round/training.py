"""Training: turns the replies of a round into the next state and the round's record."""

import logging
from collections.abc import Mapping
from functools import partial
from math import isfinite
from typing import Any

from flwr.app import Message

from common.errors import AggregationError, FedError
from common.io.text import name_list
from common.methods import Method
from common.runs.records import RoundRecord
from common.types import ClientId, Cohort, Step
from common.wire.reply_metrics import read_metrics
from server_app.round.error_reasons import refusal_of
from server_app.round.replies import CheckedReplies, check_replies, check_train_reply
from server_app.round.round_exchange import RoundExchange, SentMessages
from server_app.round.update_limits import UpdateLimits
from server_app.state.options import Diagnose, Options
from server_app.state.server_model import ServerModel
from server_app.state.server_state import ServerState, next_state

logger = logging.getLogger("flwr")
NO_CLIENT_SAMPLED = "no client was sampled to train"


class Training:
    """Checks replies, forms the next state and counts void rounds.

    Args:
        method: the method with its settings.
        options: how rounds run.
        model: the model of the run. A round that is not void changes its state.
    """

    def __init__(self, method: Method[Any], options: Options, model: ServerModel) -> None:
        self.method, self.options, self.model = method, options, model
        self.limits = UpdateLimits(options.max_update_ratio, options.max_update_norm)
        self.void_rounds = 0  # in a row

    def aggregate(
        self,
        server_round: int,
        exchange: RoundExchange,
        replies: Mapping[ClientId, Message],
        diagnose: Diagnose | None,
    ) -> tuple[RoundRecord, CheckedReplies]:
        """Form the next state from the replies that can be used.

        Args:
            server_round: number of the round.
            exchange: that of the round.
            replies: by client.
            diagnose: diagnostics of a round that changes the model.

        Returns:
            The round's record and the checked replies.
        """
        sent, before = exchange.sent, self.model.current_state
        if not sent.clients:
            nothing = RoundRecord(server_round, sent.lr, [], [], void=NO_CLIENT_SAMPLED)
            return nothing, CheckedReplies()
        checked = self._check(server_round, sent, replies, before)
        usable, needed = len(checked.updates), self.options.min_replies
        void: str | None = f"{usable} of {len(sent.cohort)} replies usable, {needed} needed"
        report: Mapping[str, Any] = {}
        diagnostics: Mapping[str, Any] = {}
        if usable >= needed:
            cohort = Cohort(server_round, sent.lr, exchange.federation_size, tuple(checked.updates))
            void, step = self._advance(before, cohort)
            if step:
                self.limits.remember(checked.lengths)
                report, diagnostics = step.report, self._diagnostics(diagnose, before, cohort, step)
        record = RoundRecord(
            round=server_round,
            lr=sent.lr,
            cohort=sent.cohort,
            replied=[update.client for update in checked.updates],
            dropped=checked.dropped,
            void=void,
            train_loss=checked.train_loss,
            again=sent.again,
            late=exchange.take_late(),
            arrived=sent.seconds,
            worked=checked.worked,
            bytes_down=dict(sent.bytes_down),
            bytes_up=checked.bytes_up,
            examples={update.client: update.examples for update in checked.updates},
            lengths={client: dict(lengths) for client, lengths in checked.lengths.items()},
            method=dict(report),
            diagnostics=dict(diagnostics),
        )
        return record, checked

    def remember(self, record: RoundRecord) -> None:
        """Take the lengths of an earlier round's updates from its record, before a resume."""
        if not record.void:
            self.limits.remember(record.lengths)

    def count_void(self, record: RoundRecord) -> None:
        """Count the void rounds in a row.

        Raises:
            AggregationError: they are `max_void_rounds`.
        """
        if not record.void:
            self.void_rounds = 0
            return
        if not record.cohort:
            return
        self.void_rounds += 1
        logger.warning("round %d is void: %s", record.round, record.void)
        if self.void_rounds >= self.options.max_void_rounds:
            shown = list(record.dropped.items())[:3]
            reasons = "; ".join(f"{client}: {reason}" for client, reason in shown)
            raise AggregationError(
                f"{self.void_rounds} void rounds in a row, the last one because {record.void}"
                f"{f' ({reasons})' if reasons else ''}; the model is that of round "
                f"{self.model.current_state.round}{self._suspect(record)}"
            )

    def _suspect(self, record: RoundRecord) -> str:
        """Return what to do if no client could train from the model."""
        if record.replied or not self.limits.longest:
            return ""
        return (
            f", and {self.limits.longest}. If its update spoiled the model, revoke the client and "
            "go on from an earlier checkpoint with --resume --from-round ROUND"
        )

    def _check(
        self,
        server_round: int,
        sent: SentMessages,
        replies: Mapping[ClientId, Message],
        state: ServerState[Any],
    ) -> CheckedReplies:
        read = partial(
            check_train_reply,
            state=state,
            method=self.method,
            codec=self.model.current_codec,
            options=self.options,
            server_round=server_round,
            most_examples=sent.most_examples,
        )
        checked = check_replies(replies, read, state, self.model.layout, self.limits)
        silent = [client for client in sent.cohort if client not in replies]
        checked.dropped = sent.reasons(silent) | checked.dropped
        for client, reason in checked.dropped.items():
            logger.warning("round %d: client %s dropped: %s", server_round, client, reason)
        for update, content in zip(checked.updates, checked.contents, strict=True):
            if odd := [key for key, v in read_metrics(content).items() if not isfinite(v)]:
                logger.warning(
                    "round %d: client %s reports no finite %s",
                    *(server_round, update.client, name_list(odd)),
                )
        return checked

    def _advance(
        self, before: ServerState[Any], cohort: Cohort
    ) -> tuple[str | None, Step[Any] | None]:
        """Store the next state. Return its step, or else the reason why the round is void."""
        try:
            following, step = next_state(
                before, cohort, self.method, self.model.layout, self.options.server_lr
            )
        except FedError as error:
            return f"no step could be formed: {refusal_of(error)}", None
        self.model.store(following)
        return None, step

    @staticmethod
    def _diagnostics(
        diagnose: Diagnose | None,
        before: ServerState[Any],
        cohort: Cohort,
        step: Step[Any],
    ) -> Mapping[str, Any]:
        if diagnose is None:
            return {}
        try:
            return diagnose(before, cohort, step)
        except FedError as error:
            logger.warning("round %d has no diagnostics: %s", cohort.round, error)
            return {}
