"""`flwr run .`, Flower's own command, gives the weights of the fedkeel command."""

import socket
import tomllib
import zipfile
from dataclasses import replace

import pytest

from common.config import RunConfig
from common.rng import stream
from deploy.config_input import flatten
from deploy.system.flower_env import QUIET
from tests.folders import copy_repository
from tests.system.conftest import SMALL, Place, pairs

MB = 1_000_000


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def project(shared_place: Place) -> Place:
    """Return the place of a copy of the repository, with files that users keep there."""
    folder = shared_place.work / "project"
    copy_repository(folder)
    noise = stream(0, "noise").bytes(3 * MB)
    for name in (
        "venv/lib/python3.11/site-packages/big.py",
        "data/cifar/batch.npz",
        "data/photos/train/me/1.png",
        "data/photos/labels.json",
        "runs/old/weights.npz",
        "runs/old/records.jsonl",
        "runs/old/config.toml",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise)
    extra = {
        **QUIET,
        "FLWR_HOME": str(shared_place.temp / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }
    return replace(shared_place, work=folder, extra=extra)


def test_the_bundle_holds_the_apps_and_no_files_of_the_user(project: Place) -> None:
    """A whole virtual environment was sent in https://github.com/flwrlabs/flower/issues/5273."""
    done = project.call("flwr", "build")
    assert done.returncode == 0, done.stderr
    [bundle] = project.work.glob("*.fab")
    assert bundle.stat().st_size < MB
    with zipfile.ZipFile(bundle) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names if "/" in name}
    assert tops <= {".info", "client_app", "common", "server_app"}
    assert {"server_app/app.py", "client_app/app.py", "common/runs/records.py"} <= set(names)
    bundle.unlink()


@pytest.mark.slow
def test_flwr_run_gives_the_weights_of_the_inline_engine(project: Place) -> None:
    """With FedPVR, whose control variates travel with the model."""
    settings = {**SMALL, "method": "fedpvr", "participation": 0.5, "rounds": 3}
    out = project.work.parent / "out"
    given = {**settings, "name": "flwr", "out": str(out)}
    run_config = " ".join(pairs(given)[1::2])
    federation = f"num-supernodes={SMALL['clients']} client-resources-num-cpus=1"
    try:
        done = project.call(
            *("flwr", "run", ".", "--stream"),
            *("--run-config", run_config, "--federation-config", federation),
        )
    finally:
        project.end_all()
    assert done.returncode == 0, done.stdout + done.stderr
    inline = replace(project, work=out.parent, extra={})
    ours = inline.fedkeel(
        "run", *pairs({**settings, "out": str(out)}), "--engine", "inline", "--name", "inline"
    )
    assert ours.returncode == 0, ours.stderr
    models = [(out / name / "weights.npz").read_bytes() for name in ("flwr", "inline")]
    assert models[0] == models[1]


def test_the_run_config_of_the_bundle_has_every_key(project: Place) -> None:
    """Flower refuses to set a key that pyproject.toml does not hold."""
    tables = tomllib.loads((project.work / "pyproject.toml").read_text())
    assert flatten(tables["tool"]["flwr"]["app"]["config"]) == RunConfig().to_flat()
