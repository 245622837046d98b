"""The app as a folder that Flower can pack: our three packages, nothing of the user's."""

import importlib.util
import shutil
from importlib.metadata import version
from pathlib import Path

import tomli_w

from common.config import RunConfig, nested
from common.errors import DeployError

PACKAGES = ("client_app", "common", "server_app")
LARGEST = 1 << 20  # bytes of source; ours are a quarter of it


def app_folder(home: Path) -> Path:
    """Write the app below `home` and return its folder, to be given to `flwr run`.

    It contains only the Python files of the installed packages, and no virtual environment or
    pictures next to them.

    Raises:
        DeployError: a package is not installed as files, or somebody put much more into it.
    """
    folder = home / "fedkeel"
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise DeployError(f"the package {package} is not installed; pip install fedkeel")
        source = Path(found.submodule_search_locations[0])
        for path in sorted(source.rglob("*.py")):
            target = folder / package / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    sizes = {path: path.stat().st_size for path in folder.rglob("*.py")}
    if sum(sizes.values()) > LARGEST:
        worst = sorted(sizes, key=lambda path: -sizes[path])[:3]
        listed = ", ".join(f"{path.relative_to(folder)} ({sizes[path]} bytes)" for path in worst)
        raise DeployError(
            f"the app has more than {LARGEST} bytes of Python; the largest files are {listed}; "
            "take out what does not belong there"
        )
    table = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "fedkeel",
            "version": version("fedkeel"),
            "description": "Fair, drift-free federated learning on Flower.",
            "license": {"text": "Apache-2.0"},
            "dependencies": [f"flwr>={version('flwr')}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedkeel",
                    "components": {
                        "serverapp": "server_app.app:app",
                        "clientapp": "client_app.app:app",
                    },
                    "config": nested(RunConfig().to_flat()),
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    return folder
