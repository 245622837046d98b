"""What the diagnostics of a study say in words, and what to be careful about in them."""

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
from deploy.report.html.elements import Html, join, table, tag
from deploy.report.metrics import name_of, reference
from deploy.report.run_groups import Family, Study
from deploy.report.set_coverage import SetCoverage, chosen, conformal_by_seed, first_choice


def of_rounds(study: Study) -> Html:
    """Return what the diagnosed rounds say: drift against the reference, the theorem's premises."""
    base = reference(study)
    families = [each.family for each in coloured_series(study) if not each.family.personal]
    rows = []
    for family in families:
        less, more = _drift(family, base) if base and family is not base else ("-", "-")
        verdict = _theorem(family)
        if (less, more, verdict) != ("-", "-", "-"):
            rows.append([name_of(family), less, more, verdict])
    return table(
        ["", f"less drift than {name_of(base)} in" if base else "less drift in", "more in",
         "FedPCD's descent theorem"],
        rows,
        "Drift diversity on average over the diagnosed rounds, the reference's first. The theorem "
        "needs all clients, whole batches, no history, and steps that agree with all gradients.",
        kind="words",
    )  # fmt: skip


def _drift(family: Family, base: Family) -> tuple[str, str]:
    """The layers whose drift is lower and higher than the reference's, over all rounds."""
    ours, theirs = _layers(family), _layers(base)
    shared = [name for name in ours if name in theirs]
    distinct = [name for name in shared if f"{ours[name]:.2f}" != f"{theirs[name]:.2f}"]
    less = [name for name in distinct if ours[name] < theirs[name]]
    more = [name for name in distinct if ours[name] > theirs[name]]
    told = [
        ", ".join(f"{name} ({theirs[name]:.2f} to {ours[name]:.2f})" for name in names) or "-"
        for names in (less, more)
    ]
    return told[0], told[1]


def _layers(family: Family) -> dict[str, float]:
    """The mean over rounds and seeds of each layer's drift diversity, where it is finite."""
    found = last_diagnosed(family, "drift")
    names = [name for each in found for name in table_in(each, "drift", "layers")]
    means = {n: mean_over_rounds(family, "drift", "layers", n) for n in dict.fromkeys(names)}
    return {name: value.mean for name, value in means.items() if value}


def _theorem(family: Family) -> str | Html:
    """Say in how many diagnosed rounds the premises of FedPCD's descent theorem held."""
    rounds = [each["theorem"] for run in family.runs for _, each in diagnosed(run, "theorem")]
    found = [each for each in rounds if isinstance(each.get("applies"), bool)]
    if not found:
        return "-"
    held = sum(one["applies"] for one in found)
    text = f"applies in {held} of {len(found)} rounds"
    reasons = at(found[-1], "why_not")
    told = isinstance(reasons, list) and not found[-1]["applies"]
    why = "; ".join(map(str, reasons)) if told else ""
    return join([text, tag("small", f"at last: {why}") if why else ""])


def of_sets(study: Study) -> Html:
    """Return what the sets cover and how large they are, and what must be known of them."""
    said: list[Html] = []
    rows = []
    levels = set()
    for each in coloured_series(study):
        found = list(conformal_by_seed(each.family).values())
        warned = dict.fromkeys(text for sets in found for text in sets.warnings)
        said += [tag("li", f"{each.name}: {text}") for text in warned]
        at_level = [chosen(found, score) for score in SCORES]
        if any(at_level):
            alone = first_choice(found)
            rows.append([each.name, _share(alone), *(_set(one) for one in at_level), len(found)])
            levels |= {one.miscoverage for one in at_level if one}
    promised = ", ".join(f"{100 * (1 - level):g} %" for level in sorted(levels))
    return join(
        [
            tag("ul", *said, class_="warnings") if said else "",
            table(
                ["method", "first choice alone", *(s.upper() for s in SCORES), "seeds"],
                rows,
                f"Sets for a promise of {promised}: how often they hold the true label of a test "
                "sample, and labels in a set; the range over the seeds below.",
            ),
        ]
    )


def _share(value: SeedSummary | None) -> Html | str:
    return f"{100 * value.mean:.1f} %" if value else "-"


def _set(one: SetCoverage | None) -> Html | str:
    if one is None:
        return "-"
    text = f"{100 * one.coverage.mean:.1f} %, {one.size.mean:.2f} labels"
    if one.coverage.seeds < 2:
        return text
    low, high = 100 * one.coverage.low, 100 * one.coverage.high
    ends = f"{low:.1f} to {high:.1f}, {one.size.low:.2f} to {one.size.high:.2f}"
    return join([text, tag("small", ends)])
