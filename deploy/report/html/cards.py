"""The cards of a study in the page: clients with the lowest accuracy, and exact settings."""

from collections.abc import Mapping
from dataclasses import replace

from common.fairness import worst_count
from common.runs.client_scores import ClientScore
from deploy.report import metrics
from deploy.report.figures.style import Series, coloured_series
from deploy.report.html.parts import (
    ClientBar,
    LowestClients,
    Remark,
    SettingsCard,
    name_cell,
    percent,
)
from deploy.report.run_groups import Study

FEWEST, MOST = 5, 12  # clients on a card


def lowest_clients(study: Study) -> Remark:
    """Return for each family that has a colour its clients with the lowest accuracy."""
    series = coloured_series(study)
    fewest = FEWEST if len(series) > 1 else MOST
    return Remark(cards=[_client_card(each, fewest) for each in series])


def _client_card(series: Series, fewest: int) -> LowestClients:
    evaluations = metrics.evaluations(series.family)
    seed, evaluation = next(iter(evaluations.items()))
    count = min(max(worst_count(len(evaluation.clients)), fewest), MOST)
    lowest = sorted(evaluation.clients.items(), key=lambda item: (item[1].accuracy, item[0]))
    name = name_cell(series)
    if len(evaluations) > 1:
        name = replace(name, text=f"{name.text} (seed {seed})")
    return LowestClients(name, [_bar(client, score) for client, score in lowest[:count]])


def _bar(client: str, score: ClientScore) -> ClientBar:
    accuracy = score.accuracy
    return ClientBar(client, f"{100 * accuracy:.1f}", percent(accuracy), score.examples)


def settings_cards(study: Study) -> list[SettingsCard]:
    """Return the settings that all families share, then the other settings of each family."""
    families = [family for family in study.families if not family.personal]
    first = families[0].settings if families else {}
    same = {k: v for k, v in first.items() if all(f.settings.get(k) == v for f in families)}
    cards = [_settings_card("same for all methods", {**study.task, **same})]
    for family in families:
        own = {key: value for key, value in family.settings.items() if key not in same}
        seeds = [run.seed for run in family.runs if run.seed is not None]
        listed = {"seeds": ", ".join(map(str, seeds)), **own} if seeds else own
        cards.append(_settings_card(metrics.name_of(family), listed))
    return [card for card in cards if card.settings]


def _settings_card(title: str, values: Mapping[str, object]) -> SettingsCard:
    return SettingsCard(title, [(key, _text(value)) for key, value in values.items()])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else "-"
