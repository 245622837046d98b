"""Promises of the operator's connection: what is wrong is told in plain words."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from common.errors import DeployError
from deploy.federation import pki, superlink_client
from deploy.federation.superlink_client import (
    SuperLinkClient,
    check_tls,
    read_address,
    read_flwr_output,
)


@contextmanager
def listening(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that treats one caller like this; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            try:
                caller, _ = server.accept()
                with caller:
                    behave(caller)
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def over_tls(home: Path) -> Callable[[socket.socket], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home / "server/server.crt", home / "server/server.key")
    return lambda caller: context.wrap_socket(caller, server_side=True).close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    pki.init(folder, [])
    return folder


def test_a_server_of_this_authority_is_trusted(home: Path) -> None:
    with listening(over_tls(home)) as address:
        check_tls(address, home / "public/ca.crt")


def test_a_server_of_another_authority_is_not(home: Path, tmp_path: Path) -> None:
    pki.init(tmp_path, [])
    ca = tmp_path / "public/ca.crt"
    with listening(over_tls(home)) as address, pytest.raises(DeployError) as caught:
        check_tls(address, ca)
    assert f"is not from the CA in {ca}; ask the operator" in str(caught.value)


def test_without_a_ca_the_machine_s_own_are_trusted_and_not_ours(home: Path) -> None:
    with (
        listening(over_tls(home)) as address,
        pytest.raises(DeployError, match="any CA that this machine trusts"),
    ):
        check_tls(address, None)


def test_a_server_under_another_name_is_not_trusted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(over_tls(home)) as address:
        dialled = socket.create_connection(("127.0.0.1", read_address(address)[1]))
        monkeypatch.setattr(socket, "create_connection", lambda *_: dialled)
        with pytest.raises(DeployError) as caught:
            check_tls("fl.example.org:8443", home / "public/ca.crt")
    assert "is not for fl.example.org; use one of its names" in str(caught.value)
    assert "fedkeel pki renew --host fl.example.org" in str(caught.value)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (-30, "certificate expired; this machine's clock"),
        (30, "not valid yet; this machine's clock"),
    ],
)
def test_a_certificate_out_of_its_time_is_told_from_others(
    tmp_path: Path, made: int, said: str
) -> None:
    now = datetime.now(UTC) + timedelta(days=made)
    pki.init(tmp_path, [], days=10, now=now)
    with listening(over_tls(tmp_path)) as address, pytest.raises(DeployError, match=said):
        check_tls(address, tmp_path / "public/ca.crt")


def test_what_does_not_speak_tls_is_said_so(home: Path) -> None:
    def plain(caller: socket.socket) -> None:
        caller.recv(1)
        caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(plain) as address, pytest.raises(DeployError, match="does not speak TLS"):
        check_tls(address, home / "public/ca.crt")


def test_who_does_not_answer_is_not_waited_for(home: Path) -> None:
    wait = threading.Event()
    with listening(lambda _: bool(wait.wait(10)) and None) as address:
        with pytest.raises(DeployError, match=r"says nothing within 0\.3 s"):
            check_tls(address, home / "public/ca.crt", timeout=0.3)
        wait.set()


def test_where_nothing_listens_is_said_so(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(DeployError, match=f"127.0.0.1:{port}: .* nothing listens at this port"):
        check_tls(f"127.0.0.1:{port}", home / "public/ca.crt")


def test_a_name_that_nobody_has_is_said_so(home: Path) -> None:
    with pytest.raises(DeployError, match=r"nobody\.invalid:8443: this name is not known"):
        check_tls("nobody.invalid:8443", home / "public/ca.crt")


def test_a_ca_file_that_is_none_is_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for file in (tmp_path / "empty", tmp_path / "missing", home / "server/server.key"):
        with pytest.raises(DeployError, match=f"{file} is not a readable certificate"):
            check_tls("127.0.0.1:1", file)


@pytest.mark.parametrize(
    ("text", "pair"),
    [("a.b:1", ("a.b", 1)), ("[::1]:8443", ("::1", 8443)), ("1.2.3.4:65535", ("1.2.3.4", 65535))],
)
def test_addresses_are_read(text: str, pair: tuple[str, int]) -> None:
    assert read_address(text) == pair


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "https://a:1", "a:b", "a:0", "a:65536", "::1:8443", "a:-1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(DeployError, match=r"address|port"):
        read_address(text)


def failure(text: str) -> str:
    return json.dumps({"success": False, "error-message": text})


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (failure("[code: 23] Public key already in use."), "registered already, or was revoked"),
        (failure("[code: 24] Node not found."), "there is no such client"),
        (failure("Client error '403 Forbidden' for url"), "it is the proxy"),
        (failure("line one\nand [code: 9999] two"), "line one and [code: 9999] two"),
        ("", "no output"),
        ("not json", "not json"),
        ("[1, 2]", "[1, 2]"),
        ('{"runs": []}', '{"runs": []}'),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_what_flower_refuses_is_told_in_plain_words(code: int, out: str, said: str) -> None:
    """Whatever the exit code: Flower ends with 0 after some failures."""
    with pytest.raises(DeployError) as caught:
        read_flwr_output("a:1", code, out, "")
    assert said in str(caught.value)
    assert "a:1" in str(caught.value)


def test_success_needs_a_zero_and_is_handed_on() -> None:
    said = {"success": True, "nodes": []}
    assert read_flwr_output("a:1", 0, json.dumps(said), "noise") == said
    with pytest.raises(DeployError):
        read_flwr_output("a:1", 1, json.dumps(said), "")


def test_an_error_box_is_taken_apart() -> None:
    box = "╭─ Error ───╮\n│ No such command 'nonsense'. │\n╰────╯\n"
    with pytest.raises(DeployError, match=r"Error No such command 'nonsense'\.$"):
        read_flwr_output("a:1", 2, "", box)


@pytest.fixture
def fake(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `flwr` of ours, for a SuperLink that is trusted; gives the folder it stands in."""
    monkeypatch.setattr(superlink_client, "bin_folder", lambda: tmp_path)
    monkeypatch.setattr(superlink_client, "check_tls", lambda *_: None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temp").mkdir()
    return tmp_path


def script(folder: Path, text: str) -> None:
    (folder / "flwr").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "flwr").chmod(0o755)


