"""Calibration: prediction sets of a run's final model, from two queries to the clients.

In the first query, clients return histograms of their calibration scores. The sum of the histograms
gives the thresholds. In the second query, clients evaluate the prediction sets of these thresholds
on their test samples.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isinf
from typing import Any, Protocol, TypeVar

import numpy as np

from common.config import RunConfig
from common.conformal.conformal_replies import (
    CALIBRATE,
    COVER,
    CalibrationReply,
    CoverageReply,
    ask,
)
from common.conformal.prediction_sets import (
    SCORES,
    Tally,
    bin_edges,
    min_examples,
    quantile_rank,
    threshold,
)
from common.errors import AggregationError
from common.runs.client_scores import NO_EXAMPLES
from common.runs.conformal_results import ClientCoverage, ConformalResults, Level
from common.types import ClientId, by_client

logger = logging.getLogger("flwr")
T = TypeVar("T")

NO_CALIBRATION = "no calibration samples"
LEVELS = (
    0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.14, 0.15, 0.16, 0.18, 0.2,
    0.22, 0.24, 0.26, 0.28, 0.3, 0.35, 0.4, 0.45, 0.5,
)  # fmt: skip


class Query(Protocol):
    """Sends the final model to all clients for one action, see `MethodStrategy.query`."""

    def __call__(
        self, action: str, values: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]
    ) -> tuple[dict[ClientId, T], dict[ClientId, str]]:
        """Return the results by client, and the reason why each other client has none."""


def calibrate_model(
    query: Query, config: RunConfig, classes: int, server_round: int
) -> ConformalResults:
    """Calibrate the model of a round and evaluate its prediction sets.

    An error becomes `problem` in the results, because it is no reason to lose a trained model.

    Args:
        query: sends the model to all clients.
        config: the run config.
        classes: number of classes, C.
        server_round: round of the model.
    """
    options = config.conformal
    least = min_examples(options.miscoverage)
    empty = ConformalResults(server_round, options.to_table(), classes, least)
    try:
        return _calibrate(query, config, empty)
    except Exception as error:
        problem = str(error) or type(error).__name__
        logger.warning("there are no prediction sets: %s", problem)
        return replace(empty, problem=problem)


def _calibrate(query: Query, config: RunConfig, empty: ConformalResults) -> ConformalResults:
    options, classes = config.conformal, empty.classes
    levels = sorted({*LEVELS, options.miscoverage})
    replies, missing = query(
        CALIBRATE, {}, lambda table: CalibrationReply.read(table, options.bins)
    )
    calibration = {client: reply.examples for client, reply in replies.items() if reply.examples}
    uncalibrated = _left_out(missing, replies, calibration, NO_CALIBRATION)
    examples = sum(calibration.values())
    if not examples:
        first = list(missing.items())[:3]
        reasons = "; ".join(f"client {client}: {reason}" for client, reason in first)
        raise AggregationError(reasons or "no client has calibration samples")
    thresholds = _thresholds(list(replies.values()), config, classes, levels)
    coverage, absent = query(
        COVER,
        ask(thresholds),
        lambda table: CoverageReply.read(table, len(levels), classes),
    )
    test = {client: reply.examples for client, reply in coverage.items() if reply.examples}
    total = sum(test.values())
    return replace(
        empty,
        examples=examples,
        calibration=calibration,
        uncalibrated=uncalibrated,
        test=test,
        untested=_left_out(absent, coverage, test, NO_EXAMPLES),
        accuracy=sum(reply.correct for reply in coverage.values()) / total if total else None,
        scores=_levels(levels, thresholds, examples, list(coverage.values()), classes),
        clients=_client_coverage(levels.index(options.miscoverage), calibration, coverage),
        warnings=_warnings(empty, options.miscoverage, examples, total),
    )


def _thresholds(
    replies: Sequence[CalibrationReply], config: RunConfig, classes: int, levels: Sequence[float]
) -> dict[str, list[float]]:
    """Return the threshold of each level, by score."""
    options, thresholds = config.conformal, {}
    for score in SCORES:
        edges = bin_edges(score, classes, options.bins, k_reg=options.k_reg, lam=options.lam)
        pooled = np.sum([reply.counts[score] for reply in replies], axis=0)
        thresholds[score] = [threshold(pooled, edges, level) for level in levels]
    return thresholds


def _warnings(empty: ConformalResults, miscoverage: float, examples: int, tested: int) -> list[str]:
    """Return, and log, warnings about too few samples."""
    warnings = []
    if examples < empty.minimum:
        warnings.append(
            f"{examples} calibration samples are too few for a miscoverage of "
            f"{miscoverage:g}: at least {empty.minimum} are needed; every set holds all "
            "labels"
        )
    if not tested:
        warnings.append("no client has test samples that could be counted: nothing is measured")
    for warning in warnings:
        logger.warning(warning)
    return warnings


def _levels(
    levels: Sequence[float],
    thresholds: Mapping[str, Sequence[float]],
    examples: int,
    replies: Sequence[CoverageReply],
    classes: int,
) -> dict[str, list[Level]]:
    """Return the prediction sets of all levels, by score."""
    nothing = Tally.none(classes)
    return {
        score: [
            _level(level, examples, q, sum((reply.tallies[score][k] for reply in replies), nothing))
            for k, (level, q) in enumerate(zip(levels, thresholds[score], strict=True))
        ]
        for score in SCORES
    }


def _client_coverage(
    index: int, calibration: Mapping[ClientId, int], replies: Mapping[ClientId, CoverageReply]
) -> dict[str, dict[ClientId, ClientCoverage]]:
    """Return the prediction sets of each client at the level of this index, by score."""
    return {
        score: {
            client: ClientCoverage(
                calibration.get(client, 0),
                reply.examples,
                reply.tallies[score][index].coverage,
                reply.tallies[score][index].mean_size,
            )
            for client, reply in replies.items()
        }
        for score in SCORES
    }


def _left_out(
    missing: Mapping[ClientId, str],
    replied: Mapping[ClientId, object],
    counted: Mapping[ClientId, int],
    reason: str,
) -> dict[ClientId, str]:
    """Return, and log, the reasons why clients failed or have no samples.

    Args:
        missing: the reasons of clients that failed.
        replied: clients that replied.
        counted: number of samples of the clients that have some.
        reason: the reason for clients without samples.
    """
    for client, why in missing.items():
        logger.warning("prediction sets: client %s is left out: %s", client, why)
    others = {**missing, **{client: reason for client in replied if client not in counted}}
    return {client: others[client] for client in sorted(others, key=by_client)}


def _level(miscoverage: float, examples: int, q: float, total: Tally) -> Level:
    return Level(
        miscoverage,
        quantile_rank(examples, miscoverage),
        None if isinf(q) else q,
        total.examples,
        total.coverage,
        total.mean_size,
        total.sizes.tolist(),
        total.coverage_by_size,
    )
