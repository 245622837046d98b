"""The names of Flower that FedKeel needs and Flower does not promise are where they were."""

import ast
import inspect
from importlib import import_module

import pytest

from common import flower_internals
from common.flower_internals import MODULES


@pytest.mark.parametrize("name", MODULES)
def test_flower_still_has_the_name_in_the_module(name: str) -> None:
    module = MODULES[name]
    try:
        there = hasattr(import_module(module), name) or bool(import_module(f"{module}.{name}"))
    except ImportError as error:
        pytest.fail(f"Flower moved {name}, which was in {module}: {error}")
    assert there
    assert getattr(flower_internals, name) is not None


def test_the_type_checker_sees_the_names_that_are_imported_at_run_time() -> None:
    tree = ast.parse(inspect.getsource(flower_internals))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flwr")
        for alias in node.names
    }
    assert seen == MODULES


def test_a_name_that_flower_moved_is_reported_with_its_old_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MODULES, "Moved", "flwr.nowhere")
    with pytest.raises(ImportError, match=r"no module flwr\.nowhere any more, which has Moved"):
        flower_internals.Moved  # noqa: B018 - the access is what is tested


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Elsewhere"):
        flower_internals.Elsewhere  # noqa: B018 - the access is what is tested
