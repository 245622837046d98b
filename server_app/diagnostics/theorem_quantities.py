"""The quantities of FedPCD's theorem in one round, from the clients' reported gradients."""

from collections.abc import Iterable, Sequence
from typing import Any

from common.config import RunConfig
from common.diagnostics import RoundConditions, Terms, error_bound, relative_error, verdict
from common.geometry import length
from common.models import Dropout, FlatModel
from common.types import Cohort, Step
from common.wire.reply_metrics import GRADIENT, GRADIENT_ERROR, SMOOTHNESS
from server_app.state.server_state import ServerState

SAME_LENGTH = 1e-4  # relative, above the rounding error of float32


def theorem_of(
    config: RunConfig,
    model: FlatModel,
    before: ServerState[Any],
    cohort: Cohort,
    step: Step[Any],
    cosines: Sequence[float | None],
) -> dict[str, Any]:
    """Return the theorem's terms, and the assumptions that the round violates.

    Undefined numbers are None. See `common.diagnostics.theorem`.

    Args:
        config: the run config.
        model: a model of the run's architecture.
        before: the state whose weights the clients received.
        cohort: their accepted replies.
        step: the step of the method for them.
        cosines: cosines of the step with each client's displacement [m], see `cosines_with`.
    """
    terms, smoothness = terms_of(cohort, cosines), _seen(cohort)
    found = RoundConditions(
        took_part=len(cohort.updates),
        clients=cohort.clients,
        history=config.chosen.history_rounds,
        steps=[update.steps for update in cohort.updates],
        inexact=list(inexact(config, model, before, cohort)),
        keeps_length=_keeps_length(cohort, step),
        step=config.server.lr * cohort.local_lr,
        smoothness=smoothness,
    )
    judged = verdict(terms, found)
    bound = None
    if smoothness is not None and terms.steps:
        bound = error_bound(cohort.local_lr * smoothness, terms.steps)
    return {
        "gamma": terms.gamma,
        "r": terms.r,
        "r_bound": bound,
        "gamma_eff": terms.gamma_eff,
        "largest_r": terms.largest_r,
        "steps": terms.steps,
        "step_times_smoothness_limit": terms.limit,
        "smoothness_seen": smoothness,
        "step": found.step,
        "applies": judged.applies,
        "why_not": list(judged.why_not),
    }


def terms_of(cohort: Cohort, cosines: Sequence[float | None]) -> Terms:
    """Return gamma, r and K of a round, each None where it is not known."""
    known = [cosine for cosine in cosines if cosine is not None]
    steps = {update.steps for update in cohort.updates}
    only = steps.pop() if len(steps) == 1 else None
    told = [
        (update.metrics[GRADIENT_ERROR], update.metrics[GRADIENT])
        for update in cohort.updates
        if {GRADIENT, GRADIENT_ERROR} <= update.metrics.keys()
    ]
    r = None
    if only and len(told) == len(cohort.updates):
        r = relative_error([error for error, _ in told], [norm for _, norm in told], only)
    return Terms(min(known, default=None), r, only)


def inexact(
    config: RunConfig, model: FlatModel, before: ServerState[Any], cohort: Cohort
) -> Iterable[str]:
    """Yield the reasons why local steps were not plain steps along the exact gradient."""
    train, method = config.train, config.chosen
    rules = [
        method.local_rule(method.server_payload(before.method, update.client), model.layout)
        for update in cohort.updates
    ]
    if any(rule.shift is not None or rule.proximal_weight for rule in rules):
        yield "the method adds to the clients' gradients"
    if most := max(train.momentum if rule.momentum is None else rule.momentum for rule in rules):
        yield f"clients use momentum ({most:g})"
    if train.weight_decay:
        yield f"clients use weight decay ({train.weight_decay:g})"
    if any(update.steps > train.epochs for update in cohort.updates):
        yield f"clients train on mini-batches of {train.batch_size}"
    if train.drop_last:
        yield "clients leave out the last, incomplete batch"
    if train.augment:
        yield "clients train on augmented pictures"
    if any(isinstance(module, Dropout) and module.rate for module in model.model.modules()):
        yield "the model has dropout"
    if model.layout.buffers:
        yield "the model normalises by the statistics of a batch"


def _seen(cohort: Cohort) -> float | None:
    told = [update.metrics[SMOOTHNESS] for update in cohort.updates if SMOOTHNESS in update.metrics]
    return max(told, default=None)


def _keeps_length(cohort: Cohort, step: Step[Any]) -> bool:
    mean = length(cohort.mean(cohort.shares))
    return abs(length(step.direction) - mean) <= SAME_LENGTH * mean
