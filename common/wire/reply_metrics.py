"""The metrics of a reply: their keys, and how a MetricRecord is written and read."""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any

from flwr.app import MetricRecord, RecordDict

from common.types import LOSS, LOSS_BEFORE, STEPS
from common.wire.content import records_of

EXAMPLES, LR_SUM = "num-examples", "lr-sum"
SECONDS, START_SECONDS = "seconds", "start-seconds"
GRADIENT, GRADIENT_ERROR = "gradient-norm", "gradient-error"
SMOOTHNESS = "smoothness"
OWN_METRICS = {  # all metrics of a training reply of FedKeel's ClientApp
    EXAMPLES,
    STEPS,
    LR_SUM,
    LOSS,
    LOSS_BEFORE,
    SECONDS,
    START_SECONDS,
    GRADIENT,
    GRADIENT_ERROR,
    SMOOTHNESS,
}
CORRECT, LOSS_SUM = "correct", "loss-sum"  # of an evaluation
PERSONAL, PERSONAL_ROUND = "personal-", "personal-round"  # prefix for a client's personal model
MAX_EXAMPLES = 2**53  # larger whole numbers are not exact as floats


def read_metrics(content: RecordDict) -> dict[str, float]:
    """Return the scalar metrics of the reply's MetricRecord, an empty dict if it has none."""
    record = next(iter(records_of(content, MetricRecord).values()), MetricRecord())
    return {key: _number(value) for key, value in record.items() if not isinstance(value, list)}


def _number(value: float) -> float:
    try:
        return value if isfinite(value) else float(value)
    except OverflowError:  # a whole number beyond the range of floats
        return inf


def to_metric_record(values: Mapping[str, Any]) -> MetricRecord:
    """Return a MetricRecord of Python numbers, made from Python, numpy and torch scalars.

    Undefined values (None, NaN, infinite) are left out.
    """
    record = MetricRecord()
    for key, value in values.items():
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, bool):
            number = int(number)
        if isinstance(number, int) or (isinstance(number, float) and isfinite(number)):
            record[key] = number
    return record
