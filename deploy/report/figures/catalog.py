"""All kinds of figures, in the order in which a page shows them."""

from dataclasses import dataclass
from functools import partial

from common.conformal.prediction_sets import SCORES
from deploy.report.figures.accuracy_curves import accuracy, worst
from deploy.report.figures.client_accuracy import against_spread, against_worst, distribution
from deploy.report.figures.coverage import coverage, coverage_of_clients
from deploy.report.figures.data_and_traffic import partition, traffic
from deploy.report.figures.layers import (
    drift_by_layer,
    drift_over_rounds,
    matrices,
    similarity,
)
from deploy.report.figures.reference_comparison import difference, target
from deploy.report.figures.setting_effects import ablations, values
from deploy.report.figures.step_effects import cosines, memory
from deploy.report.figures.style import Draw


@dataclass(frozen=True)
class FigureSpec:
    """One kind of figure.

    Attributes:
        group: the heading under which a page shows it.
        name: of its files.
        title: what it is.
        caption: what to see, and by which definition.
        draw: returns the figure, None when the study has nothing to show in it.
    """

    group: str
    name: str
    title: str
    caption: str
    draw: Draw


RESULTS, SETTINGS = "How well, and for whom", "What the settings do"
ROUNDS, SETS, DATA = "Inside the rounds", "Prediction sets", "Data and traffic"

FIGURES = (
    FigureSpec(
        RESULTS,
        "accuracy",
        "Accuracy over the rounds",
        "Mean over the clients, with the range over seeds. A ring marks where a method first has "
        "the accuracy with which the reference ends (dotted).",
        accuracy,
    ),
    FigureSpec(
        RESULTS,
        "worst",
        "The worst-served clients over the rounds",
        "The mean of the ⌈N/10⌉ least accurate clients of each evaluation, with the range over "
        "seeds.",
        worst,
    ),
    FigureSpec(
        RESULTS,
        "clients",
        "How evenly the clients are served",
        "Each step is a client of the last evaluation, from worst to best: a flat line serves all "
        "alike, and its left end is what the worst-served get. Over seeds, the mean of each rank.",
        distribution,
    ),
    FigureSpec(
        RESULTS,
        "spread",
        "Accuracy against spread",
        "Up is more accurate, left is more even. Large: mean over seeds; small: each seed. Spread "
        "is the standard deviation of the clients' accuracies.",
        against_spread,
    ),
    FigureSpec(
        RESULTS,
        "tenth",
        "Accuracy against the worst tenth",
        "Up and to the right is better for everybody. Large: mean over seeds; small: each seed.",
        against_worst,
    ),
    FigureSpec(
        RESULTS,
        "target",
        "Rounds to target",
        "The first evaluated round at which the mean curve has the accuracy named above the bars, "
        "and how many times sooner than the reference that is.",
        target,
    ),
    FigureSpec(
        RESULTS,
        "difference",
        "Difference to the reference",
        "On the same clients with the same seeds; lines are 95 % intervals of a paired bootstrap. "
        "Filled: the interval leaves out 0.",
        difference,
    ),
    FigureSpec(
        SETTINGS,
        "ablations",
        "One part switched off",
        "The method as a whole, then without one of its parts each; thin lines are the range over "
        "seeds. What a part is worth is the length that is missing.",
        ablations,
    ),
    FigureSpec(
        SETTINGS,
        "values",
        "What a setting does",
        "The end of runs that differ in this setting alone; pale bars are the range over seeds, "
        "dotted lines the reference.",
        values,
    ),
    FigureSpec(
        SETTINGS,
        "values-2",
        "What another setting does",
        "As beside it, for the setting with the next most values.",
        partial(values, rank=1),
    ),
    FigureSpec(
        SETTINGS,
        "values-3",
        "What a third setting does",
        "As beside it, for the setting with the next most values.",
        partial(values, rank=2),
    ),
    FigureSpec(
        ROUNDS,
        "drift-layers",
        "Drift diversity, layer by layer",
        "ξ = Σ‖Δ‖² / ‖ΣΔ‖² of the updates Δ of a round's m clients, mean over the diagnosed "
        "rounds: further left, they agree more. Like updates give 1/m, orthogonal ones 1 (Li et "
        "al., CVPR 2023).",
        drift_by_layer,
    ),
    FigureSpec(
        ROUNDS,
        "drift-rounds",
        "Drift diversity over the rounds",
        "ξ of all weights together in the diagnosed rounds, with the range over seeds; above 1 "
        "(dotted) the updates work against each other.",
        drift_over_rounds,
    ),
    FigureSpec(
        ROUNDS,
        "cka",
        "How alike the clients' layers are",
        "Linear CKA of the layers' outputs on the same test samples after local training, mean "
        "over pairs of clients and diagnosed rounds; 1: alike but for rotation and scale "
        "(Kornblith et al., ICML 2019).",
        similarity,
    ),
    FigureSpec(
        ROUNDS,
        "cka-clients",
        "The last layer, client by client",
        "Linear CKA of each pair of clients in the last layer, in the last diagnosed round of the "
        "first seed: a pale row is a client that goes its own way.",
        matrices,
    ),
    FigureSpec(
        ROUNDS,
        "memory",
        "Whom the method remembers",
        "Clients whose last update counts in a round, and how many of them hold the step back "
        "(active constraints). Dashed, in diagnosed rounds: how many different clients so many "
        "draws hold on average.",
        memory,
    ),
    FigureSpec(
        ROUNDS,
        "cosines",
        "Whom the step serves",
        "A dot is a client of a diagnosed round: the cosine of the server's step with its update. "
        "Below 0 the step undoes what the client has learnt.",
        cosines,
    ),
    *(
        FigureSpec(
            SETS,
            f"sets-{score}",
            f"Coverage and size of the sets: {score}",
            "How many labels a set needs to hold the true one as often as wanted: up and to the "
            "left is better. The diamond is the model's first choice alone, at one label. Means "
            "over the seeds; pale: their range at the promised level.",
            partial(coverage, score=score),
        )
        for score in SCORES
    ),
    FigureSpec(
        SETS,
        "sets-clients",
        "For whom the promise is kept",
        "Coverage of each client at the chosen level: the promise holds for all together, not for "
        "each client; clients with few test samples scatter. Over seeds, the "
        "mean of each rank.",
        coverage_of_clients,
    ),
    FigureSpec(
        DATA,
        "partition",
        "Who holds which classes",
        "The share of each class in a client's training samples: the darker, the more; of the "
        "first seed.",
        partition,
    ),
    FigureSpec(
        DATA,
        "traffic",
        "Accuracy against traffic",
        "Megabytes (10⁶ bytes) to and from a client in a round: up and to the left is better.",
        traffic,
    ),
)
BRIEF = tuple(each for each in FIGURES if each.name in ("accuracy", "clients"))
