"""What Prometheus is told of a run."""

import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from common.errors import DeployError
from common.runs.live_state import LiveState, LiveStateFile
from common.runs.records import RECORDS, Recorder, RoundRecord
from deploy.federation.prometheus import serve_metrics


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def scrape(port: int) -> str:
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError("nobody answers")


def test_a_scrape_tells_round_clients_bytes_and_drops(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    recorder = Recorder(folder / RECORDS)
    for number in (1, 2):
        bytes_ = {"bytes_down": {"a": 100, "b": 100}, "bytes_up": {"a": 70}}
        gone = {"b": "it went offline"}
        recorder.append(
            RoundRecord(number, 0.1, ["a", "b"], ["a"], gone, arrived={"a": 2.5}, **bytes_)
        )
    LiveStateFile(folder).show(
        LiveState("training", 3, 9, time.time(), ready=["a"], refused={"c": "no"}, asked=["a", "b"])
    )
    port, stop = free_port(), threading.Event()
    server = threading.Thread(target=serve_metrics, args=(folder, port, stop))
    server.start()
    try:
        text = scrape(port)
    finally:
        stop.set()
        server.join()
    for line in (
        'fedkeel_round{run="first"} 3.0',
        'fedkeel_rounds_done{run="first"} 2.0',
        'fedkeel_replies_awaited{run="first"} 2.0',
        'fedkeel_clients_refused{run="first"} 1.0',
        'fedkeel_client_bytes_total{client="a",direction="up",run="first"} 140.0',
        'fedkeel_client_dropped_total{client="b",run="first"} 2.0',
        'fedkeel_client_reply_seconds{client="a",run="first"} 2.5',
        'fedkeel_ended{run="first"} 0.0',
    ):
        assert line in text.splitlines()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DeployError, match=f"cannot listen on port {port} of 127"):
            serve_metrics(tmp_path, port, threading.Event())
