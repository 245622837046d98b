"""What is refused before anything is trained."""

import os
from pathlib import Path

import pytest

from common.config import parse
from common.errors import ConfigError
from common.models import FlatModel, build, count_numbers
from server_app.app import refuse_what_no_superlink_carries, strategy_of
from server_app.round.client_registry import ClientRegistry
from server_app.run_dir import memory_mapped
from server_app.run_dir.run_dir import RunDir


# A public report of this bug: https://github.com/flwrlabs/flower/issues/5273
def test_a_model_that_no_superlink_carries_is_refused_with_the_limit() -> None:
    refuse_what_no_superlink_carries(count_numbers("vgg11", (3, 32, 32), 10))
    huge = count_numbers("mlp", (3, 4096, 4096), 10)  # on the meta device, which takes no memory
    with pytest.raises(ConfigError, match=r"\d{5} MB, and a SuperLink carries at most 250 MB"):
        refuse_what_no_superlink_carries(huge)


@pytest.mark.parametrize(("method", "vectors"), [("fedpcd", 60 + 20), ("scaffold", 100 + 20)])
def test_more_vectors_on_disk_than_the_system_can_map_are_refused(
    method: str, vectors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the window or of all clients, and of a round beside them."""
    limit = tmp_path / "max_map_count"
    limit.write_text(f"{vectors + memory_mapped.SPARE - 1}")
    monkeypatch.setattr(memory_mapped, "MAPPINGS", limit)
    monkeypatch.setattr(memory_mapped, "MAPPED_NOW", Path(os.devnull))
    flat = {"method": method, "clients": 100, "participation": 0.2, "out": str(tmp_path)}
    config = parse(flat | ({"fedpcd.history": 2} if method == "fedpcd" else {}))
    model, registry = (
        FlatModel(build("mlp", (1, 8, 8), 10, seed=0)),
        ClientRegistry(100, 100, 1.0, print),
    )
    folder = RunDir.open(config)
    strategy_of(config, model, registry, folder)  # in memory they may be as many as they are
    on_disk = parse(config.to_flat() | {"server.on-disk": True})
    with pytest.raises(ConfigError, match=f"up to {vectors} vectors"):
        strategy_of(on_disk, model, registry, folder)
    limit.write_text(f"{vectors + memory_mapped.SPARE}")
    strategy_of(on_disk, model, registry, folder)
