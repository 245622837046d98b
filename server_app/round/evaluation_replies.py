"""Reads the replies to an evaluation: counts, scores and the mean of the clients' metrics."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from common.errors import AggregationError, WireError
from common.runs.client_scores import ClientScore, Evaluation
from common.types import ClientId
from common.wire.content import records_of
from common.wire.reply_metrics import (
    CORRECT,
    LOSS_SUM,
    MAX_EXAMPLES,
    PERSONAL,
    PERSONAL_ROUND,
    read_metrics,
    to_metric_record,
)
from server_app.round.error_reasons import reason_of, refusal_of

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
ACCURACY = ("accuracy", "eval_acc")  # reported by ordinary Flower clients in place of a count
NO_COUNT = f'neither "{CORRECT}" nor "{ACCURACY[0]}" in the reply\'s metrics'


def examples_of(reply: Message, weight_key: str) -> int:
    """Return on how many examples a client evaluated.

    Raises:
        AggregationError, WireError: the reply is an error, or the number is impossible.
    """
    if reply.has_error():
        raise AggregationError(reason_of(reply.error))
    examples = read_metrics(reply.content).get(weight_key)
    if examples is None or not 0 <= examples <= MAX_EXAMPLES or examples != int(examples):
        raise AggregationError(
            f'expected "{weight_key}", a whole number from 0 to {MAX_EXAMPLES}, got {examples!r}'
        )
    return int(examples)


def config_of(reply: Message) -> ConfigRecord:
    """Return the ConfigRecord of a reply.

    Raises:
        AggregationError, WireError: the reply is an error, or has no ConfigRecord.
    """
    if reply.has_error():
        raise AggregationError(reason_of(reply.error))
    config = next(iter(records_of(reply.content, ConfigRecord).values()), None)
    if config is None:
        raise WireError("no ConfigRecord in the reply")
    return config


def score_of(metrics: Mapping[str, float], examples: int) -> ClientScore | None:
    """Return the score of one client, None if it reports neither a count nor an accuracy.

    An accuracy becomes a count.

    Raises:
        AggregationError: the counts are impossible.
    """
    correct = metrics.get(CORRECT)
    shares = [metrics[key] for key in ACCURACY if isfinite(metrics.get(key, float("nan")))]
    if correct is None and shares:
        correct = round(shares[0] * examples)
    if correct is None and examples:
        return None
    correct = correct or 0
    if not 0 <= correct <= examples or correct != int(correct):
        raise AggregationError(f"{correct} correct answers of {examples} are impossible")
    loss_sum = metrics.get(LOSS_SUM)
    return ClientScore(examples, int(correct), None if loss_sum is None else float(loss_sum))


def personal_of(
    metrics: Mapping[ClientId, Mapping[str, float]],
    examples: Mapping[ClientId, int],
    absent: Mapping[ClientId, str],
) -> Evaluation | None:
    """Return the evaluation of the clients' personal models, None without any.

    Args:
        metrics: the metrics of each client that replied.
        examples: number of its test samples.
        absent: the reason why each other client has no score.
    """
    own = {
        client: {key.removeprefix(PERSONAL): value for key, value in values.items()}
        for client, values in metrics.items()
        if PERSONAL + CORRECT in values
    }
    if not own:
        return None
    scores, missing = {}, dict(absent)
    for client in metrics:
        try:
            score = score_of(own.get(client, {}), examples[client])
        except AggregationError as error:
            missing[client] = refusal_of(error)
            continue
        if score is None:
            missing[client] = NO_COUNT
        else:
            scores[client] = score
    new = [client for client in own if metrics[client].get(PERSONAL_ROUND) == 0]
    return replace(Evaluation.of(scores, missing), untrained=new)


def mean_metrics(
    contents: list[RecordDict],
    weights: list[int],
    weight_key: str,
    aggregate: MetricsFn | None,
) -> MetricRecord | None:
    """Return the weighted mean of each metric over the clients that report it, None without any.

    Args:
        contents: contents of the replies.
        weights: weight of each reply.
        weight_key: metric that weighs a reply, which is left out.
        aggregate: takes the place of the mean, as in Flower's FedAvg.
    """
    if not contents:
        return None
    if aggregate is not None:
        return aggregate(contents, weight_key)
    sums: dict[str, tuple[float, int]] = {}
    for content, weight in zip(contents, weights, strict=True):
        for key, value in read_metrics(content).items():
            if key != weight_key and isfinite(value):
                total, count = sums.get(key, (0.0, 0))
                sums[key] = total + value * weight, count + weight
    return to_metric_record({key: total / count for key, (total, count) in sums.items()})
