"""Counts for prediction sets, from the model of this thread."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from client_app.client_data import ClientData
from client_app.evaluator import logits_of
from common.conformal.conformal_replies import CalibrationReply, CoverageReply
from common.conformal.prediction_sets import (
    SCORES,
    Outputs,
    Tally,
    bin_edges,
    histogram,
    prediction_sets,
    softmax,
)
from common.rng import stream


def calibrate(client: ClientData) -> CalibrationReply:
    """Count the scores of the true labels of this client's calibration samples (possibly none).

    Raises:
        DataError: the model's outputs are not finite.
    """
    indices, options = client.split.calibration, client.config.conformal
    outputs, labels = _outputs(client, "calibration", indices), client.data.labels[indices]
    rows, classes = np.arange(len(indices)), len(client.data.classes)
    counts = {}
    for name, score in SCORES.items():
        edges = bin_edges(name, classes, options.bins, k_reg=options.k_reg, lam=options.lam)
        counts[name] = histogram(score(outputs)[rows, labels], edges)
    return CalibrationReply(len(indices), counts)


def cover(client: ClientData, thresholds: Mapping[str, list[float]]) -> CoverageReply:
    """Count the prediction sets of this client's test samples, for each score and threshold.

    Raises:
        DataError: the model's outputs are not finite.
    """
    indices = client.split.test
    outputs, labels = _outputs(client, "test", indices), client.data.labels[indices]
    tallies = {}
    for name, score in SCORES.items():
        scores = score(outputs)
        tallies[name] = [
            Tally.of(prediction_sets(scores, q, outputs.top), labels) for q in thresholds[name]
        ]
    return CoverageReply(len(indices), int((outputs.top == labels).sum()), tallies)


def _outputs(client: ClientData, part: str, indices: NDArray[np.int64]) -> Outputs:
    options = client.config.conformal
    s = softmax(logits_of(client.flat, client.data, indices), options.temperature)
    u = np.ones(len(indices))
    if options.randomised:
        u = stream(client.config.seed, "conformal", part, client.client_id).random(len(indices))
    return Outputs(s, u, options.k_reg, options.lam)
