"""A stranger without an enrolled key, at a real nginx and a real SuperLink.

Flower's SuperLink reads the whole body of a request before it checks the signature, so the proxy
bounds how much a stranger can make it read.
"""

import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from tests.system.federation import Federation, federation

pytestmark = pytest.mark.slow
PUSH = "/v1/fleet/push-object"
MEGABYTES = 300
SETTLE_SECONDS = 2.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("strangers"), executor=False) as made:
        yield made


def made_up() -> dict[str, str]:
    """Return headers that look like those of a node, with a key and a signature of zeros."""
    return {
        "flwr-public-key": b64encode(bytes(180)).decode(),
        "flwr-timestamp": datetime.now(UTC).isoformat(),
        "flwr-signature": b64encode(bytes(100)).decode(),
    }


def post(server: Federation, headers: Mapping[str, str], megabytes: int) -> int:
    """Post a body of zeros through the proxy. Return the status, 0 if the connection was cut."""
    trusted = ssl.create_default_context(cafile=str(server.ca))
    lines = {
        "Host": "localhost",
        "Content-Type": "application/protobuf",
        "Content-Length": str(megabytes << 20),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", server.proxy_port), timeout=60) as plain,
        trusted.wrap_socket(plain, server_hostname="localhost") as channel,
    ):
        with suppress(OSError):
            channel.sendall(f"POST {PUSH} HTTP/1.1\r\n{head}\r\n".encode())
            for _ in range(megabytes):
                channel.sendall(bytes(1 << 20))
        with suppress(OSError):
            answer = channel.recv(64)
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def growth(server: Federation, attack: Callable[[], None]) -> float:
    """Return by how many MB the SuperLink's memory grows at most during an attack."""
    process = psutil.Process(server.superlink.popen.pid)
    before, peak, over = process.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    attack()
    time.sleep(SETTLE_SECONDS)
    over.set()
    watcher.join()
    return (peak[0] - before) / 1e6


def three_at_once(server: Federation, headers: Callable[[], Mapping[str, str]]) -> list[int]:
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda _: post(server, headers(), MEGABYTES - 1), range(3)))


def test_a_stranger_who_sends_300_mb_three_times_does_not_move_the_memory(
    server: Federation,
) -> None:
    statuses: list[int] = []
    grown = growth(server, lambda: statuses.extend(three_at_once(server, dict)))
    assert set(statuses) <= {0, 401}
    assert grown < 50


def test_a_stranger_with_made_up_headers_gets_one_large_body_at_a_time_read(
    server: Federation,
) -> None:
    statuses: list[int] = []
    grown = growth(server, lambda: statuses.extend(three_at_once(server, made_up)))
    assert 503 in statuses  # the second and the third, while the first is read
    assert 200 not in statuses
    assert grown < 4 * MEGABYTES
    assert Path(server.folder / "state.db").stat().st_size < 10e6
