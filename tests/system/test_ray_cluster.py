"""The simulation engine neither joins nor disturbs a Ray cluster of the user."""

from dataclasses import replace

import pytest

from tests.system.conftest import BIN, SMALL, Place, pairs

CLUSTER = ("raylet", "gcs_server")
RUN = ("run", "fedavg", *pairs(SMALL))


@pytest.mark.slow
def test_a_cluster_named_by_ray_address_is_not_used_and_goes_on(place: Place) -> None:
    folder = place.temp / "ray"
    started = place.call(
        str(BIN / "ray"), "start", "--head", "--num-cpus=1", "--port=0",
        "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}",
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    cluster = {name: place.processes(name) for name in CLUSTER}
    assert [len(found) for found in cluster.values()] == [1, 1]
    address = (folder / "ray_current_cluster").read_text().strip()
    beside = replace(place, extra={"RAY_ADDRESS": address})

    with beside.started("fedkeel", *RUN, "--engine", "simulation", "--name", "ray") as process:
        inline = beside.fedkeel(*RUN, "--engine", "inline", "--name", "inline")
        out, err = process.communicate(timeout=60)
    assert (process.returncode, inline.returncode) == (0, 0), err + inline.stderr
    assert f"RAY_ADDRESS ({address}) is passed over" in out
    assert "RAY_ADDRESS" not in inline.stdout
    assert place.weights("ray") == place.weights("inline")
    assert {name: place.processes(name) for name in CLUSTER} == cluster
    assert place.left_over() == ["ray"]
