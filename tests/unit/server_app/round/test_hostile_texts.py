"""A client's texts and names are bounded wherever the server uses them.

Public reports of this kind of bug: https://github.com/mlflow/mlflow/issues/7169
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.errors import WireError
from common.io.text import LONGEST, LONGEST_LINE, log_single_lines
from common.methods import FedAvg
from common.wire.client_card import ClientCard
from common.wire.content import ARRAYS, CONFIG, METRICS
from common.wire.incoming import MOST_KEYS
from common.wire.messages import CLIENT
from common.wire.reply_metrics import CORRECT, EXAMPLES
from tests.builders import Federation, changed, failing

pytestmark = pytest.mark.usefixtures("flower_identity")
HOSTILE = "\x1b]0;owned\x07\x1b[2J\n2026-12-01 10:00:00 WARNING ward-a is revoked" + "x" * 10_000
PREFIX = 60  # characters of our own before a client's text


def _assert_bounded(text: str, longest: int = LONGEST + PREFIX) -> None:
    assert text.isprintable()
    assert len(text) <= longest


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    logger = logging.getLogger("flwr")
    log_single_lines(logger)
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
    logger.filters.clear()


def _metrics(content: RecordDict) -> None:
    content[METRICS].update({f"{k}{HOSTILE}": 1.0 for k in range(5)})  # type: ignore[union-attr]


def _many_metrics(content: RecordDict) -> None:
    record = content[METRICS]
    assert isinstance(record, MetricRecord)
    for k in range(100_000):
        record[f"metric-{k}"] = 1.0


def _array_names(content: RecordDict) -> None:
    content[ARRAYS] = ArrayRecord({f"{k}{HOSTILE}": Array(np.zeros(1)) for k in range(9)})


def _dtype(content: RecordDict) -> None:
    record = content[ARRAYS]
    assert isinstance(record, ArrayRecord)
    record["weights"] = Array(HOSTILE, (1,) * 10_000, "numpy.ndarray", b"")


def _claimed_name(content: RecordDict) -> None:
    content[CONFIG][CLIENT] = HOSTILE  # type: ignore[index,call-overload]


def _vector(content: RecordDict) -> None:
    content[CONFIG][f"fedkeel.{HOSTILE}"] = b"12345"  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    "change", [_metrics, _many_metrics, _array_names, _dtype, _claimed_name, _vector]
)
def test_a_reply_with_hostile_names_is_dropped_with_a_bounded_reason(
    change: Callable[[RecordDict], None], log: pytest.LogCaptureFixture
) -> None:
    federation = Federation(FedAvg())

    def from_our_client(content: RecordDict) -> None:
        assert CLIENT in content[CONFIG]  # type: ignore[operator]
        change(content)

    federation.train(1, {"1": changed(from_our_client)})
    assert list(federation.record.dropped) == ["1"]
    _assert_bounded(federation.record.dropped["1"])
    assert log.messages
    for message in log.messages:
        _assert_bounded(message, LONGEST_LINE)


def test_an_error_of_60_mb_becomes_a_bounded_reason(log: pytest.LogCaptureFixture) -> None:
    federation = Federation(FedAvg())
    federation.train(1, {"1": failing(HOSTILE), "2": failing("x" * 60_000_000)})
    federation.evaluate(1, {"3": failing(HOSTILE)})
    evaluation = federation.record.evaluation
    assert evaluation is not None
    for reason in (*federation.record.dropped.values(), *evaluation.absent.values()):
        _assert_bounded(reason)
    for message in log.messages:
        _assert_bounded(message, LONGEST_LINE)


def test_metrics_of_an_ordinary_client_are_bounded_in_number_and_length(
    log: pytest.LogCaptureFixture,
) -> None:
    def report(content: RecordDict) -> None:
        many = {f"metric-{k}": 1.0 for k in range(100_000)}
        own = {EXAMPLES: 10, CORRECT: 5, HOSTILE: 1.0, "\x1b[2J": float("nan")}
        content[METRICS] = MetricRecord({**own, **many})

    federation = Federation(FedAvg())
    federation.train(1)
    metrics = federation.evaluate(1, {"1": changed(report)})
    assert metrics is not None
    assert len(metrics) < MOST_KEYS
    for key in metrics:
        _assert_bounded(key)
    left_out = 100_004 - MOST_KEYS
    assert (
        f"the reply of client 1: {left_out} metrics beyond the first {MOST_KEYS} are left out"
        in log.messages
    )


def test_the_texts_of_a_client_card_are_bounded() -> None:
    card = ClientCard(HOSTILE, f"trains on {HOSTILE}", (1, 8, 8), 3, 5, 5)
    read = ClientCard.read(card.record())
    _assert_bounded(read.partition)
    _assert_bounded(read.device)
    with pytest.raises(WireError) as caught:
        ClientCard.read(RecordDict({CONFIG: ConfigRecord({f"{k}{HOSTILE}": 1 for k in range(9)})}))
    assert str(caught.value).isprintable()
    assert "and 4 more" in str(caught.value)
