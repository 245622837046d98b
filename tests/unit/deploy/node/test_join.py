"""An edge owner joins with one command, which tells all that is wrong before it connects."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image
from rich.console import Console

from common.errors import DeployError
from deploy.federation.client_keys import check_private, make_key
from deploy.node import join as joining
from deploy.node.join import join, name_and_key, read_partition
from deploy.node.supernode import Node
from deploy.preflight import client_checks
from deploy.preflight.client_checks import check_space, key_lock, run_in_child
from deploy.preflight.dry_run import DryRunTask
from deploy.preflight.findings import Finding

WELL = Finding("all", "ok", "well")
CONFIG = """
model = "cnn"
[data]
name = "own"
classes = "cat,dog,zebra"
image-size = 16
max-bad = 0.2
[train]
batch-size = 8
"""


def paint(folder: Path, **classes: int) -> Path:
    """Write so many pictures of each class for training, and one for the test."""
    rng = np.random.default_rng(0)
    for name, count in classes.items():
        for part, number in (("train", count), ("test", 1)):
            (folder / part / name).mkdir(parents=True)
            for index in range(number):
                pixels = rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{index}.png")
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "federation.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """Let all checks pass but that of the key; returns the nodes that were then served."""
    served: list[Node] = []
    monkeypatch.setattr(joining, "check_server", lambda *_: iter([WELL]))
    monkeypatch.setattr(joining, "run_in_child", lambda *_: [WELL])
    monkeypatch.setattr(joining, "run_node", lambda node, print_event, stop: served.append(node))
    return served


def call(tmp_path: Path, **given: Any) -> tuple[int, str]:
    out = io.StringIO()
    code = join(
        "fl.example.org:8443",
        tmp_path / "ca.crt",
        given.pop("data", tmp_path),
        None,
        given.pop("name", "eve"),
        given.pop("key", tmp_path / "keys" / "eve"),
        console=Console(file=out, width=300),
        **given,
    )
    return code, out.getvalue()


def test_a_first_join_makes_the_key_and_says_what_the_operator_needs(
    tmp_path: Path, nodes: list[Node]
) -> None:
    code, said = call(tmp_path)
    assert code == 0
    key = tmp_path / "keys" / "eve"
    assert check_private(key) == []
    assert f"send {key}.pub to the operator" in said
    assert "fedkeel enroll eve --key eve.pub" in said
    assert "Ready to take part." in said
    (node,) = nodes
    assert node.key == key
    assert node.config == f'watchdog=true data="{tmp_path}" keep="{key}.node/kept"'
    assert node.home == tmp_path / "keys" / "eve.node"
    assert "was made" not in call(tmp_path)[1], "it is kept"


def test_the_checks_alone_connect_nothing(tmp_path: Path, nodes: list[Node]) -> None:
    code, said = call(tmp_path, check_only=True)
    assert code == 0
    assert "whether the key is enrolled shows when the client connects" in said
    assert not nodes


def test_one_problem_keeps_the_node_from_connecting_and_all_others_are_told_too(
    tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Iterator[Finding]:
        raise RuntimeError("odd")

    monkeypatch.setattr(joining, "check_server", fails)
    ill = Finding("training step", "problem", "hangs", "mend")
    monkeypatch.setattr(joining, "run_in_child", lambda what, _: [ill if what == "step" else WELL])
    code, said = call(tmp_path)
    assert code == 1
    assert not nodes
    assert "odd" in said
    assert "hangs" in said
    assert "memory" in said
    assert "2 problems to mend" in said


# A public report of this bug: https://github.com/flwrlabs/flower/issues/4844
def test_a_second_client_with_the_same_key_is_refused_by_name(
    tmp_path: Path, nodes: list[Node]
) -> None:
    key = tmp_path / "keys" / "eve"
    make_key(key)
    with key_lock(key) as is_free:
        assert is_free
        code, said = call(tmp_path)
        assert code == 1
        assert 'the client "eve" is running on this machine already' in said
        assert call(tmp_path, check_only=True)[0] == 0, "checks do no harm to the one that runs"
    assert not nodes
    assert call(tmp_path)[0] == 0, "the lock went with its holder"


def test_a_key_that_is_open_to_others_is_refused(tmp_path: Path, nodes: list[Node]) -> None:
    key = tmp_path / "keys" / "eve"
    make_key(key)
    key.chmod(0o644)
    code, said = call(tmp_path)
    assert code == 1
    assert "chmod 600" in said
    assert not nodes


def test_a_client_without_data_is_told_of_both_ways(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"--data DIR.*--partition K/N"):
        call(tmp_path, data=None)


def test_a_part_of_a_dealt_data_set_reaches_the_node(tmp_path: Path, nodes: list[Node]) -> None:
    call(tmp_path, data=None, partition="1/3")
    assert nodes[0].config.startswith("watchdog=true partition-id=1 num-partitions=3 keep=")


@pytest.mark.parametrize("text", ["3/3", "1", "a/b", "-1/3", "1/0", "1/2/3"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DeployError, match="expected K/N"):
        read_partition(text)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_asked_to_stop_it_ends_in_order_with_exit_code_0(
    tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    inherited = signal.signal(number, signal.SIG_DFL)  # nohup and a shell's & ignore some

    def serve(_: Node, say: Any, stop: Any) -> None:
        assert not stop()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # impatience changes nothing
        deadline = time.monotonic() + 5
        while not stop():
            assert time.monotonic() < deadline

    monkeypatch.setattr(joining, "run_node", serve)
    try:
        code, said = call(tmp_path)
        assert code == 0
        assert said.splitlines()[-1].endswith("eve: stopped as asked; nothing is left running")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, inherited)


def test_a_name_is_that_of_the_key_or_of_the_only_key_or_of_the_machine(tmp_path: Path) -> None:
    assert name_and_key("", Path("/x/lab-3"), tmp_path) == ("lab-3", Path("/x/lab-3"))
    assert name_and_key("eve", Path("/x/lab-3"), tmp_path) == ("eve", Path("/x/lab-3"))
    assert name_and_key("eve", None, tmp_path) == ("eve", tmp_path / "eve")
    assert name_and_key("", None, tmp_path)[1].parent == tmp_path
    make_key(tmp_path / "lab.3")
    assert name_and_key("", None, tmp_path) == ("lab.3", tmp_path / "lab.3")
    make_key(tmp_path / "lab-4")
    with pytest.raises(DeployError, match=r"lab-4, lab.3.*--name"):
        name_and_key("", None, tmp_path)
    with pytest.raises(DeployError, match="cannot be a client's name"):
        name_and_key("a b", None, tmp_path)


def test_a_folder_for_the_node_that_cannot_be_made_is_replaced_by_one_that_goes(
    tmp_path: Path, nodes: list[Node]
) -> None:
    (tmp_path / "file").touch()
    assert call(tmp_path, home=tmp_path / "file" / "below")[0] == 0
    assert nodes[0].home.name.startswith("fedkeel-node-")
    assert not nodes[0].home.exists()


def test_room_is_looked_for_once_on_each_disk(tmp_path: Path) -> None:
    found = list(check_space(tmp_path, tmp_path))
    assert found
    assert len(found) == len({path.stat().st_dev for path in (tmp_path, Path("/tmp"))})


def by_topic(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    topics: dict[str, list[Finding]] = {}
    for finding in findings:
        topics.setdefault(finding.topic, []).append(finding)
    return topics


def test_a_folder_is_counted_by_class_and_its_bad_files_are_named(
    tmp_path: Path, config: Path
) -> None:
    data = paint(tmp_path / "my = pets", cat=6, dog=4)
    (data / "train" / "dog" / "torn.jpg").write_bytes(b"no picture")
    found = by_topic(run_in_child("data", DryRunTask(str(data), (), str(config))))
    counts, bad = found["data"]
    assert "train: cat 6, dog 4, zebra 0; test: cat 1, dog 1, zebra 0" in counts.sentence
    assert "12 of 13 files" in counts.sentence
    assert counts.verdict == "note"
    assert "zebra" in counts.remedy
    assert "train/dog/torn.jpg: " in bad.sentence
    assert found["config"][0].verdict == "ok"


def test_too_many_bad_files_are_a_problem_and_named_once(tmp_path: Path, config: Path) -> None:
    data = paint(tmp_path / "pets", cat=2)
    for index in range(3):
        (data / "train" / "cat" / f"torn{index}.jpg").write_bytes(b"no picture")
    found = run_in_child("data", DryRunTask(str(data), (), str(config)))
    (problem,) = (finding for finding in found if finding.verdict == "problem")
    assert "3 of 6 files cannot be used" in problem.sentence
    assert sum("torn2.jpg" in finding.sentence for finding in found) == 1


def test_a_class_that_the_federation_does_not_know_is_a_problem(
    tmp_path: Path, config: Path
) -> None:
    data = paint(tmp_path / "pets", cat=2, dogs=2)
    found = run_in_child("data", DryRunTask(str(data), (), str(config)))
    problems = [finding.sentence for finding in found if finding.verdict == "problem"]
    assert len(problems) == 1
    assert '"dogs" (did you mean "dog"?)' in problems[0]
    without = run_in_child("data", DryRunTask(str(data)))
    assert [finding.verdict for finding in without] == ["note"]
    assert "--config" in without[0].remedy


@pytest.mark.parametrize(
    ("text", "order", "words"),
    [
        (CONFIG, DryRunTask(part=(0, 3)), "--data DIR"),
        ('data.name = "digits"', DryRunTask(data="/x"), "--partition K/N"),
        ('modle = "cnn"', DryRunTask(data="/x"), "modle"),
    ],
)
def test_a_config_that_asks_for_something_else_is_told(
    tmp_path: Path, text: str, order: DryRunTask, words: str
) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(text)
    found = run_in_child("data", DryRunTask(order.data, order.part, str(path)))
    (problem,) = (finding for finding in found if finding.verdict == "problem")
    assert words in problem.sentence + problem.remedy


def test_a_step_of_training_is_taken_and_its_seconds_and_device_are_told(
    tmp_path: Path, config: Path
) -> None:
    data = paint(tmp_path / "pets", cat=6, dog=6)
    found = by_topic(run_in_child("step", DryRunTask(str(data), (), str(config))))
    (step,) = found["training step"]
    assert step.verdict == "ok", step.sentence
    assert "a step of cnn on 8 pictures takes 0." in step.sentence
    assert "trains on the" in step.sentence
    assert found["gpu"]


def test_a_folder_alone_is_enough_to_try_a_step(tmp_path: Path) -> None:
    data = paint(tmp_path / "pets", cat=9)
    *_, step = run_in_child("step", DryRunTask(str(data)))
    assert step.verdict == "ok", step.sentence


def test_a_step_that_hangs_is_killed_and_told(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    (found,) = run_in_child("step", DryRunTask(str(tmp_path)), seconds=0.01)
    assert (found.topic, found.verdict) == ("training step", "problem")
    assert "killed" in found.sentence
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize(("code", "words"), [(-9, "memory"), (-11, "-11: Illegal"), (3, "3: Ill")])
def test_a_process_that_dies_is_told_with_its_last_words(code: int, words: str) -> None:
    finding = client_checks._judge_end("training step", code, "Traceback\nIllegal instruction\n")
    assert finding.verdict == "problem"
    assert words in finding.sentence


def test_whoever_joins_keeps_neither_torch_nor_flower_in_memory() -> None:
    code = (
        "import json, sys, deploy.node.join\n"
        "print(json.dumps([n for n in ('torch', 'flwr', 'ray', 'numpy') if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_a_check_under_way_does_not_keep_the_client_from_joining(
    tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client was "running on this machine already" while its owner ran the checks."""
    joined: list[int] = []

    def join_meanwhile(*_: Any) -> Iterator[Finding]:
        if not joined:
            joined.append(-1)
            joined[0] = call(tmp_path)[0]
        return iter([WELL])

    monkeypatch.setattr(joining, "check_server", join_meanwhile)
    assert call(tmp_path, check_only=True)[0] == 0
    assert joined == [0]
    assert len(nodes) == 1
