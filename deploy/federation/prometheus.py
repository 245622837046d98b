"""Export a run's state to Prometheus on loopback (`fedkeel status --metrics`)."""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import DeployError
from common.runs.live_state import read_live_state
from common.runs.outcome import read_outcome
from common.runs.records import RoundRecord, read_records

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

HOST = "127.0.0.1"


class RunCollector:
    """Read a run directory at each scrape. No state is kept between scrapes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def collect(self) -> "Iterable[Metric]":
        """Yield the run's gauges and counters."""
        from prometheus_client.core import GaugeMetricFamily

        live, records = read_live_state(self.folder), read_records(self.folder)
        outcome = read_outcome(self.folder)
        run = self.folder.name

        def gauge(name: str, text: str, value: float) -> "Metric":
            family = GaugeMetricFamily(f"fedkeel_{name}", text, labels=["run"])
            family.add_metric([run], value)
            return family

        yield gauge("rounds_done", "Rounds in the records.", len(records))
        yield gauge("void_rounds", "Recorded rounds that changed nothing.",
                    sum(record.void is not None for record in records))  # fmt: skip
        yield gauge("ended", "1 once the run has ended.", outcome is not None)
        if live is not None:
            yield gauge("round", "The current round.", live.round)
            yield gauge(
                "last_sign_seconds", "Last update of the live state (Unix time).", live.updated
            )
            yield gauge("clients_ready", "Clients that can take part.", len(live.ready))
            yield gauge(
                "clients_refused", "Connected clients that cannot take part.", len(live.refused)
            )
            yield gauge(
                "replies_awaited", "Clients that have an order and no reply yet.", len(live.awaited)
            )
        scored = [record.evaluation for record in records if record.evaluation]
        if scored and scored[-1].fairness:
            fairness = scored[-1].fairness
            yield gauge("accuracy_mean", "Mean accuracy over clients, 0 to 1.", fairness.mean)
            yield gauge(
                "accuracy_worst10",
                "Mean accuracy over the worst tenth of the clients, 0 to 1.",
                fairness.worst10,
            )
        yield from _client_metrics(run, records)


def _client_metrics(run: str, records: Sequence[RoundRecord]) -> "Iterable[Metric]":
    """Return the metrics that have one value per client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    replies = CounterMetricFamily(
        "fedkeel_client_replies", "Replies that were aggregated.", labels=["run", "client"]
    )
    dropped = CounterMetricFamily(
        "fedkeel_client_dropped", "Rounds in which a client was dropped.",
        labels=["run", "client"],
    )  # fmt: skip
    traffic = CounterMetricFamily(
        "fedkeel_client_bytes", "Payload of training orders and replies.",
        labels=["run", "client", "direction"],
    )  # fmt: skip
    seconds = GaugeMetricFamily(
        "fedkeel_client_reply_seconds", "Seconds from order to reply, last reply.",
        labels=["run", "client"],
    )  # fmt: skip
    for client in sorted({name for record in records for name in record.cohort}):
        label = [run, client]
        replies.add_metric(label, sum(client in record.replied for record in records))
        dropped.add_metric(label, sum(client in record.dropped for record in records))
        for direction in ("down", "up"):
            sizes = [getattr(record, f"bytes_{direction}").get(client, 0) for record in records]
            traffic.add_metric([*label, direction], sum(sizes))
        newest = [r.arrived[client] for r in records if client in r.arrived][-1:]
        for value in newest:
            seconds.add_metric(label, value)
    return (replies, dropped, traffic, seconds)


def serve_metrics(folder: Path, port: int, stop: threading.Event) -> None:
    """Serve metrics on 127.0.0.1:port until `stop` is set.

    Raises:
        DeployError: The Prometheus library is missing, or the port is in use.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise DeployError(
            "the Prometheus library is missing; install it: pip install 'fedkeel[metrics]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(RunCollector(folder))
    try:
        server, thread = start_http_server(port, addr=HOST, registry=registry)
    except OSError as error:
        raise DeployError(f"cannot listen on port {port} of {HOST}: {error}") from error
    stop.wait()
    server.shutdown()
    server.server_close()
    thread.join()
