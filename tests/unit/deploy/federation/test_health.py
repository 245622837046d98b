"""A health check says yes only if every process that was asked says so itself."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server

from common.errors import DeployError
from deploy.federation import health

Serve = Callable[[int], str]


class Says(HealthServicer):
    """Gives always the same answer."""

    def __init__(self, status: int) -> None:
        self.status = status

    def Check(self, request: HealthCheckRequest, context: grpc.ServicerContext) -> object:
        return HealthCheckResponse(status=self.status)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a health service with this answer; return its address."""
    servers: list[grpc.Server] = []

    def start(status: int) -> str:
        server = grpc.server(ThreadPoolExecutor(1))
        add_HealthServicer_to_server(Says(status), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(0).wait()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody else comes to listen meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_all_that_serve_are_healthy(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    up = HealthCheckResponse.SERVING
    assert health.main([serve(up), serve(up)]) == 0
    assert capsys.readouterr() == ("", "")


def test_one_that_does_not_is_named_in_one_line(
    serve: Serve, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    well, ill = serve(HealthCheckResponse.SERVING), serve(HealthCheckResponse.NOT_SERVING)
    assert health.main([well, ill, nobody]) == 1
    out, said = capsys.readouterr()
    assert out == ""
    assert said.count("\n") == 1
    assert f"{ill} reports NOT_SERVING" in said
    assert f"{nobody} does not answer (UNAVAILABLE" in said
    assert well not in said


def test_what_accepts_and_keeps_silent_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(DeployError, match=r"does not answer \(DEADLINE_EXCEEDED"):
            health.check_health(address, timeout=0.3)
        assert time.monotonic() - begin < 10


def test_a_grpc_server_without_health_does_not_serve() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(DeployError, match="UNIMPLEMENTED"):
        health.check_health(f"127.0.0.1:{port}")
    server.stop(0).wait()


@pytest.mark.parametrize("address", ["", "nothing", "127.0.0.1:99999", "127.0.0.1:http", ":::"])
def test_what_is_no_address_is_told_as_such(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.main([address, "--timeout", "1"]) == 1
    assert address in capsys.readouterr().err


def test_somebody_has_to_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        health.main([])
    assert "HOST:PORT" in capsys.readouterr().err


def test_a_proxy_variable_is_not_for_this_machine(
    serve: Serve, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://{nobody}")
    health.check_health(serve(HealthCheckResponse.SERVING))


def test_the_command_loads_next_to_nothing() -> None:
    code = "import deploy.federation.health, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "grpc" in loaded
    assert not {"torch", "numpy", "flwr", "typer", "rich"} & loaded
