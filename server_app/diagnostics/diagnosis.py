"""Diagnosis: the optional diagnostics of a round, for its record.

Diagnostics read the accepted replies and the step, and change neither. A run gives the same weights
with and without them.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

from common.config import RunConfig
from common.diagnostics import cosines_with, drift_diversity, expected_occupancy
from common.errors import FedError
from common.layout import Layout
from common.models import FlatModel
from common.parallel import one_blas_thread
from common.types import Cohort, Step, Vector
from common.wire.reply_metrics import GRADIENT
from server_app.diagnostics.layer_similarity import Probe, similarities
from server_app.diagnostics.theorem_quantities import theorem_of
from server_app.state.server_state import ServerState

logger = logging.getLogger("flwr")


@dataclass(frozen=True)
class Diagnosis:
    """Computes the diagnostics that the config keys `diagnostics.*` select.

    Attributes:
        config: the run config.
        model: a model of the run's architecture, which is overwritten.
    """

    config: RunConfig
    model: FlatModel

    def __call__(self, before: ServerState[Any], cohort: Cohort, step: Step[Any]) -> dict[str, Any]:
        """Return the round's diagnostics as JSON values. Empty if none are due."""
        if not self.config.is_diagnosed(cohort.round):
            return {}
        displacements = [update.delta for update in cohort.updates]
        with one_blas_thread():
            cosines = cosines_with(step.direction, displacements)
            return {
                "clients": [update.client for update in cohort.updates],
                "drift": drift_of(displacements, self.model.layout),
                **progress_of(cohort, step, cosines),
                **self._occupancy(cohort, step),
                **self._theorem(before, cohort, step, cosines),
                **self._similarities(before, cohort),
            }

    def _occupancy(self, cohort: Cohort, step: Step[Any]) -> dict[str, Any]:
        """Return the number of clients in the history, if the method reports it."""
        window, held = self.config.chosen.history_rounds, step.report.get("rows")
        if window is None or held is None:
            return {}
        rounds = min(cohort.round, window + 1)
        share = self.config.cohort_size / cohort.clients
        expected = expected_occupancy(cohort.clients, share, rounds)
        return {"occupancy": {"held": held, "expected": expected}}

    def _theorem(
        self,
        before: ServerState[Any],
        cohort: Cohort,
        step: Step[Any],
        cosines: Sequence[float | None],
    ) -> dict[str, Any]:
        if not any(GRADIENT in update.metrics for update in cohort.updates):
            return {}
        return {"theorem": theorem_of(self.config, self.model, before, cohort, step, cosines)}

    def _similarities(self, before: ServerState[Any], cohort: Cohort) -> dict[str, Any]:
        if not self.config.diagnostics.probe:
            return {}
        if isinstance(self._probe, str):
            return {"cka_why": self._probe}
        try:
            return {"cka": similarities(self._probe, before, cohort)}
        except (FedError, RuntimeError, MemoryError) as error:  # torch raises RuntimeError
            logger.warning("round %d: layers cannot be compared: %s", cohort.round, error)
            return {"cka_why": f"{type(error).__name__}: {error}"}

    @cached_property
    def _probe(self) -> Probe | str:
        """The probe batch, drawn at the first use, or the reason why there is none."""
        try:
            return Probe.drawn(self.config, self.model)
        except FedError as error:
            logger.warning("layers are not compared in this run: %s", error)
            return str(error)


def drift_of(displacements: Sequence[Vector], layout: Layout) -> dict[str, Any]:
    """Return the drift diversity of a cohort's displacements [d], whole and by layer.

    JSON has no infinity. If the displacements of a layer cancel, its value is None and "infinite"
    names it. "cancels" is true if the displacements of the whole model cancel. A value that is None
    for any other reason means that no client moved.
    """
    drift = drift_diversity(displacements, layout)
    return {
        "whole": _finite(drift.whole),
        "layers": {name: _finite(value) for name, value in drift.layers.items()},
        "infinite": [name for name, value in drift.layers.items() if value == inf],
        "cancels": drift.whole == inf,
    }


def progress_of(cohort: Cohort, step: Step[Any], cosines: Sequence[float | None]) -> dict[str, Any]:
    """Return the cosine of the step with each client's displacement, None where one is zero.

    A method that solves for a direction x and then changes its length reports |x| as
    "length_before". Then the result also has the progress u_k . x along each client's unit vector
    u_k, which the constraints bound. Scaling changes no cosine, so u_k . x = cos_k |x|.
    """
    clients = [update.client for update in cohort.updates]
    told = {"cosine": dict(zip(clients, cosines, strict=True))}
    length = step.report.get("length_before")
    if length is not None:
        gains = [None if cosine is None else cosine * length for cosine in cosines]
        told["progress"] = dict(zip(clients, gains, strict=True))
    return told


def _finite(value: float | None) -> float | None:
    return None if value == inf else value
