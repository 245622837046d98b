"""Bounds the texts of a message from a client, before anything else reads the message."""

from flwr.app import ConfigRecord, Message, MetricRecord

from common.io.text import single_line
from common.wire.content import records_of

MOST_KEYS = 1000  # of the metrics, and of the config, of a reply


def bound_texts(message: Message) -> str:
    """Bound the names in the content of a client's message, in place.

    Metrics and config values are cut after 1000 keys, and their keys become single lines of at most
    300 characters. Values stay as they are, because an aggregation function may need a long text.
    A sentence that quotes a value or the name of an array is cut by the code that reports it.

    Returns:
        A sentence about the keys that were left out, "" if all were kept.
    """
    if not message.has_content():
        return ""
    content = message.content
    metrics = sum(_bound_keys(r) for r in records_of(content, MetricRecord).values())
    values = sum(_bound_keys(r) for r in records_of(content, ConfigRecord).values())
    parts = [f"{metrics} metrics"] * (metrics > 0) + [f"{values} config values"] * (values > 0)
    return f"{' and '.join(parts)} beyond the first {MOST_KEYS} are left out" if parts else ""


def _bound_keys(record: MetricRecord | ConfigRecord) -> int:
    """Bound the keys of a record in place. Return the number of keys that were left out."""
    keys = list(record)
    for key in keys[MOST_KEYS:]:
        del record[key]
    for key in keys[:MOST_KEYS]:
        if key != (safe := single_line(key)):
            record[safe] = record.pop(key)  # type: ignore[assignment]
    return max(0, len(keys) - MOST_KEYS)
