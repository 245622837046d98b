"""Who may import whom, and no method is told apart by its name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.methods import METHODS

ROOT = Path(__file__).parents[1]
PACKAGES = ("common", "server_app", "client_app", "deploy")
FILES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
ALL = pytest.mark.parametrize("name", FILES)

FORBIDDEN = {
    "common": {"server_app", "client_app", "deploy", "tests"},
    "server_app": {"client_app", "deploy", "tests"},
    "client_app": {"server_app", "deploy", "tests"},
    "deploy": {"tests"},
}
FLOWER = {
    "common/wire.py",
    "server_app/app.py",
    "server_app/strategies.py",
    "server_app/strategy.py",
    *(
        f"server_app/round/{name}.py"
        for name in ("client_registry", "error_reasons", "messaging", "polling", "replies")
    ),
    "client_app/app.py",
    "deploy/federation/list_supernodes.py",
}
CIFAR = "common/data/cifar.py"  # its pickles come from outside; it has an unpickler of its own
TORCH_IN_COMMON = ("common/models/", "common/data/batches.py")
ORDER = [  # an arrow inside common goes from a later group to the same or an earlier one
    {"errors", "io", "malloc", "types", "rng", "parallel"},
    {"layout", "client_vectors", "fairness", "statistics", "settings", "geometry", "conformal"},
    {"methods", "models", "data", "diagnostics", "runs"},
    {"config"},
    {"wire", "federated_data"},
]


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported below this node, at whatever level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_start(tree: ast.Module) -> Iterator[str]:
    """The modules that importing this one imports: not those inside functions."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from imports(node)


def tops(modules: Iterator[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def rank(module: str) -> int:
    part = module.split(".")[1]
    return next(k for k, group in enumerate(ORDER) if part in group)


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 50
    assert "flwr" in tops(imports(FILES["common/wire.py"]))


@ALL
def test_a_package_imports_only_what_is_below_it(name: str) -> None:
    assert not tops(imports(FILES[name])) & FORBIDDEN[name.partition("/")[0]]


@ALL
def test_flower_is_imported_at_the_edges_only(name: str) -> None:
    if name not in FLOWER and not name.startswith("deploy/engines/"):
        assert "flwr" not in tops(imports(FILES[name]))


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("common/")])
def test_common_needs_torch_for_models_and_batches_only(name: str) -> None:
    if not name.startswith(TORCH_IN_COMMON):
        assert not tops(at_start(FILES[name])) & {"torch", "torchvision"}
        loaded = {module for module in at_start(FILES[name]) if module.startswith("common.")}
        assert not {m for m in loaded if m.startswith(("common.models", "common.data.batches"))}


@pytest.mark.parametrize("name", [name for name in FILES if name.count("/") and "common" in name])
def test_inside_common_arrows_go_one_way(name: str) -> None:
    if name == "common/__init__.py":
        return
    own = rank(name.removesuffix(".py").replace("/", "."))
    for module in imports(FILES[name]):
        if module.startswith("common."):
            assert rank(module) <= own, module


@ALL
def test_no_method_is_told_apart_by_its_name(name: str) -> None:
    """Neither ==, nor `in` a list of names, nor a match statement."""

    def named(node: ast.AST) -> bool:
        return any(isinstance(n, ast.Constant) and n.value in METHODS for n in ast.walk(node))

    for node in ast.walk(FILES[name]):
        if isinstance(node, ast.Compare | ast.Match):
            assert not named(node), f"{name}:{node.lineno}"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            classes = {method.__name__ for method in METHODS.values()}
            found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            assert not found & classes, f"{name}:{node.lineno}"


@ALL
def test_nothing_is_pickled_and_nobody_shares_a_global_random_state(name: str) -> None:
    if name != CIFAR:
        assert not tops(imports(FILES[name])) & {"pickle", "shelve", "marshal", "dill"}
    assert "random" not in tops(imports(FILES[name]))
    for node in ast.walk(FILES[name]):
        text = ast.unparse(node) if isinstance(node, ast.Call) else ""
        assert not text.startswith(("np.random.seed", "torch.manual_seed", "np.random.rand"))
        assert "allow_pickle=True" not in text
        if text.startswith("torch.load"):
            assert "weights_only=True" in text
