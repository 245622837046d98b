"""All figures of a report, in the order of the page."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

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
from deploy.report.run_groups import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureSpec:
    """The texts and the drawing function of a figure.

    Attributes:
        group: the heading above it in the page.
        name: of its files.
        title: above the figure.
        caption: definition, and how to read it.
        draw: returns the figure, None if the study has nothing to show.
    """

    group: str
    name: str
    title: str
    caption: str
    draw: "Callable[[Study], Figure | None]"


RESULTS, SETTINGS = "Accuracy and fairness", "Effect of settings"
ROUNDS, SETS, DATA = "Diagnostics of the rounds", "Prediction sets", "Data and traffic"

FIGURES = (
    FigureSpec(
        RESULTS,
        "accuracy",
        "Accuracy over the rounds",
        "Mean accuracy over the clients. The band is the range over seeds. A ring marks where a "
        "method first reaches the dotted line: the target, or the final accuracy of the reference.",
        accuracy,
    ),
    FigureSpec(
        RESULTS,
        "worst",
        "Worst 10 % of clients over the rounds",
        "Mean accuracy of the ⌈N/10⌉ clients with the lowest accuracy in each evaluation. The band "
        "is the range over seeds.",
        worst,
    ),
    FigureSpec(
        RESULTS,
        "clients",
        "Accuracy of each client",
        "One step per client of the last evaluation, from lowest to highest accuracy. A flat line "
        "means that all clients have the same accuracy. With several seeds: the mean of each rank.",
        distribution,
    ),
    FigureSpec(
        RESULTS,
        "spread",
        "Mean accuracy against spread",
        "Up is more accurate, left is more even. Large marker: mean over seeds. Small markers: "
        "single seeds. Spread is the standard deviation of the clients' accuracies.",
        against_spread,
    ),
    FigureSpec(
        RESULTS,
        "tenth",
        "Mean accuracy against the worst 10 %",
        "Up and to the right is better. Large marker: mean over seeds. Small markers: single "
        "seeds.",
        against_worst,
    ),
    FigureSpec(
        RESULTS,
        "target",
        "Rounds to target",
        "First evaluated round in which the mean curve reaches the accuracy named above the bars. "
        "In brackets: the speed-up over the reference.",
        target,
    ),
    FigureSpec(
        RESULTS,
        "difference",
        "Difference to the reference",
        "On the same clients with the same seeds. Lines are 95 % intervals of a paired bootstrap. "
        "A filled marker means that the interval excludes 0.",
        difference,
    ),
    FigureSpec(
        SETTINGS,
        "ablations",
        "Ablation: one part switched off",
        "The complete method, then the method without one of its parts. Thin lines are the range "
        "over seeds. The lost length is the contribution of the part.",
        ablations,
    ),
    FigureSpec(
        SETTINGS,
        "values",
        "Effect of one setting",
        "Final accuracy of runs that differ only in this setting. Pale bars are the range over "
        "seeds. Dotted lines are the reference.",
        values,
    ),
    FigureSpec(
        SETTINGS,
        "values-2",
        "Effect of a second setting",
        "Like the figure before, for the setting with the second most values.",
        partial(values, rank=1),
    ),
    FigureSpec(
        SETTINGS,
        "values-3",
        "Effect of a third setting",
        "Like the two figures before, for the setting with the third most values.",
        partial(values, rank=2),
    ),
    FigureSpec(
        ROUNDS,
        "drift-layers",
        "Drift diversity by layer",
        "ξ = Σ‖Δ‖² / ‖ΣΔ‖² of the updates Δ of a round's m clients, mean over the diagnosed "
        "rounds. Lower means more agreement: 1/m for equal updates, 1 for orthogonal ones (Li et "
        "al., CVPR 2023).",
        drift_by_layer,
    ),
    FigureSpec(
        ROUNDS,
        "drift-rounds",
        "Drift diversity over the rounds",
        "ξ of all weights together in the diagnosed rounds. The band is the range over seeds. "
        "Above 1 (dotted line), the updates work against each other.",
        drift_over_rounds,
    ),
    FigureSpec(
        ROUNDS,
        "cka",
        "Similarity of the clients by layer",
        "Linear CKA of layer outputs on the same test samples after local training. Mean over "
        "pairs of clients and diagnosed rounds. 1: equal up to rotation and scale (Kornblith et "
        "al., ICML 2019).",
        similarity,
    ),
    FigureSpec(
        ROUNDS,
        "cka-clients",
        "Similarity of each pair of clients in the last layer",
        "Linear CKA of each pair of clients in the last layer, in the last diagnosed round of the "
        "first seed. A pale row is a client that differs from the others.",
        matrices,
    ),
    FigureSpec(
        ROUNDS,
        "memory",
        "Clients in FedPCD's history",
        "Clients whose last update counts in a round, and the number of active constraints among "
        "them. Dashed, in diagnosed rounds: the expected number of different clients for as many "
        "draws.",
        memory,
    ),
    FigureSpec(
        ROUNDS,
        "cosines",
        "Cosine of the step with each update",
        "A dot is a client of a diagnosed round: the cosine of the server's step with its update. "
        "Below 0, the step goes against the update of the client.",
        cosines,
    ),
    *(
        FigureSpec(
            SETS,
            f"sets-{score}",
            f"Coverage and size of the prediction sets: {score}",
            "Coverage against labels in a set. Up and to the left is better. The diamond is the "
            "top-1 accuracy of the model, at one label. Means over the seeds. Pale: the range over "
            "seeds at the promised level.",
            partial(coverage, score=score),
        )
        for score in SCORES
    ),
    FigureSpec(
        SETS,
        "sets-clients",
        "Coverage of each client",
        "Coverage at the chosen level. The promise holds for all clients together, not for each "
        "client. Clients with few test samples scatter. With several seeds: the mean of each rank.",
        coverage_of_clients,
    ),
    FigureSpec(
        DATA,
        "partition",
        "Classes of each client",
        "Share of each class in the training samples of a client, for the first seed. A "
        "stronger colour is a larger share.",
        partition,
    ),
    FigureSpec(
        DATA,
        "traffic",
        "Accuracy against traffic",
        "Megabytes (10⁶ bytes) to and from a client in a round. Up and to the left is better.",
        traffic,
    ),
)
BRIEF = tuple(each for each in FIGURES if each.name in ("accuracy", "clients"))
