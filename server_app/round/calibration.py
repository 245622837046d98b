"""Prediction sets of a run's final model: two questions to the clients, and `conformal.json`.

The clients' histograms of scores are added up, and thresholds follow from them; the clients then
count what the sets of these thresholds are worth on their test samples. Undefined numbers are null.
"""

import logging
from collections.abc import Callable, Mapping
from math import isinf
from typing import Any, Protocol, TypeVar

import numpy as np

from common.config import RunConfig
from common.conformal.prediction_sets import (
    SCORES,
    Tally,
    bin_edges,
    min_examples,
    quantile_rank,
    threshold,
)
from common.conformal.replies import CALIBRATE, COVER, CalibrationReply, CoverageReply, ask
from common.errors import AggregationError
from common.runs.client_scores import NO_EXAMPLES
from common.runs.conformal_results import ClientCoverage, ConformalResults, Level
from common.types import ClientId, by_client

logger = logging.getLogger("flwr")
T = TypeVar("T")

CONFORMAL = "conformal.json"
NO_CALIBRATION = "no calibration samples"
LEVELS = (
    0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.14, 0.15, 0.16, 0.18, 0.2,
    0.22, 0.24, 0.26, 0.28, 0.3, 0.35, 0.4, 0.45, 0.5,
)  # fmt: skip


class Ask(Protocol):
    """Asks all clients one question about the final model; see `MethodStrategy.ask`."""

    def __call__(
        self, action: str, asks: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]
    ) -> tuple[dict[ClientId, T], dict[ClientId, str]]:
        """Return what each client said, and why the others did not."""


def conformal_of(questions: Ask, config: RunConfig, classes: int, number: int) -> ConformalResults:
    """Calibrate the model of round `number` and measure its sets; a client that fails is listed.

    Whatever goes wrong is told in `problem`: no reason to lose a model that is trained.
    """
    options = config.conformal
    least = min_examples(options.miscoverage)
    begun = ConformalResults(number, options.to_table(), classes, least)
    try:
        return _conformal_of(questions, config, begun)
    except Exception as error:
        said = str(error) or type(error).__name__
        logger.warning("there are no prediction sets: %s", said)
        return ConformalResults(number, options.to_table(), classes, least, problem=said)


def _conformal_of(questions: Ask, config: RunConfig, begun: ConformalResults) -> ConformalResults:
    options, classes = config.conformal, begun.classes
    levels = sorted({*LEVELS, options.miscoverage})
    told, missing = questions(
        CALIBRATE, {}, lambda table: CalibrationReply.read(table, options.bins)
    )
    calibration = {client: reply.examples for client, reply in told.items() if reply.examples}
    uncalibrated = _left_out(missing, told, calibration, NO_CALIBRATION)
    examples = sum(calibration.values())
    if not examples:
        why = "; ".join(f"client {client}: {said}" for client, said in list(missing.items())[:3])
        raise AggregationError(why or "no client has calibration samples")
    thresholds = {}
    for score in SCORES:
        edges = bin_edges(score, classes, options.bins, k_reg=options.k_reg, lam=options.lam)
        pooled = np.sum([reply.counts[score] for reply in told.values()], axis=0)
        thresholds[score] = [threshold(pooled, edges, level) for level in levels]

    counted, absent = questions(
        COVER, ask(thresholds), lambda table: CoverageReply.read(table, len(levels), classes)
    )
    test = {client: reply.examples for client, reply in counted.items() if reply.examples}
    total = sum(test.values())
    at = levels.index(options.miscoverage)
    nothing, warnings = Tally.none(classes), []
    if examples < begun.minimum:
        warnings.append(
            f"{examples} calibration samples are too few for a miscoverage of "
            f"{options.miscoverage:g}: at least {begun.minimum} are needed; every set holds all "
            "labels"
        )
    if not total:
        warnings.append("no client has test samples that could be counted: nothing is measured")
    for warning in warnings:
        logger.warning(warning)
    return ConformalResults(
        begun.round,
        begun.settings,
        classes,
        begun.minimum,
        examples=examples,
        calibration=calibration,
        uncalibrated=uncalibrated,
        test=test,
        untested=_left_out(absent, counted, test, NO_EXAMPLES),
        accuracy=sum(reply.correct for reply in counted.values()) / total if total else None,
        scores={
            score: [
                _level(
                    level,
                    examples,
                    q,
                    sum((reply.tallies[score][k] for reply in counted.values()), nothing),
                )
                for k, (level, q) in enumerate(zip(levels, thresholds[score], strict=True))
            ]
            for score in SCORES
        },
        clients={
            score: {
                client: ClientCoverage(
                    calibration.get(client, 0),
                    reply.examples,
                    reply.tallies[score][at].coverage,
                    reply.tallies[score][at].mean_size,
                )
                for client, reply in counted.items()
            }
            for score in SCORES
        },
        warnings=warnings,
    )


def _left_out(
    missing: Mapping[ClientId, str],
    answered: Mapping[ClientId, object],
    counted: Mapping[ClientId, int],
    reason: str,
) -> dict[ClientId, str]:
    """Return, and log, why clients do not count: those that failed, or have no samples."""
    for client, why in missing.items():
        logger.warning("prediction sets: client %s is left out: %s", client, why)
    others = {**missing, **{client: reason for client in answered if client not in counted}}
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
