"""The presets are plans that can be carried out, whole and quick."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.config import RunConfig
from common.data.sources import load
from common.layout import Layout
from common.models import build, layout_of
from deploy.sweep.command import PRESETS, find
from deploy.sweep.plan import read_plan
from deploy.sweep.runs import runs_of

NAMES = sorted(path.stem for path in PRESETS.glob("*.toml"))
SIZES = {
    "fedpcd-ablation": 6 * 5,
    "fedpcd-history": 12 * 5,
    "fedpcd-settings": 18 * 11 * 5,
    "fedpcd-tau": 7 * 2 * 5,
    "fedpvr-conformal": 2 * 5 * 3,
    "fedpvr-drift": 2 * 3,
    "fedpvr-settings": 8 * 5 * 3,
    "fedpvr-start-layer": 12,
    "fedpvr-targets": 8 * 5 * 3,
}


def configs(name: str, *, quick: bool) -> list[RunConfig]:
    return [run.config for run in runs_of(read_plan(find(name)[0], quick=quick))]


def varied(found: list[RunConfig]) -> set[str]:
    """The keys that runs of one method have different values of."""
    keys: set[str] = set()
    for method in {config.method for config in found}:
        flats = [config.to_flat() for config in found if config.method == method]
        keys |= {key for key in flats[0] if len({flat[key] for flat in flats}) > 1}
    return keys - {"seed", "data.name", "rounds", "train.lr", "data.test-fraction"}


def test_there_is_one_for_each_published_experiment() -> None:
    assert {name: len(configs(name, quick=False)) for name in NAMES} == SIZES
    assert [path.stem for path in find("all")] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_quick_version_varies_what_the_whole_one_does(name: str) -> None:
    whole, quick = (configs(name, quick=flag) for flag in (False, True))
    assert len(quick) <= 44
    # its one model stands for all of fedpcd-settings, whose models go with its data sets
    assert varied(whole) - {"model"} == varied(quick) - {"model"}
    assert {config.method for config in quick} <= {config.method for config in whole}


@pytest.mark.parametrize("name", NAMES)
def test_the_quick_version_needs_nothing_that_is_not_at_hand(name: str) -> None:
    for config in configs(name, quick=True):
        assert config.data.name == "digits"
        assert config.model in ("mlp", "resnet8")  # the others need larger pictures
        assert config.train.device == "cpu"
        assert config.rounds <= 20


@pytest.mark.parametrize("name", NAMES)
def test_it_says_where_it_comes_from_and_what_is_ours(name: str) -> None:
    text = find(name)[0].read_text()
    assert read_plan(find(name)[0]).name == name
    assert re.search(r"^# .*(FedPCD|Partial)", text)
    assert "# Published" in text
    assert "# Our fill-in:" in text


@pytest.mark.parametrize(("quick", "number"), [(False, 3 * 2 * 3), (True, 2)])
def test_the_plan_in_the_docs_is_one(quick: bool, number: int, tmp_path: Path) -> None:
    text = (
        (Path(__file__).parents[4] / "docs" / "sweeps.md")
        .read_text()
        .partition("```toml\n")[2]
        .partition("```")[0]
    )
    (tmp_path / "plan.toml").write_text(text)
    assert len(runs_of(read_plan(tmp_path / "plan.toml", quick=quick))) == number


@pytest.mark.parametrize("quick", [False, True])
def test_the_blocks_of_the_start_layer_go_from_nothing_to_everything(quick: bool) -> None:
    shape: Any = load("digits").images.shape[1:] if quick else (3, 32, 32)
    found = configs("fedpvr-start-layer", quick=quick)
    layout: Layout = layout_of(build(found[0].model, shape, 10, seed=1))
    corrected: Callable[..., Any] = lambda config: config.chosen.corrected_block(layout).size  # noqa: E731
    sizes = [corrected(config) for config in found]
    assert sizes[0] == 0
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == layout.size


def test_start_16_is_the_classifier_of_vgg() -> None:
    layout = layout_of(build("vgg11", (3, 32, 32), 10, seed=1))
    blocks = {c.chosen.block: c for c in configs("fedpvr-start-layer", quick=False)}  # type: ignore[attr-defined]
    assert blocks["last:3"].chosen.corrected_block(layout).size == 530_442  # type: ignore[attr-defined]
    names = [tensor.name for tensor in layout.tensors]
    for start in range(0, 22, 2):
        first = layout.spans[names[start]].start
        block = blocks[f"last:{11 - start // 2}"].chosen.corrected_block(layout)  # type: ignore[attr-defined]
        assert [span.start for span in block.spans] == [first]
