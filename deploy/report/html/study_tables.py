"""The tables of a study in the page: numbers over seeds, differences, who is served badly."""

from collections.abc import Sequence

from common.fairness import worst_count
from common.runs.client_scores import ClientScore
from common.statistics import LEVEL, PairedDifference, SeedSummary
from deploy.report import metrics
from deploy.report.columns import FAMILY_COLUMNS, PERCENT, SECONDS, Column
from deploy.report.figures.style import Series, coloured_series, series_of
from deploy.report.html.elements import Html, html, join, table, tag
from deploy.report.run_data import RunData
from deploy.report.run_groups import Study

FEWEST, MOST_CLIENTS, MOST_LOSSES = 5, 12, 30  # rows


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def label_of(series: Series) -> Html:
    """Return a family's name behind its colour in the figures."""
    return join([tag("i", class_=f"swatch swatch-{series.style.place}"), series.name])


def summary(study: Study) -> Html:
    """Return mean and range over seeds of each family at its end, the best in bold."""
    series = series_of(study)
    series.sort(key=lambda each: study.families.index(each.family))
    columns = [[column.of_family(each.family) for each in series] for column in FAMILY_COLUMNS]
    cells = [_cells(*pair) for pair in zip(FAMILY_COLUMNS, columns, strict=True)]
    rows = [
        [label_of(each), metrics.last_round(each.family), *values]
        for each, *values in zip(series, *cells, strict=True)
    ]
    return table(
        ["method", "after round", *(column.title for column in FAMILY_COLUMNS)],
        rows,
        "Mean over the seeds, the range of the seeds below it; the best of a column is bold. Mean "
        "over the rounds: the height of the curve of accuracy on average. MB: down and up.",
    )


def _cells(column: Column, values: Sequence[SeedSummary | None]) -> list[Html]:
    known = [value.mean for value in values if value]
    texts = [_text(column, value.mean) if value else "-" for value in values]
    compared = column is not SECONDS and len(set(texts)) > 1  # other load changes the seconds
    best = _text(column, column.best(known)) if compared else ""
    return [
        join([tag("b", text) if text == best else text, _range(column, value)])
        for text, value in zip(texts, values, strict=True)
    ]


def _text(column: Column, value: float) -> str:
    return column.text(value, 1 if column.unit == PERCENT else None)


def _range(column: Column, value: SeedSummary | None) -> Html:
    if value is None or value.seeds < 2:
        return Html()
    ends = [_text(column, end).removesuffix(" %") for end in (value.low, value.high)]
    return tag("small", " to ".join(dict.fromkeys(ends)))


def differences(study: Study) -> Html:
    """Return how much better each family is than the reference, with its interval."""
    base = metrics.reference(study)
    found = {name: metrics.differences(study, name) for name in ("mean", "worst10")}
    if base is None or not found["mean"]:
        return Html()
    worst = {id(family): value for family, value in found["worst10"]}
    rows = [
        [metrics.name_of(family), _points(value), _points(worst[id(family)]), value.seeds]
        for family, value in found["mean"]
    ]
    return table(
        [f"against {metrics.name_of(base)}", "mean accuracy", "worst 10 %", "seeds of both"],
        rows,
        f"Percentage points on the same clients with the same seeds, and their "
        f"{100 * LEVEL:.0f} % interval by a paired bootstrap over seeds and clients; bold where it "
        "leaves out 0 and has a width. With one seed it says nothing about other seeds.",
    )


def _points(value: PairedDifference) -> Html:
    text = f"{100 * value.value:+.1f}"
    ends = f"{100 * value.low:+.1f} to {100 * value.high:+.1f}"
    return join([tag("b", text) if value.is_clear else text, tag("small", ends)])


def targets(study: Study) -> Html:
    """Return when each family first reaches the target, or the reference's final accuracy."""
    found = metrics.reached(study)
    if len(found) < 2:
        return Html()
    rows = [
        [
            metrics.name_of(family),
            value.round or "not reached",
            "-" if value.share is None else f"{100 * value.share:.0f} %",
            value.how_soon or "-",
        ]
        for family, value in found
    ]
    return table(
        ["method", "round", f"of {found[0][1].total} rounds", "speed-up"],
        rows,
        "The first evaluated round at which the mean over the seeds has "
        f"{metrics.goal(study)}; the speed-up is against the rounds of the reference.",
    )


