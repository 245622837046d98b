"""`import fedkeel` is cheap, and every public name is there."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel
from common.methods import METHODS
from server_app.strategies import STRATEGIES

ROOT = Path(__file__).parents[3]


def test_every_public_name_can_be_loaded() -> None:
    for name in fedkeel.__all__:
        assert getattr(fedkeel, name) is not None
    assert set(fedkeel.__all__) <= set(dir(fedkeel))
    assert {*fedkeel._MODULE_OF, "__version__"} == set(fedkeel.__all__)


def test_every_method_has_its_strategy() -> None:
    for name, method in METHODS.items():
        assert getattr(fedkeel, method.__name__) is STRATEGIES[name]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'FedPDC'"):
        _ = fedkeel.FedPDC


def test_import_loads_neither_torch_nor_flower_nor_numpy() -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'deploy/python')!r}]; "
        "import fedkeel; print(*sorted({'torch', 'flwr', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("package", ["client_app", "common", "deploy", "server_app"])
def test_packages_are_marked_as_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_public_package_is_marked_as_typed() -> None:
    assert (ROOT / "deploy/python/fedkeel/py.typed").is_file()
