"""The layers of the product, its limits of size, and its names.

Each test prints the whole list of offenders, as `file:line: what is wrong`.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from common.methods import METHODS

ROOT = Path(__file__).parents[1]
PACKAGES = ("common", "server_app", "client_app", "deploy")
FILES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}

FORBIDDEN = {
    "common": {"server_app", "client_app", "deploy", "fedkeel", "tests"},
    "server_app": {"client_app", "deploy", "fedkeel", "tests"},
    "client_app": {"server_app", "deploy", "fedkeel", "tests"},
    "deploy": {"tests"},
}
FLOWER = {  # beside deploy/engines
    "common/flower_internals.py",
    "common/wire/arrays.py",
    "common/wire/client_card.py",
    "common/wire/content.py",
    "common/wire/incoming.py",
    "common/wire/messages.py",
    "common/wire/reply_metrics.py",
    "common/wire/vectors.py",
    "server_app/app.py",
    "server_app/ready_strategy.py",
    "server_app/round/round_loop.py",
    "server_app/state/server_model.py",
    "server_app/strategy.py",
    "server_app/round/bounded_pull.py",
    "server_app/round/client_registry.py",
    "server_app/round/error_reasons.py",
    "server_app/round/evaluation.py",
    "server_app/round/evaluation_replies.py",
    "server_app/round/ready_clients.py",
    "server_app/round/messaging.py",
    "server_app/round/order_content.py",
    "server_app/round/polling.py",
    "server_app/round/replies.py",
    "server_app/round/round_exchange.py",
    "server_app/round/training.py",
    "client_app/app.py",
    "deploy/federation/list_supernodes.py",
}
CIFAR = "common/data/sources/cifar.py"  # its unpickler builds arrays only
TORCH_IN_COMMON = ("common/models/", "common/data/image_batches.py")
ORDER = [  # an arrow inside common goes from a later group to the same or an earlier one
    {"errors", "flower_internals", "io", "malloc", "types", "rng", "parallel"},
    {"layout", "client_vectors", "fairness", "statistics", "settings", "geometry", "conformal"},
    {"methods", "models", "data", "diagnostics", "runs"},
    {"config", "config_groups", "run_identity"},
    {"wire", "federated_data"},
]

FILE_LINES, CLASS_LINES, FUNCTION_LINES = 300, 200, 60
SHARED_MODULE_NAMES = {
    "__init__",
    "app",  # Flower's convention: server_app.app and client_app.app
    "base",  # the abstract class of its package
}
STRATEGIES = ("server_app/strategies.py", "server_app/robust_strategies.py")


def module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every module that is imported below this node, at whatever level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_start(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that importing this one imports: not those inside functions."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from imports(node)


def tops(modules: Iterator[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def package_of(module: str) -> str:
    """Return the first two parts of a module's name."""
    return ".".join(module.split(".")[:2])


def show(offenders: list[str]) -> str:
    return "\n" + "\n".join(offenders)


def test_files_are_found() -> None:
    assert len(FILES) > 50
    assert "flwr" in tops(imports(FILES["server_app/app.py"]))


# ---------------------------------------------------------------- layers


def test_a_package_imports_only_lower_ones() -> None:
    offenders = [
        f"{name}: imports {', '.join(sorted(above))}"
        for name, tree in FILES.items()
        if (above := tops(imports(tree)) & FORBIDDEN[name.partition("/")[0]])
    ]
    assert not offenders, show(offenders)


def test_only_the_edges_import_flower() -> None:
    offenders = [
        name
        for name, tree in FILES.items()
        if name not in FLOWER and not name.startswith("deploy/engines/")
        if "flwr" in tops(imports(tree))
    ]
    assert not offenders, show(offenders)


def test_one_module_alone_imports_what_is_not_public_in_flower() -> None:
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation")
    offenders = [
        f"{name}: {module}"
        for name, tree in FILES.items()
        if name != "common/flower_internals.py"
        for module in imports(tree)
        if module.startswith("flwr.") and not module.startswith(public)
    ]
    assert not offenders, show(offenders)


def test_in_common_only_models_and_batches_import_torch_at_start() -> None:
    indirect = ("common.models", "common.data.image_batches")
    offenders = [
        f"{name}: {module}"
        for name, tree in FILES.items()
        if name.startswith("common/") and not name.startswith(TORCH_IN_COMMON)
        for module in at_start(tree)
        if module.partition(".")[0] in {"torch", "torchvision"} or module.startswith(indirect)
    ]
    assert not offenders, show(offenders)


