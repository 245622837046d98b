"""A federation behind a company's proxy.

HTTP_PROXY and HTTPS_PROXY of every process on the server's machine name a port at which nothing
listens. The client reaches the server through a forward proxy only, because its name for the server
is known to that proxy alone.
"""

from collections.abc import Iterator

import pytest

from tests.system.conftest import BIN
from tests.system.fleet import CLIENT, Fleet, fleet, need_nginx
from tests.tunnel import Tunnel, tunnel

pytestmark = pytest.mark.slow
SERVER = "fl.example.org"
CLOSED = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def way_out() -> Iterator[Tunnel]:
    with tunnel() as made:
        yield made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    need_nginx()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            patch.setenv(name, CLOSED)
            patch.setenv(name.lower(), CLOSED)
        for name in ("NO_PROXY", "no_proxy"):
            patch.delenv(name, raising=False)
        with fleet(tmp_path_factory.mktemp("company") / "f", size=1, hosts=[SERVER]) as up:
            up.enroll("0")
            yield up


def test_a_client_takes_part_through_the_proxy_and_the_server_works_without_it(
    made: Fleet, way_out: Tunnel
) -> None:
    proxy = f"http://127.0.0.1:{way_out.server_address[1]}"
    variables = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), proxy)
    made.joined["0"] = made.start(
        "join-0",
        *(BIN / "fedkeel", "join", "--superlink", f"{SERVER}:{made.door}", "--ca", made.ca),
        *("--name", "0", "--key", made.folder / "keys" / "0", "--partition", "0/1"),
        extra={CLIENT: "0", **variables},
    )
    made.connected("0")
    made.run("fedavg", "company", {"rounds": 1})
    [record] = made.records("company")
    assert record.replied == ["0"]
    assert {head.split()[1] for head in way_out.heads} == {f"{SERVER}:{made.door}".encode()}
    text = " ".join(made.joined["0"].text.split())  # the terminal's width breaks lines
    assert f"{SERVER} is reached through 127.0.0.1:" in text
