"""What a study says at first sight: its best numbers, and what a reader must be warned of."""

from collections.abc import Iterator, Mapping

from common.errors import FedError
from common.runs.outcome import read_outcome
from deploy.report import metrics
from deploy.report.html.elements import Html, tag
from deploy.report.run_data import RunData
from deploy.report.run_groups import Family, Study, in_words
from deploy.sweep.plan import QUICK


def tiles(study: Study) -> Html:
    """Return the best of each of the numbers that matter, and how far it is from the reference."""
    families = metrics.leaders(study)
    if not families:
        return Html()
    found = [*_ends(study, families), *_soonest(study)]
    if len(families) == 1:
        found += _lowest(families[0])
    return tag("div", *(_tile(*each) for each in found), class_="tiles")


def _tile(title: str, number: str, whose: str, more: str) -> Html:
    return tag(
        "div",
        tag("p", title),
        tag("p", number, class_="number"),
        tag("p", tag("b", whose), f" {more}" if whose and more else more),
        class_="tile",
    )


KINDS: Mapping[str, tuple[metrics.OfFairness, int]] = {  # whether more is better, or less
    "mean accuracy": (metrics.mean, 1),
    "worst 10 % of clients": (metrics.worst10, 1),
    "spread over the clients": (metrics.spread, -1),
}


def _ends(study: Study, families: list[Family]) -> Iterator[tuple[str, str, str, str]]:
    base = metrics.reference(study)
    for title, (get, sign) in KINDS.items():
        ends = {id(family): metrics.final(family, get) for family in families}
        known = [(sign * end.mean, place) for place, end in enumerate(ends.values()) if end]
        leader = families[max(known, key=lambda pair: (pair[0], -pair[1]))[1]]
        value, level = ends[id(leader)], ends.get(id(base))
        if value is None:
            continue
        more = ""
        if base and level and leader is not base:
            more = f"{100 * (value.mean - level.mean):+.1f} points to {metrics.name_of(base)}"
        whose = metrics.name_of(leader) if len(families) > 1 else ""
        yield title, f"{100 * value.mean:.1f} %", whose, more


def _soonest(study: Study) -> Iterator[tuple[str, str, str, str]]:
    base = metrics.reference(study)
    shown = [id(family) for family in metrics.leaders(study) if family is not base]
    rows = [(f, value) for f, value in metrics.reached(study) if value.round and id(f) in shown]
    if base and rows:
        value = min((value for _, value in rows), key=lambda value: value.round or 0)
        soonest = [metrics.name_of(family) for family, v in rows if v.round == value.round]
        where = f"where {metrics.name_of(base)} ends"
        title = f"soonest {where if study.target is None else f'at {100 * study.target:g} %'}"
        more = f"of {value.total}: {value.how_soon} as fast"
        yield title, f"round {value.round}", " and ".join(soonest), more


def _lowest(family: Family) -> Iterator[tuple[str, str, str, str]]:
    for evaluation in list(metrics.evaluations(family).values())[:1]:
        shares = evaluation.accuracies
        client = min(shares, key=lambda name: (shares[name], name))
        more = f"{evaluation.clients[client].examples} test samples"
        yield "lowest client", f"{100 * shares[client]:.1f} %", client, more


def state(study: Study) -> str:
    """Say how far the study is."""
    runs = [run for family in study.families if not family.personal for run in family.runs]
    seeds = {run.seed for run in runs if run.seed is not None}
    whole = in_words(runs[0].config) if runs else ""
    parts = [
        whole if whole != study.title else "",
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}",
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}" if seeds else "",
    ]
    going = [run for run in runs if run.rounds < run.config.get("rounds", 0)]
    if going:
        least = min(going, key=lambda run: run.rounds)
        parts.append(
            f"{len(going)} not at the end (the last at round {least.rounds} of "
            f"{least.config['rounds']})"
        )
    return ", ".join(part for part in parts if part)


def warnings(study: Study) -> list[str]:
    """Say what makes the numbers less than they look."""
    said = []
    families = metrics.evaluated(study)
    if any(run.path and run.path.parent.name.endswith(f"-{QUICK}") for run in study.runs):
        said.append(
            "Runs of a quick sweep: they show that everything works, and say nothing about what is "
            "published."
        )
    if not any(run.curve for run in study.runs):
        said.append("Nothing has been evaluated yet.")
    for family in study.families:
        if not family.personal:
            said += [f"{metrics.name_of(family)}: {text}" for text in _of_family(family)]
    ends = {metrics.last_round(family) for family in families if not family.personal}
    if len(ends) > 1:
        told = ", ".join(map(str, sorted(end for end in ends if end)))
        said.append(f"The methods are compared after different rounds: {told}.")
    seeds = {tuple(family.by_seed) for family in families if not family.personal}
    if len(families) > 1 and len(seeds) > 1:
        said.append("The methods were not all run with the same seeds.")
    elif families and all(len(each) == 1 for each in seeds):
        said.append("One seed: how much another would change is not known.")
    return said


def _of_family(family: Family) -> Iterator[str]:
    if family.by_seed and metrics.last_round(family) is None:
        yield "its seeds were evaluated at no round that all of them have: it is not compared"
    for run in family.runs:
        which = f"seed {run.seed} " if len(family.runs) > 1 else ""
        yield from (which + text for text in _of_run(run))


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
        shown = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        who = f"{len(names)} clients have" if len(names) > 1 else "1 client has"
        yield f"{who} no result ({shown}: {last[1].absent[names[0]]})"
    if not last and run.rounds:
        yield "nothing has been evaluated yet"
