"""Rounds on real nodes when clients are few, late, slow, hang, or send rubbish; and who is who."""

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
BEAT = 6  # seconds between two heartbeats of client 2: its node misses its process sooner
RUBBISH = {  # what client 2 sends, one in each of its rounds, and what the record says of it
    "nan": "NaN or infinite in features.1.weight",
    "shape": 'expected "weights" as float32[55210], got float32[3]',
    "stamp": "the reply is for server-round 99, not ",
    "pickled": "fedpvr needs the vectors",
    "header": "hold float32[10000000000000], not what the message says",
    "malformed": "its reply is malformed",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A federation of three enrolled clients, of which none is there."""
    need_nginx()
    with fleet(tmp_path_factory.mktemp("fleet") / "f") as up:
        up.enroll(*ALL)
        yield up


@pytest.fixture(scope="module")
def odd(made: Fleet) -> Odd:
    """What clients are made to do; so far nothing."""
    return Odd(made.folder / "odd")


# The tests of this file build on each other's clients: first there are none, then 0, 1, and 2.


def test_a_federation_of_one_client_runs(made: Fleet, odd: Odd) -> None:
    """FLB-01(a)."""
    made.join("0", part="0/1", extra=odd.env(quick=True))
    made.run("fedpcd", "alone", {"clients": 1, "rounds": 1})
    [record] = made.records("alone")
    assert record.replied == ["0"]
    assert made.joined["0"].stop() == 0


def test_more_clients_than_are_enrolled_are_refused_at_once(made: Fleet) -> None:
    """FLB-01: nothing is handed in, and nobody waits."""
    done = made.fedkeel(*made.arguments("fedpcd", "many", {"clients": 5}))
    assert done.code == 2
    assert "a round needs 5 clients" in done.err
    assert "3 are enrolled" in done.err
    assert "0, 1, 2" in done.err


def test_a_run_whose_clients_do_not_come_ends_and_names_them(made: Fleet, odd: Odd) -> None:
    """FLB-01(b): within the time it was given; whoever looks meanwhile sees that it waits."""
    made.join("0", extra=odd.env(quick=True))
    limit = 4 + round(1.5 * pace(made))  # 10 s on a quiet machine
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
    said = f"1 of 3 clients connected within {limit} s (connected: 0; missing: 1, 2)"
    assert said in outcome.message
    assert outcome.seconds < limit + 3
    assert outcome.message in process.text


def pace(made: Fleet) -> float:
    """How long an order takes here, seconds: 4 on a quiet machine."""
    return max(made.records("alone")[0].arrived.values())


@dataclass(frozen=True)
class Story:
    """What became of one run in which client 2 comes late and does one bad thing after the other.

    Attributes:
        records: all of it.
        joined: the round that was under way when client 2 was let in.
        first: the first round that asked it.
        limit: seconds of a round.
        servers: the ServerApp's processes at the begin and at the end.
    """

    records: list[RoundRecord]
    joined: int
    first: int
    limit: float
    servers: tuple[psutil.Process, psutil.Process]

    def at(self, offset: int) -> RoundRecord:
        """The record of the so-manyth round with client 2, from 0."""
        [record] = [r for r in self.records if r.round == self.first + offset]
        return record


STRAGGLING = 1 + len(RUBBISH)  # in this round, counted as `at` does, client 1 is too slow
HANGING = STRAGGLING + 2  # in this one client 2 hangs


@pytest.fixture(scope="module")
def story(made: Fleet, odd: Odd) -> Story:
    """Tell the story, which clients 0 and 1 begin."""
    made.join("1", extra=odd.env(quick=True))
    odd.give({"2": ["", *RUBBISH, "", "", "hangs"]})
    limit = min(8 + 3 * pace(made), 45.0)  # 20 s on a quiet machine
    settings = {"server.quorum": 2, "rounds": 100, "server.round-timeout": limit}
    process = made.start_run("fedpvr", "story", settings)
    try:
        return tell(made, odd, limit)
    finally:
        process.popen.send_signal(signal.SIGINT)
        process.ended(PATIENCE)


def tell(made: Fleet, odd: Odd, limit: float) -> Story:
    """Have client 2 join the run that goes on, and see what follows to the end."""
    made.reaches("story", 1)
    server = made.find("flwr-serverapp")
    made.join("2", extra=odd.env(quick=True, beat=BEAT))
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
    seen(lambda record: record.round == straggling - 1)
    since = made.reaches("story", straggling).since
    wait_for(lambda: odd.has_begun("1", since), lambda: made.tails, PATIENCE)
    slow = made.find("flwr-clientapp", "1", since)
    slow.suspend()
    seen(lambda record: record.round == straggling)
    slow.resume()
    seen(lambda record: record.round > hanging and "2" in record.replied)
    servers = server, made.find("flwr-serverapp")
    return Story(made.records("story"), joined, first, limit, servers)


def test_a_quorum_starts_and_who_joins_meanwhile_takes_part_from_the_next_round(
    story: Story,
) -> None:
    """Its first order comes without a restart of anything."""
    before = [record for record in story.records if record.round < story.first]
    assert before
    assert all(record.cohort == record.replied == ["0", "1"] for record in before)
    assert story.first - story.joined <= 2, "the next one, or the one after: it is asked first"
    assert story.at(0).replied == ALL
    assert story.servers[0] == story.servers[1]


@pytest.mark.parametrize("word", RUBBISH)
def test_rubbish_costs_its_sender_the_round_and_nobody_else(
    word: str, story: Story, odd: Odd
) -> None:
    record = story.at(1 + list(RUBBISH).index(word))
    assert record.cohort == ALL
    assert record.replied == ["0", "1"]
    assert record.dropped.keys() == {"2"}
    assert RUBBISH[word] in record.dropped["2"]
    assert not odd.bombed


def test_a_straggler_is_dropped_its_late_reply_is_noticed_and_it_takes_part_again(
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
    """Who is asked in the first three rounds, if two of the three are."""
    return [sample_clients(ALL, 2, seed=seed, round=number) for number in (1, 2, 3)]


@pytest.fixture
def everybody(made: Fleet, odd: Odd) -> None:
    """All clients are there, whatever became of them before."""
    gone = [name for name in ALL if name not in made.joined or not made.joined[name].is_alive()]
    made.join(*gone, extra=odd.env(quick=True))


@pytest.mark.usefixtures("everybody")
def test_the_first_replies_are_used_and_the_record_is_enough_to_repeat_it(
    made: Fleet, odd: Odd
) -> None:
    """Over-selection: two of three; in the repetition the same two are the cohort."""
    seed = next(s for s in range(100) if cohorts(s) == [["0", "1"]] * 3)
    odd.give({"2": ["waits"] * 3})
    settings = {"participation": 0.67, "rounds": 3, "seed": seed}
    process = made.start_run("fedpvr", "spare", {**settings, "server.over-selection": 1})
    made.done("spare", 1)
    odd.go("2", 0)
    made.reaches("spare", 3, "evaluating")
    odd.go("2", 1)
    odd.go("2", 2)
    assert process.ended(PATIENCE) == 0, process.text + made.tails
    records = made.records("spare")
    for record in records:
        assert record.cohort == ALL
        assert record.replied == ["0", "1"]
        assert record.dropped == {"2": "not among the first 2 replies"}
    late = records[1].late or records[2].late  # it may come when the second round is over
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
def test_a_client_is_its_key_whatever_becomes_of_its_processes_and_its_folder(
    made: Fleet, odd: Odd, tmp_path: Path
) -> None:
    """FLB-03(a), (b) and (d): its control variate stays its own, and nobody can double it."""
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
