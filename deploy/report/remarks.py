"""What the diagnostics of a study say in words, and what to be careful about in them."""

from deploy.report.figures.style import told_apart
from deploy.report.html import Html, join, table, tag
from deploy.report.inside import at, conformal_of, diagnosed, last_diagnosed, over_rounds, table_in
from deploy.report.numbers import name_of, reference
from deploy.report.studies import Family, Study


def of_rounds(study: Study) -> Html:
    """Return what the diagnosed rounds say: drift against the reference, the theorem's premises."""
    base = reference(study)
    families = [each.family for each in told_apart(study) if not each.family.personal]
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
    less = [name for name in shared if ours[name] < theirs[name]]
    more = [name for name in shared if ours[name] > theirs[name]]
    told = [
        ", ".join(f"{name} ({theirs[name]:.2f} to {ours[name]:.2f})" for name in names) or "-"
        for names in (less, more)
    ]
    return told[0], told[1]


def _layers(family: Family) -> dict[str, float]:
    """The mean over rounds and seeds of each layer's drift diversity, where it is finite."""
    found = last_diagnosed(family, "drift")
    names = [name for each in found for name in table_in(each, "drift", "layers")]
    means = {}
    for name in dict.fromkeys(names):
        points = over_rounds(family, "drift", "layers", name)
        if points:
            means[name] = sum(value.mean for _, value in points) / len(points)
    return means


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
    """Return what must be known of the prediction sets."""
    said = []
    for each in told_apart(study):
        sets = conformal_of(each.family)
        said += [tag("li", f"{each.name}: {text}") for text in sets.warnings] if sets else []
    return tag("ul", *said, class_="warnings") if said else Html()
