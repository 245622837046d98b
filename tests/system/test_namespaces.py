"""A server and three clients on machines of their own, over lines that delay and lose packets."""

from collections.abc import Iterator
from statistics import median

import pytest

from common.runs.records import RoundRecord
from server_app.round.messaging import LATE
from tests.system.conftest import BIN
from tests.system.federation import wait_for
from tests.system.fleet import CLIENT, PATIENCE
from tests.system.namespaces import (
    ADDRESS,
    DELAY,
    DOOR,
    LOSS,
    NAME,
    OTHER_NAME,
    PORT,
    Networked,
    networked,
    why_not,
)

CLIENTS = ("0", "1", "2")
TWO_ROUNDS = {"rounds": 2}
OFFLINE, NOT_ASKED = "it went offline", "not asked"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Networked]:
    """Start a federation in which all three clients have joined."""
    if reason := why_not():
        pytest.skip(reason)
    with networked(tmp_path_factory.mktemp("net") / "fed") as made:
        made.enroll(*CLIENTS)
        made.join(*CLIENTS)
        yield made


def test_lines_delay_packets_by_the_kernels_netem(net: Networked) -> None:
    there_and_back = median(net.connects("0", ADDRESS, DOOR) or 0 for _ in range(3))
    assert 2 * DELAY <= there_and_back < 2 * DELAY + 1
    if not net.network.has_netem:
        pytest.skip(
            f"THE KERNEL HAS NO NETEM: {1000 * DELAY:g} ms and {LOSS:.0%} loss each way come from "
            f"a thread between two taps instead (measured: {1000 * there_and_back:.0f} ms)"
        )


def test_clients_reach_the_proxy_and_no_server_behind_it(net: Networked) -> None:
    assert net.connects("server", "127.0.0.1", PORT) is not None
    for client in CLIENTS:
        assert net.connects(client, NAME, DOOR) is not None
        for host, port in ((ADDRESS, PORT), (NAME, PORT), ("127.0.0.1", PORT)):
            assert net.connects(client, host, port) is None


@pytest.mark.parametrize("host", [NAME, ADDRESS, OTHER_NAME])
def test_the_server_is_accepted_by_the_names_of_its_certificate_only(
    net: Networked, host: str
) -> None:
    """Another project's certificates held for one name only:

    https://github.com/securefederatedai/openfederatedlearning/issues/1265.
    """
    done = net.call(
        *(BIN / "fedkeel", "join", "--check", "--superlink", f"{host}:{DOOR}", "--ca", net.ca),
        *("--key", net.folder / "keys/0", "--partition", "0/3"),
        extra={CLIENT: "0", "COLUMNS": "1000"},
    )
    if host == OTHER_NAME:
        assert done.code == 1
        assert f"the server's certificate is not for {host}; it is for: " in done.out
        assert f"or the operator runs: fedkeel pki renew --host {host}" in done.out
    else:
        assert done.code == 0, done.out
        assert f"the server is {host} and belongs to this CA" in done.out


def calm(net: Networked, method: str) -> list[RoundRecord]:
    """Return the records of two undisturbed rounds."""
    if not net.run_dir(method).exists():
        net.run(method, method, TWO_ROUNDS)
    return net.records(method)


@pytest.mark.parametrize("method", ["fedpcd", "fedpvr"])
def test_a_run_over_lossy_lines_gives_the_weights_of_the_inline_engine(
    net: Networked, method: str
) -> None:
    lost = net.network.lost()
    records = calm(net, method)
    assert [record.round for record in records] == [1, 2]
    for record in records:
        assert record.replied == [*CLIENTS]
        assert (record.dropped, record.void) == ({}, None)
    assert net.network.lost() > lost
    assert net.weights(method) == net.reference(method, f"{method}-inline", TWO_ROUNDS, "inline")


def test_a_client_cut_off_for_two_rounds_takes_part_again(net: Networked) -> None:
    """The rounds without it end at their timeout; no process is restarted."""
    slowest = max(second for one in calm(net, "fedpcd") for second in one.arrived.values())
    limit = max(15.0, 3 * slowest)
    node = net.find("flower-supernode", "2").pid
    settings = {"rounds": 40, "server.quorum": 2, "server.round-timeout": limit}
    run = net.start_run("fedpcd", "cut", {**settings, "server.patience": 5.0})
    assert net.done("cut", 1).replied == [*CLIENTS]
    net.reaches("cut", 2)
    net.cut_off("2")
    reasons = []
    for number in (2, 3):
        record = net.done("cut", number)
        assert record.replied == ["0", "1"]
        assert record.void is None
        assert record.seconds["train"] < limit + 5
        reasons.append(record.dropped.get("2", NOT_ASKED))
    # The deadline is before or after the server misses it, a minute after its last sign of life.
    assert reasons in ([LATE, LATE], [LATE, OFFLINE], [LATE, NOT_ASKED], [OFFLINE, NOT_ASKED])
    net.plug_in("2")

    def all_there() -> list[int]:
        records = net.records("cut")
        return [one.round for one in records if one.round > 3 and one.replied == [*CLIENTS]]

    wait_for(all_there, lambda: f"{net.records('cut')}{net.tails}", PATIENCE)
    assert net.find("flower-supernode", "2").pid == node
    assert net.joined["2"].text.count("connected: ready for orders") == 1
    run.stop()
    assert f"round 2/40: client 2 dropped: {reasons[0]}" in run.text
    assert "stopped; nothing is left running" in run.text