def worst_served(study: Study) -> Html:
    """Return for each family that has a colour the clients it serves worst, by name."""
    cards = []
    series_shown = coloured_series(study)
    fewest = FEWEST if len(series_shown) > 1 else MOST_CLIENTS
    for series in series_shown:
        found = metrics.evaluations(series.family)
        seed, evaluation = next(iter(found.items()))
        count = min(max(worst_count(len(evaluation.clients)), fewest), MOST_CLIENTS)
        lowest = sorted(evaluation.clients.items(), key=lambda item: (item[1].accuracy, item[0]))
        bars = [_bar(client, score) for client, score in lowest[:count]]
        told = f" (seed {seed})" if len(found) > 1 else ""
        head = tag("h4", label_of(series), told)
        cards.append(
            tag("div", head, tag("ol", *bars, class_=f"swatch-{series.style.place}"), class_="card")
        )
    title = tag("h3", "Clients that are served worst")
    note = tag(
        "p",
        "Accuracy at the end, and of how many test samples: of few, chance decides.",
        class_="note",
    )
    return join([title, tag("div", *cards, class_="cards"), note]) if cards else Html()


def _bar(client: str, score: ClientScore) -> Html:
    share = score.accuracy
    bar = tag("span", tag("i", style=f"width:{100 * share:.1f}%"), class_="bar", aria_hidden="true")
    number = tag("span", tag("b", _percent(share)), f" of {score.examples}", class_="number")
    return tag("li", tag("span", client, class_="client", title=client), bar, number)


def losses(study: Study) -> Html:
    """Return whose replies were not used, how often and why at last, and the void rounds."""
    rows: list[tuple[int, list[object]]] = []
    for family in study.families:
        for run in family.runs if not family.personal else ():
            rows += _lost(metrics.name_of(family), run)
    rows.sort(key=lambda row: -row[0])
    note = f"{len(rows) - MOST_LOSSES} more are not shown." if len(rows) > MOST_LOSSES else ""
    return table(
        ["client", "method", "seed", "how often", "last round", "last reason"],
        [row for _, row in rows[:MOST_LOSSES]],
        note,
        kind="reasons",
    )


def _lost(name: str, run: RunData) -> list[tuple[int, list[object]]]:
    seen: dict[object, list[tuple[int, str]]] = {}
    for record in run.records:
        if record.void:
            seen.setdefault(tag("em", "void round"), []).append((record.round, record.void))
        for client, why in record.dropped.items():
            seen.setdefault(client, []).append((record.round, why))
    seed = "-" if run.seed is None else run.seed
    return [
        (len(times), [client, name, seed, len(times), times[-1][0], times[-1][1]])
        for client, times in seen.items()
    ]


def settings(study: Study) -> Html:
    """Return the exact settings: what all families share, and what each has of its own."""
    shared = [family for family in study.families if not family.personal]
    first = shared[0].settings if shared else {}
    same = {k: v for k, v in first.items() if all(f.settings.get(k) == v for f in shared)}
    parts = [_listed("shared by all", {**study.task, **same})]
    for family in shared:
        own = {k: v for k, v in family.settings.items() if k not in same}
        seeds = [run.seed for run in family.runs if run.seed is not None]
        told = {"seeds": ", ".join(map(str, seeds)), **own} if seeds else own
        parts.append(_listed(metrics.name_of(family), told))
    return tag("details", tag("summary", "Exact settings"), tag("div", *parts, class_="cards"))


def _listed(title: str, values: dict[str, object]) -> Html:
    lines = [join([tag("dt", key), tag("dd", _said(value))]) for key, value in values.items()]
    return tag("div", tag("h4", title), tag("dl", *lines), class_="card") if lines else Html()


def _said(value: object) -> Html:
    if isinstance(value, bool):
        return html(str(value).lower())
    return html(value if value != "" else "-")
