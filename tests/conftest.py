"""What every test may ask for."""

import warnings

import pytest

with warnings.catch_warnings():  # Flower's own imports use what its dependencies deprecate
    warnings.simplefilter("ignore")
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture
def flower_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the identity that Flower's runtime gives a task, to make messages."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
