"""Rounds on real nodes when clients are few, late, slow, hang, or send invalid replies."""

import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from common.runs.records import RoundRecord
from server_app.round.messaging import LATE
from server_app.round.sampling import sample_clients
from tests.system.federation import wait_for
from tests.system.fleet import PATIENCE, Fleet, fleet, need_nginx
from tests.system.odd import Odd

pytestmark = pytest.mark.slow

ALL = ["0", "1", "2"]
SHORTEST_BEAT = 6  # seconds between two heartbeats of client 2's process, at least
INVALID = {  # a reply of client 2 in each of its rounds, and the reason in the record
    "nan": "NaN or infinite in features.1.weight",
    "shape": 'expected "weights" as float32[55210], got float32[3]',
    "stamp": "the reply is for server-round 99, not ",
    "pickled": "fedpvr needs the vectors",
    "header": "hold float32[10000000000000], not what the message says",
    "malformed": "its reply is malformed",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Start a federation of three enrolled clients; none has joined."""
    need_nginx()
    with fleet(tmp_path_factory.mktemp("fleet") / "f") as up:
        up.enroll(*ALL)
        yield up


@pytest.fixture(scope="module")
def odd(made: Fleet) -> Odd:
    """Orders to clients to behave oddly; none so far."""
    return Odd(made.folder / "odd")


def join_exactly(made: Fleet, odd: Odd, *names: str) -> None:
    """Have these clients joined, and no others."""
    for name, process in made.joined.items():
        if name not in names and process.is_alive():
            assert process.stop() == 0, process.text
    gone = [name for name in names if name not in made.joined or not made.joined[name].is_alive()]
    made.join(*gone, extra=odd.env(quick=True))


@pytest.fixture(scope="module")
def alone(made: Fleet, odd: Odd) -> RoundRecord:
    """Run one round with a single client and return its record."""
    join_exactly(made, odd)
    made.join("0", part="0/1", extra=odd.env(quick=True))
    made.run("fedpcd", "alone", {"clients": 1, "rounds": 1})
    assert made.joined["0"].stop() == 0
    [record] = made.records("alone")
    return record


@pytest.fixture(scope="module")
def pace(alone: RoundRecord) -> float:
    """Return the seconds that an order takes on this machine: 4 on a quiet one."""
    return max(alone.arrived.values())


@pytest.fixture(scope="module")
def beat(pace: float) -> int:
    """Return the seconds between two heartbeats of client 2's process, instead of Flower's 30.

    Its node misses a process sooner. A process that starts slower than two heartbeats would be
    started again and again, which makes a busy machine slower still.
    """
    return max(SHORTEST_BEAT, round(1.5 * pace))


def test_a_federation_of_one_client_trains(alone: RoundRecord) -> None:
    """It waited for ever in https://github.com/londonaicentre/FLIP/pull/992."""
    assert alone.replied == ["0"]


def test_a_run_for_more_clients_than_enrolled_is_refused_at_once(made: Fleet) -> None:
    done = made.fedkeel(*made.arguments("fedpcd", "many", {"clients": 5}))
    assert done.code == 2
    assert "a round needs 5 clients" in done.err
    assert "3 are enrolled" in done.err
    assert "0, 1, 2" in done.err


def test_a_run_whose_clients_do_not_connect_ends_in_time_and_names_them(
    made: Fleet, odd: Odd, pace: float
) -> None:
    """Until then `fedkeel status` shows that it waits.

    It waited for ever in https://github.com/londonaicentre/FLIP/pull/992.
    """
    join_exactly(made, odd, "0")
    limit = 4 + round(1.5 * pace)  # 10 s on a quiet machine
    process = made.start_run("fedpcd", "few", {"server.start-timeout": limit})

    def shows() -> bool:
        live = made.live("few")
        return not process.is_alive() or bool(live and live.ready)

    wait_for(shows, lambda: made.tails, PATIENCE)
    assert "few: waiting for clients, 1 ready (0), " in made.succeed("status", "few")
    assert process.ended(PATIENCE) == 1
    outcome = made.outcome("few")
    assert outcome is not None
    assert outcome.status == "failed"
    output = f"1 of 3 clients connected within {limit} s (connected: 0; missing: 1, 2)"
    assert output in outcome.message
    assert outcome.seconds < limit + 3
    assert outcome.message in process.text


@dataclass(frozen=True)
class Story:
    """A run in which client 2 joins late and then does one bad thing after the other.

    Attributes:
        records: all of it.
        joined: the round that was under way when client 2 connected.
        first: the first round with client 2 in its cohort.
        limit: the timeout of a round in seconds.
        servers: the ServerApp's processes at the beginning and at the end.
    """

    records: list[RoundRecord]
    joined: int
    first: int
    limit: float
    servers: tuple[psutil.Process, psutil.Process]

    def at(self, offset: int) -> RoundRecord:
        """Return the record of the round with this number, counted from the first of client 2."""
        [record] = [r for r in self.records if r.round == self.first + offset]
        return record


STRAGGLING = 1 + len(INVALID)  # in this round, counted as `at` does, client 1 is too slow
HANGING = STRAGGLING + 2  # in this one client 2 hangs
WORDS = ["", *INVALID, "", "", "hangs"]  # client 2's behaviour from its first round


@pytest.fixture(scope="module")
def story(made: Fleet, odd: Odd, pace: float, beat: int) -> Story:
    """Start the run with clients 0 and 1, and play the story."""
    join_exactly(made, odd, "0", "1")
    odd.give({"2": WORDS})
    limit = min(8 + 3 * pace, 90.0)  # 20 s on a quiet machine
    settings = {"server.quorum": 2, "rounds": 100, "server.round-timeout": limit}
    process = made.start_run("fedpvr", "story", settings)
    try:
        return play(made, odd, limit, beat)
    finally:
        process.popen.send_signal(signal.SIGINT)
        process.ended(PATIENCE)


def play(made: Fleet, odd: Odd, limit: float, beat: int) -> Story:
    """Let client 2 join the run that is under way, and follow it to the end."""
    made.reaches("story", 1)
    server = made.find("flwr-serverapp")
    made.join("2", extra=odd.env(quick=True, beat=beat))
    joined = made.reaches("story", 1).round

    def seen(what: Callable[[RoundRecord], bool]) -> RoundRecord:
        def there() -> list[RoundRecord]:
            found = [record for record in made.records("story") if what(record)]
            assert found or made.outcome("story") is None, made.outcome("story")
            return found

        found: list[RoundRecord] = wait_for(there, lambda: made.tails, PATIENCE)
        return found[0]

    first = seen(lambda record: "2" in record.cohort).round
    straggling, hanging = first + STRAGGLING, first + HANGING
    odd.replace({"1": [""] * (straggling - 1) + ["waits"], "2": WORDS})
    since = made.reaches("story", straggling).since
    wait_for(lambda: odd.has_begun("1", since), lambda: made.tails, PATIENCE)
    slow = made.find("flwr-clientapp", "1", since)
    slow.suspend()  # its watchdog stands still as well
    odd.go("1", straggling - 1)
    seen(lambda record: record.round == straggling)
    slow.resume()
    seen(lambda record: record.round > hanging and "2" in record.replied)
    servers = server, made.find("flwr-serverapp")
    return Story(made.records("story"), joined, first, limit, servers)


def test_a_run_starts_with_a_quorum_and_a_late_client_takes_part_without_a_restart(
    story: Story,
) -> None:
    before = [record for record in story.records if record.round < story.first]
    assert before
    assert all(record.cohort == record.replied == ["0", "1"] for record in before)
    assert story.first - story.joined <= 2, "the next one, or the one after: it is asked first"
    assert story.at(0).replied == ALL
    assert story.servers[0] == story.servers[1]


@pytest.mark.parametrize("word", INVALID)
def test_a_client_with_an_invalid_reply_is_dropped_for_that_round_only(
    word: str, story: Story, odd: Odd
) -> None:
    record = story.at(1 + list(INVALID).index(word))
    assert record.cohort == ALL
    assert record.replied == ["0", "1"]
    assert record.dropped.keys() == {"2"}
    assert INVALID[word] in record.dropped["2"]
    assert not odd.bombed


def test_a_straggler_is_dropped_its_late_reply_is_recorded_and_it_takes_part_again(
    story: Story,
) -> None:
    record, following = story.at(STRAGGLING), story.at(STRAGGLING + 1)
    assert record.replied == ["0", "2"]
    assert record.dropped == {"1": LATE}
    assert story.limit <= record.seconds["train"] < story.limit + 3
    assert following.late.keys() == {"1"}
    assert following.late["1"].startswith(f"its reply to round {record.round} came ")
    assert following.late["1"].endswith(" s after the deadline")
    assert following.replied == ALL


def test_a_client_that_hangs_is_ended_by_its_watchdog_and_takes_part_again(
    story: Story, made: Fleet
) -> None:
    record = story.at(HANGING)
    assert record.replied == ["0", "1"]
    assert record.dropped == {"2": LATE}
    back = [r.round for r in story.records if r.round > record.round and "2" in r.replied]
    assert back[0] - record.round <= 2
    assert "this process ends" in (made.folder / "keys/2.node/node.log").read_text()


def cohorts(seed: int) -> list[list[str]]:
    """Return the cohorts of two clients in the first three rounds."""
    return [sample_clients(ALL, 2, seed=seed, round=number) for number in (1, 2, 3)]


@pytest.fixture
def everybody(made: Fleet, odd: Odd) -> None:
    """Have all clients joined."""
    join_exactly(made, odd, *ALL)


@pytest.mark.usefixtures("everybody")
def test_with_over_selection_the_first_replies_are_used_and_a_run_can_be_repeated(
    made: Fleet, odd: Odd
) -> None:
    """The round uses two of three replies; the repetition samples these two clients."""
    seed = next(s for s in range(100) if cohorts(s) == [["0", "1"]] * 3)
    odd.give({"1": ["", "", "waits"], "2": ["waits"] * 3})
    settings = {"participation": 0.67, "rounds": 3, "seed": seed}
    process = made.start_run("fedpvr", "spare", {**settings, "server.over-selection": 1})
    made.done("spare", 1)
    odd.go("2", 0)

    def late_reply_is_there() -> bool:
        live = made.live("spare")
        return bool(live and live.late) or any(record.late for record in made.records("spare"))

    wait_for(late_reply_is_there, lambda: made.tails, PATIENCE)
    odd.go("1", 2)
    made.reaches("spare", 3, "evaluating")
    odd.go("2", 1)
    odd.go("2", 2)
    assert process.ended(PATIENCE) == 0, process.text + made.tails
    records = made.records("spare")
    for record in records:
        assert record.cohort == ALL
        assert record.replied == ["0", "1"]
        assert record.dropped == {"2": "not among the first 2 replies"}
    late = records[1].late or records[2].late  # it comes when round 1 is over
    assert late == {"2": "its reply to round 1 came when it was over"}
    assert made.weights("spare") == made.reference("fedpvr", "repeated", settings, "inline")


@pytest.mark.usefixtures("everybody")
def test_too_few_usable_replies_make_a_round_void_and_too_many_void_rounds_end_the_run(
    made: Fleet, odd: Odd
) -> None:
    odd.give({"1": ["raises"] * 9})
    settings = {"server.min-replies": 3, "server.max-void-rounds": 2, "rounds": 9}
    done = made.fedkeel(*made.arguments("fedpcd", "void", settings))
    odd.give({})
    assert done.code == 1
    records = made.records("void")
    assert [record.void for record in records] == ["2 of 3 replies usable, 3 needed"] * 2
    outcome = made.outcome("void")
    assert outcome is not None
    assert (outcome.status, outcome.rounds) == ("failed", 0)
    assert "2 void rounds in a row" in outcome.message
    assert "(1: its ClientApp raised an error: " in outcome.message
    assert "one two three)" in outcome.message
    assert outcome.message in done.out


@pytest.mark.usefixtures("everybody")
def test_a_restarted_client_keeps_its_state_and_a_second_node_with_its_key_is_refused(
    made: Fleet, odd: Odd, tmp_path: Path
) -> None:
    """A restarted client got no work in https://github.com/flwrlabs/flower/issues/4844."""
    odd.give({"1": ["", "waits"]})  # round 2 is not over before the new process has answered
    process = made.start_run("fedpvr", "identity", {})
    twin = made.start_join("1", label="twin")
    shutil.copytree(made.folder / "keys", tmp_path / "keys")
    copy = made.start_join("1", key=tmp_path / "keys/1", label="copy")
    made.done("identity", 1)

    assert twin.ended(PATIENCE) == 1
    assert 'the client "1" is running on this machine already' in twin.text
    copy.says('the server does not let client "1"', PATIENCE)
    assert copy.stop() == 0

    since = made.reaches("identity", 2).since
    wait_for(lambda: odd.has_begun("1", since), lambda: made.tails, PATIENCE)
    assert made.joined["1"].stop() == 0
    shutil.rmtree(made.folder / "keys/1.node")
    made.join("1", extra=odd.env(quick=True))

    assert process.ended(PATIENCE) == 0, process.text + made.tails
    records = made.records("identity")
    assert [record.replied for record in records] == [ALL] * 3
    assert [record.dropped for record in records] == [{}] * 3
    assert records[1].again == ["1"]
    calm = made.reference("fedpvr", "identity-calm", {}, "inline")
    assert made.weights("identity") == calm