def test_flower_gets_a_home_of_its_own_that_is_gone_afterwards(fake: Path, home: Path) -> None:
    script(
        fake,
        f'cp $FLWR_HOME/config.toml {fake}/config.toml; echo "$@" > {fake}/arguments\n'
        f"env > {fake}/env; echo '{{\"success\": true}}'",
    )
    ca = home / "public/ca.crt"
    assert SuperLinkClient("fl.example.org:8000", ca).flwr("supernode", "ls") == {"success": True}
    assert (fake / "arguments").read_text() == "supernode ls --format json\n"
    config = (fake / "config.toml").read_text()
    assert 'address = "fl.example.org:8000"' in config
    assert f'root-certificates = "{ca}"' in config
    env = dict(line.partition("=")[::2] for line in (fake / "env").read_text().splitlines())
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert "fl.example.org" in env["NO_PROXY"].split(",")
    assert list((fake / "temp").iterdir()) == []


def test_flower_is_not_waited_for_for_ever(fake: Path, home: Path) -> None:
    script(fake, "exec sleep 30")
    with pytest.raises(DeployError, match=r"did not answer within 0\.2 s"):
        SuperLinkClient("a:1", home / "public/ca.crt").flwr("ls", timeout=0.2)
    assert list((fake / "temp").iterdir()) == []


def test_without_flower_it_says_how_to_get_it(fake: Path, home: Path) -> None:
    with pytest.raises(DeployError, match="install Flower"):
        SuperLinkClient("a:1", home / "public/ca.crt").flwr("ls")


def test_what_lies_in_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would import a json.py from there before its own."""
    (tmp_path / "json.py").write_text("import pathlib; pathlib.Path('owned').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deploy.federation.superlink_client.check_tls", lambda *_: None)
    with pytest.raises(DeployError):
        SuperLinkClient("127.0.0.1:9", None).nodes()
    assert not (tmp_path / "owned").exists()


def test_a_name_that_no_machine_can_have_is_told() -> None:
    with pytest.raises(DeployError, match="cannot be the name of a machine"):
        check_tls(f"{'a' * 300}:8443", None)
