"""The content of a Flower message: the names of its records, and its size."""

from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # names of the records

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: RecordDict, kind: type[R]) -> dict[str, R]:
    """Return the records of one kind by name.

    Flower's own properties (`content.array_records` and the like) make a reference cycle on every
    use. The cycle keeps the whole message in memory until Python's next full garbage collection.
    """
    return {key: record for key, record in content.items() if isinstance(record, kind)}


def payload_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's records: array data, config values, metrics."""
    total = 0
    for arrays in records_of(content, ArrayRecord).values():
        total += sum(len(array.data) for array in arrays.values())
    values: list[Any] = []
    for record in records_of(content, ConfigRecord).values():
        values += record.values()
    for metrics in records_of(content, MetricRecord).values():
        values += metrics.values()
    for value in values:
        parts = value if isinstance(value, list) else [value]
        total += sum(len(part) if isinstance(part, str | bytes) else 8 for part in parts)
    return total
