"""Tables of the diagnostics: drift, FedPCD's descent theorem, prediction sets."""

from collections.abc import Sequence

from common.conformal.prediction_sets import SCORES
from common.statistics import SeedSummary
from deploy.report.diagnostic_values import (
    at,
    diagnosed,
    last_diagnosed,
    mean_over_rounds,
    table_in,
)
from deploy.report.figures.style import coloured_series
from deploy.report.html.parts import Cell, Remark, TableData, cells, percent
from deploy.report.metrics import name_of, reference
from deploy.report.run_groups import Family, Study
from deploy.report.set_coverage import SetCoverage, chosen, conformal_by_seed, first_choice

NOTHING = Cell("-")


def drift_and_theorem(study: Study) -> Remark:
    """Return each family's drift against the reference, and how often the theorem applied."""
    base = reference(study)
    rows = []
    for family in [each.family for each in coloured_series(study) if not each.family.personal]:
        lower, higher = NOTHING, NOTHING
        if base and family is not base:
            lower, higher = _compared_drift(family, base)
        theorem = _theorem(family)
        if (lower, higher, theorem) != (NOTHING, NOTHING, NOTHING):
            rows.append(cells(name_of(family), lower, higher, theorem))
    table = TableData(
        ["", f"less drift than {name_of(base)} in" if base else "less drift in", "more drift in",
         "FedPCD's descent theorem"],
        rows,
        "Mean drift diversity over the diagnosed rounds, first of the reference, then of the "
        "method. The theorem needs all clients, full batches, no history, and a step that agrees "
        "with all gradients.",
        look="words",
    )  # fmt: skip
    return Remark(table=table)


def _compared_drift(family: Family, base: Family) -> tuple[Cell, Cell]:
    """Return the layers with less drift than the reference, and those with more."""
    ours, theirs = _drift_by_layer(family), _drift_by_layer(base)
    shared = [name for name in ours if name in theirs]
    distinct = [name for name in shared if f"{ours[name]:.2f}" != f"{theirs[name]:.2f}"]
    less = [name for name in distinct if ours[name] < theirs[name]]
    more = [name for name in distinct if ours[name] > theirs[name]]

    def listed(names: Sequence[str]) -> Cell:
        changes = [f"{name} ({theirs[name]:.2f} to {ours[name]:.2f})" for name in names]
        return Cell(", ".join(changes)) if changes else NOTHING

    return listed(less), listed(more)


def _drift_by_layer(family: Family) -> dict[str, float]:
    """Return the mean over rounds and seeds of each layer's drift diversity, where finite."""
    last = last_diagnosed(family, "drift")
    names = [name for diagnostics in last for name in table_in(diagnostics, "drift", "layers")]
    means = {n: mean_over_rounds(family, "drift", "layers", n) for n in dict.fromkeys(names)}
    return {name: value.mean for name, value in means.items() if value}


def _theorem(family: Family) -> Cell:
    """Return the number of diagnosed rounds in which FedPCD's descent theorem applied."""
    tables = [each["theorem"] for run in family.runs for _, each in diagnosed(run, "theorem")]
    tables = [table for table in tables if isinstance(table.get("applies"), bool)]
    if not tables:
        return NOTHING
    count, last = sum(table["applies"] for table in tables), tables[-1]
    reasons = at(last, "why_not")
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) and not last["applies"] else ""
    text = f"applied in {count} of {len(tables)} rounds"
    return Cell(text, small=f"last round: {why}" if why else "")


def prediction_sets(study: Study) -> Remark:
    """Return coverage and size of the prediction sets, and the warnings about them."""
    warnings: list[str] = []
    rows = []
    levels = set()
    for each in coloured_series(study):
        by_seed = list(conformal_by_seed(each.family).values())
        texts = dict.fromkeys(text for sets in by_seed for text in sets.warnings)
        warnings += [f"{each.name}: {text}" for text in texts]
        at_level = [chosen(by_seed, score) for score in SCORES]
        if any(at_level):
            top1 = _share(first_choice(by_seed))
            sets = [_coverage_and_size(one) for one in at_level]
            rows.append(cells(each.name, top1, *sets, len(by_seed)))
            levels |= {one.miscoverage for one in at_level if one}
    promised = ", ".join(f"{100 * (1 - level):g} %" for level in sorted(levels))
    table = TableData(
        ["method", "top-1 accuracy", *(score.upper() for score in SCORES), "seeds"],
        rows,
        f"Prediction sets with a promised coverage of {promised}: coverage of the test samples, "
        "and mean number of labels in a set. Below it: the range over the seeds.",
    )
    return Remark(warnings=warnings, table=table)


def _share(value: SeedSummary | None) -> str:
    return percent(value.mean) if value else "-"


def _coverage_and_size(sets: SetCoverage | None) -> Cell:
    if sets is None:
        return NOTHING
    text = f"{percent(sets.coverage.mean)}, {sets.size.mean:.2f} labels"
    if sets.coverage.seeds < 2:
        return Cell(text)
    low, high = 100 * sets.coverage.low, 100 * sets.coverage.high
    ends = f"{low:.1f} to {high:.1f}, {sets.size.low:.2f} to {sets.size.high:.2f}"
    return Cell(text, small=ends)
