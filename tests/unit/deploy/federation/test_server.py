"""fedkeel server: what it refuses before anything is started or overwritten."""

import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from common.errors import DeployError
from common.io.files import file_lock
from deploy.federation import pki
from deploy.federation.server import ServerOptions, commands, proxy_config, run_server
from deploy.system.private_files import make_folder


@pytest.fixture
def place(tmp_path: Path) -> ServerOptions:
    pki.init(tmp_path / "pki", [])
    return ServerOptions(tmp_path / "pki", tmp_path / "state", tmp_path / "work", port=1, fleet="")


@pytest.fixture
def port() -> Iterator[int]:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def refused(place: ServerOptions) -> str:
    with pytest.raises(DeployError) as caught:
        run_server(place, lambda text: None, threading.Event())
    return str(caught.value)


def test_the_superlink_listens_on_loopback_and_authenticates_nodes(place: ServerOptions) -> None:
    superlink = commands(place, place.state)["superlink"]
    assert superlink[superlink.index("--host") + 1] == "127.0.0.1"
    assert "--enable-supernode-auth" in superlink
    assert "--superexec-auth-secret-file" in superlink
    assert superlink[superlink.index("--isolation") + 1] == "process"


def test_what_is_missing_is_named_with_the_command_that_makes_it(place: ServerOptions) -> None:
    (place.pki / "link/superexec.secret").unlink()
    assert "superexec.secret is missing; make it: fedkeel pki init" in refused(place)


def test_a_key_of_another_federation_is_refused(place: ServerOptions, tmp_path: Path) -> None:
    pki.init(tmp_path / "other", [])
    key = place.pki / "server/server.key"
    key.write_bytes((tmp_path / "other/server/server.key").read_bytes())
    with pytest.raises(DeployError, match="is not the key of"):
        commands(place, place.state)


def test_a_port_that_is_taken_is_refused_before_anything_is_written(
    place: ServerOptions, port: int
) -> None:
    taken = ServerOptions(place.pki, place.state, place.runs, port, "")
    assert f"cannot listen on port {port} of 127.0.0.1" in refused(taken)
    assert not (place.state / "proxy").exists()


def test_one_port_cannot_serve_both(place: ServerOptions) -> None:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    both = ServerOptions(place.pki, place.state, place.runs, number, f"127.0.0.1:{number}")
    assert f"cannot both have port {number}" in refused(both)


def test_a_second_server_on_the_same_state_is_refused(place: ServerOptions) -> None:
    make_folder(place.state)
    with file_lock(place.state / "lock"):
        assert "another fedkeel server runs on" in refused(place)


def test_the_proxys_configuration_has_no_placeholder_left(place: ServerOptions) -> None:
    text = proxy_config(
        ServerOptions(place.pki, place.state, place.runs, 8000, "[::1]:8443"), place.state
    )
    assert "${" not in text.replace("${NAME}", "")
    assert "listen [::1]:8443 ssl" in text
    assert "127.0.0.1:8000" in text
    with pytest.raises(DeployError, match="--fleet takes the IP address to listen on"):
        proxy_config(
            ServerOptions(place.pki, place.state, place.runs, 8000, "example:8443"), place.state
        )


def test_a_folder_of_secrets_lies_in_no_folder_that_all_may_write(tmp_path: Path) -> None:
    import os

    before = os.umask(0)
    try:
        make_folder(tmp_path / "pki/authority")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "pki/authority").stat().st_mode) == 0o700