def test_modules_of_common_import_only_their_own_group_and_earlier_ones() -> None:
    group_of = {part: number for number, group in enumerate(ORDER) for part in group}
    parts = {name: module_of(name).split(".") for name in FILES}
    own = {name: part[1] for name, part in parts.items() if part[0] == "common" and part[1:]}
    unknown = sorted(set(own.values()) - group_of.keys())
    assert not unknown, f"{unknown} are in no group of ORDER"
    offenders = [
        f"{name}: {module}"
        for name, part in own.items()
        for module in imports(FILES[name])
        if module.startswith("common.") and group_of[module.split(".")[1]] > group_of[part]
    ]
    assert not offenders, show(offenders)


def test_packages_form_no_circle() -> None:
    """A package is the first two parts of a module's name, as deploy.report or common.io."""
    packages = {package_of(module_of(name)) for name in FILES} - set(PACKAGES)
    arrows: dict[str, dict[str, str]] = defaultdict(dict)
    for name, tree in FILES.items():
        own = package_of(module_of(name))
        for module in imports(tree):
            other = package_of(module)
            if other != own and other in packages:
                arrows[own].setdefault(other, f"{own} -> {other}: {name}")
    offenders = [
        line
        for own, others in arrows.items()
        for other, line in others.items()
        if own in _reachable(other, arrows)
    ]
    assert not offenders, show(offenders)


def test_no_package_of_the_server_imports_the_modules_beside_it() -> None:
    """server_app's strategy and app use its packages, and not the other way round."""
    beside = {module_of(name) for name in FILES if name.count("/") == 1} - {"server_app"}
    offenders = [
        f"{name}: {module}"
        for name, tree in FILES.items()
        if name.startswith("server_app/") and name.count("/") > 1
        for module in imports(tree)
        if module in beside and module.startswith("server_app.")
    ]
    assert not offenders, show(offenders)


def _reachable(start: str, arrows: dict[str, dict[str, str]]) -> set[str]:
    """Return the packages that arrows lead to from this one."""
    seen, waiting = set[str](), [start]
    while waiting:
        new = arrows.get(waiting.pop(), {}).keys() - seen
        seen |= new
        waiting += new
    return seen


# ---------------------------------------------------------------- rules of code


def test_no_code_tells_methods_apart_by_name_or_class() -> None:
    """Neither ==, nor `in` a list of names, nor a match statement, nor isinstance."""
    classes = {method.__name__ for method in METHODS.values()}

    def tells(node: ast.AST) -> bool:
        below = list(ast.walk(node))
        if isinstance(node, ast.Compare | ast.Match):
            return any(isinstance(n, ast.Constant) and n.value in METHODS for n in below)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            return any(isinstance(n, ast.Name) and n.id in classes for n in below)
        return False

    offenders = [
        f"{name}:{node.lineno}: {ast.unparse(node)[:80]}"
        for name, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr | ast.stmt) and tells(node)
    ]
    assert not offenders, show(offenders)


def test_no_code_pickles_or_uses_a_global_random_state() -> None:
    offenders = []
    for name, tree in FILES.items():
        modules = tops(imports(tree)) & {"random", "pickle", "shelve", "marshal", "dill"}
        modules -= {"pickle"} if name == CIFAR else set()
        offenders += [f"{name}: imports {module}" for module in modules]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            options = {key.arg: ast.unparse(key.value) for key in node.keywords}
            is_global = called.startswith(("np.random.seed", "torch.manual_seed", "np.random.rand"))
            is_unsafe = called.startswith("torch.load") and options.get("weights_only") != "True"
            if is_global or is_unsafe or options.get("allow_pickle") == "True":
                offenders.append(f"{name}:{node.lineno}: {ast.unparse(node)[:80]}")
    assert not offenders, show(offenders)


# ---------------------------------------------------------------- size and names


def test_no_file_class_or_function_is_too_long() -> None:
    offenders = []
    for name, tree in FILES.items():
        lines = len((ROOT / name).read_text().splitlines())
        if lines > FILE_LINES:
            offenders.append(f"{name}: {lines} lines, at most {FILE_LINES}")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                limit = CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES
                first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
                lines = (node.end_lineno or first) - first + 1
                if lines > limit:
                    offenders.append(f"{name}:{first}: {node.name}: {lines} lines, at most {limit}")
    assert not offenders, show(offenders)


def test_no_two_modules_have_the_same_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name in FILES:
        places[Path(name).stem].append(name)
    offenders = [
        f"{stem}: {', '.join(names)}"
        for stem, names in places.items()
        if len(names) > 1 and stem not in SHARED_MODULE_NAMES
    ]
    assert not offenders, show(offenders)


def test_no_two_public_classes_have_the_same_name() -> None:
    """A ready strategy is the exception: it carries the name of its method."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in FILES.items():
        for node in tree.body if name not in STRATEGIES else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{name}:{node.lineno}")
    offenders = [f"{kind}: {', '.join(names)}" for kind, names in places.items() if len(names) > 1]
    assert not offenders, show(offenders)
