"""Try a client's work in a process of its own: `python -m deploy.preflight.dry_run data|step`.

The task comes as JSON on standard input. Each finding goes to standard output as a line of JSON. A
picture that breaks a decoder, or a driver that hangs, then ends this process only. Neither torch
nor Flower stays in the memory of a small machine.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import FedError
from deploy.preflight.findings import Finding, Verdict

LISTED = 50  # files that cannot be used are named, so many at most
MEND = "mend it, then run this again"


@dataclass(frozen=True)
class DryRunTask:
    """The task of a dry run.

    Attributes:
        data: the client's folder, "" for none.
        part: (partition id, number of partitions) of a dealt data set, empty for own data.
        config: the federation's config file, "" for none.
    """

    data: str = ""
    part: tuple[int, ...] = ()
    config: str = ""

    @property
    def node_config(self) -> Mapping[str, Any]:
        """The node config that the client app will get."""
        place = {"data": self.data} if self.data else {}
        names = ("partition-id", "num-partitions")
        return {**place, **(dict(zip(names, self.part, strict=True)) if self.part else {})}


def try_data(order: DryRunTask) -> Iterator[Finding]:
    """Read the federation's config, and every picture of the client's folder."""
    from common.config import RunConfig
    from common.data import OWN, FolderOptions, inspect_folder, own_options
    from deploy.config_input import run_config

    config = run_config(Path(order.config), [], {}) if order.config else None
    if config is not None:
        yield from _judge_config(config, order)
    if order.part or (config is not None and config.data.name != OWN):
        return
    options = FolderOptions(max_bad=RunConfig().data.max_bad)
    if config is not None:
        chosen = config.data
        options = own_options(
            chosen.class_names, chosen.image_size, chosen.channels, chosen.max_bad
        )
    path = Path(order.data)
    yield from judge_folder(path, inspect_folder(path, options), has_list=config is not None)


def _judge_config(config: Any, order: DryRunTask) -> Iterator[Finding]:
    from common.data import OWN

    name = config.data.name
    if name == OWN and not order.data:
        sentence = "the federation trains on pictures of the clients' own"
        yield Finding("config", "problem", sentence, "give the folder of yours: --data DIR")
    elif name != OWN and not order.part:
        sentence = f"the federation deals the data set {name} to its clients"
        yield Finding("config", "problem", sentence, "ask the operator for your --partition K/N")
    else:
        what = f"classes {', '.join(config.data.class_names)}" if name == OWN else name
        yield Finding("config", "ok", f"{order.config}: model {config.model}, {what}")


def judge_folder(path: Path, report: Any, *, has_list: bool) -> Iterator[Finding]:
    """Say what a folder holds.

    Args:
        path: the folder.
        report: a common.data.FolderReport.
        has_list: whether the federation's class list was known.
    """
    from common.data.image_folder.scan import printable_name

    for problem in report.problems:
        yield Finding("data", "problem", problem, MEND)
    parts = [
        f"{part}: {', '.join(f'{printable_name(name)} {count}' for name, count in counts.items())}"
        for part, counts in report.counts.items()
        if any(counts.values())
    ]
    size = "x".join(map(str, report.shape[1:]))
    sentence = f"{report.usable} of {report.files} files in {path} are used, as {size} pixels; "
    missing = [name for name, count in report.counts["train"].items() if not count]
    verdict: Verdict = "note" if missing or not has_list else "ok"
    remedy = (
        ""
        if has_list
        else (
            "the class list is checked when a run begins; to check it now: --config federation.toml"
        )
    )
    if missing:
        remedy = remedy or f"no picture to train on of: {', '.join(map(printable_name, missing))}"
    yield Finding("data", verdict, sentence + "; ".join(parts), remedy)
    if report.left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.left_out.items())
        yield Finding("data", "note", f"not used: {kinds}", "move them if they are to be used")
    if report.skipped and not any(report.skipped[0][0] in each for each in report.problems):
        lines = [f"{printable_name(name)}: {reason}" for name, reason in report.skipped[:LISTED]]
        more = len(report.skipped) - len(lines)
        lines += [f"and {more} more"] if more else []
        sentence = "\n  ".join([f"{len(report.skipped)} files cannot be used:", *lines])
        yield Finding(
            "data", "note", sentence, "repair or remove them; they are left out meanwhile"
        )


def try_step(order: DryRunTask) -> Iterator[Finding]:
    """Look at the GPU, then train on a real batch as a round would."""
    from deploy.preflight.hardware import check_gpu

    for finding in check_gpu():  # whether the client can do without it, the step itself tells
        is_problem = finding.verdict == "problem"
        yield replace(finding, verdict="note") if is_problem else finding
    if not order.config and not order.data:
        sentence = "not tried: the data set is named in the federation's config"
        yield Finding("training step", "note", sentence, "give --config federation.toml")
        return
    yield _step(order)


def _step(order: DryRunTask) -> Finding:
    from client_app.client_data import load_client_data
    from client_app.trainer import train
    from client_app.watchdog import seconds_since_start
    from common.config import RunConfig
    from common.methods import LocalRule
    from deploy.config_input import run_config

    start = seconds_since_start()
    config = run_config(Path(order.config), [], {}) if order.config else _config_of(order.data)
    client = load_client_data(config.to_flat(), order.node_config, client_id="dry step")
    plan = replace(client.config.train, epochs=1)
    batch = client.split.train[: plan.batch_size]
    assert isinstance(client.config, RunConfig)
    seconds = []
    for number in range(2):  # the first one warms up
        begin = time.perf_counter()
        train(
            client.flat, client.data, batch, plan, LocalRule(), lr=plan.lr, seed=0, path=(number,)
        )
        seconds.append(time.perf_counter() - begin)
    sentence = (
        f"a step of {client.config.model} on {len(batch)} pictures takes {seconds[1]:.3f} s "
        f"(the first {seconds[0]:.1f} s, start and imports {start:.1f} s); it "
        f"{client.device.description}"
    )
    return Finding("training step", "ok", sentence)


def _config_of(data: str) -> Any:
    """The config that a folder by itself suggests: its own classes, the cnn."""
    from common.config import RunConfig, parse
    from common.data import OWN, load_folder

    found = load_folder(Path(data))
    classes = [*found.classes, "another"] if len(found.classes) == 1 else found.classes
    flat = RunConfig().to_flat() | {"data.name": OWN, "model": "cnn"}
    flat |= {"data.classes": ",".join(classes), "data.channels": found.shape[0]}
    return parse(flat | {"data.image-size": max(found.shape[1:])})


TRIES: Mapping[str, Callable[[DryRunTask], Iterator[Finding]]] = {
    "data": try_data,
    "step": try_step,
}
TOPICS = {"data": "data", "step": "training step"}


def main(what: str) -> None:
    """Carry out the task on standard input."""
    fields = json.load(sys.stdin)
    task = DryRunTask(**{**fields, "part": tuple(fields["part"])})
    try:
        for finding in TRIES[what](task):
            _write(finding)
    except FedError as error:
        _write(Finding(TOPICS[what], "problem", str(error), MEND))
    except Exception as error:  # of torch, of a driver, of the operating system
        sentence = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        _write(Finding(TOPICS[what], "problem", sentence, "report this, with this output"))


def _write(finding: Finding) -> None:
    sys.stdout.write(json.dumps(asdict(finding)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
