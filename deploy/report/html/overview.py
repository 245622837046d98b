"""The top of a study in the page: its best numbers, its progress and its warnings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from common.errors import FedError
from common.runs.outcome import read_outcome
from deploy.report import metrics
from deploy.report.columns import MEAN, SPREAD, WORST10, Column
from deploy.report.html.parts import percent
from deploy.report.run_data import QUICK, RunData
from deploy.report.run_groups import Family, Study, in_words

TILES: Mapping[str, Column] = {
    "mean accuracy": MEAN, "worst 10 % of clients": WORST10, "spread over the clients": SPREAD,
}  # fmt: skip
MOST_ABSENT = 5  # clients named in a warning


@dataclass(frozen=True)
class Tile:
    """One of the best numbers: its title, the number, the method, how it compares."""

    title: str
    number: str
    name: str
    comparison: str


def tiles(study: Study) -> list[Tile]:
    """Return the best value of each main metric, with its distance to the reference."""
    families = metrics.leaders(study)
    if not families:
        return []
    found = [*_best_values(study, families), *_fastest(study)]
    return [*found, *_lowest_client(families[0])] if len(families) == 1 else found


def _best_values(study: Study, families: list[Family]) -> Iterator[Tile]:
    base = metrics.reference(study)
    for title, column in TILES.items():
        values = {id(family): column.of_family(family) for family in families}
        known = [value.mean for value in values.values() if value]
        best = column.best(known)
        leader, value = next(
            (family, value)
            for family in families
            if (value := values[id(family)]) and value.mean == best
        )
        level = values.get(id(base))
        comparison = ""
        if base and level and leader is not base:
            points = 100 * (value.mean - level.mean)
            comparison = f"{points:+.1f} points to {metrics.name_of(base)}"
        name = metrics.name_of(leader) if len(families) > 1 else ""
        yield Tile(title, percent(value.mean), name, comparison)


def _fastest(study: Study) -> Iterator[Tile]:
    base = metrics.reference(study)
    shown = [id(family) for family in metrics.leaders(study) if family is not base]
    rows = [
        (family, value)
        for family, value in metrics.reached(study)
        if value.round and id(family) in shown
    ]
    if base and rows:
        value = min((value for _, value in rows), key=lambda value: value.round or 0)
        fastest = [metrics.name_of(family) for family, v in rows if v.round == value.round]
        end = f"the final accuracy of {metrics.name_of(base)}"
        goal = end if study.target is None else f"{100 * study.target:g} %"
        comparison = f"of {value.total} rounds, {value.speedup_text} as fast"
        yield Tile(f"fastest to {goal}", f"round {value.round}", " and ".join(fastest), comparison)


def _lowest_client(family: Family) -> Iterator[Tile]:
    for evaluation in list(metrics.evaluations(family).values())[:1]:
        accuracies = evaluation.accuracies
        client = min(accuracies, key=lambda name: (accuracies[name], name))
        samples = f"{evaluation.clients[client].examples} test samples"
        yield Tile("lowest client", percent(accuracies[client]), client, samples)


def progress(study: Study) -> str:
    """Return the task of a study, its numbers of runs and seeds, and the runs not finished."""
    runs = [run for family in study.families if not family.personal for run in family.runs]
    seeds = {run.seed for run in runs if run.seed is not None}
    task = in_words(runs[0].config) if runs else ""
    parts = [
        task if task != study.title else "",
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}",
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}" if seeds else "",
    ]
    unfinished = [run for run in runs if run.rounds < run.config.get("rounds", 0)]
    if unfinished:
        slowest = min(unfinished, key=lambda run: run.rounds)
        parts.append(
            f"{len(unfinished)} not finished (the slowest is at round {slowest.rounds} of "
            f"{slowest.config['rounds']})"
        )
    return ", ".join(part for part in parts if part)


def warnings(study: Study) -> list[str]:
    """Return everything that limits the meaning of the study's numbers."""
    lines = []
    families = metrics.evaluated(study)
    if any(run.path and run.path.parent.name.endswith(f"-{QUICK}") for run in study.runs):
        lines.append(
            "These runs come from a quick sweep. They only show that everything works. Do not "
            "compare their numbers with published results."
        )
    if not any(run.curve for run in study.runs):
        lines.append("Nothing has been evaluated yet.")
    for family in study.families:
        if not family.personal:
            lines += [f"{metrics.name_of(family)}: {text}" for text in _of_family(family)]
    ends = {metrics.last_round(family) for family in families if not family.personal}
    if len(ends) > 1:
        rounds = ", ".join(map(str, sorted(end for end in ends if end)))
        lines.append(f"The methods are compared after different rounds: {rounds}.")
    seeds = {tuple(family.by_seed) for family in families if not family.personal}
    if len(families) > 1 and len(seeds) > 1:
        lines.append("The methods were not all run with the same seeds.")
    elif families and all(len(each) == 1 for each in seeds):
        lines.append("Only one seed was run, so the variation between seeds is unknown.")
    return lines


def _of_family(family: Family) -> Iterator[str]:
    if family.by_seed and metrics.last_round(family) is None:
        yield "its seeds have no evaluated round in common, so it is not compared"
    for run in family.runs:
        seed = f"seed {run.seed} " if len(family.runs) > 1 else ""
        yield from (seed + text for text in _of_run(run))


def _of_run(run: RunData) -> Iterator[str]:
    try:
        outcome = read_outcome(run.path) if run.path else None
    except FedError:
        outcome = None
    if outcome and outcome.status != "completed":
        yield f"{outcome.status} after round {outcome.rounds}: {outcome.message}"
    last = run.last_evaluation
    if last and last[1].absent:
        names = list(last[1].absent)
        shown = ", ".join(names[:MOST_ABSENT]) + (" ..." if len(names) > MOST_ABSENT else "")
        clients = f"{len(names)} clients have" if len(names) > 1 else "1 client has"
        yield f"{clients} no result ({shown}: {last[1].absent[names[0]]})"
    if not last and run.rounds:
        yield "nothing has been evaluated yet"
