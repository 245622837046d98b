"""Which data a client has: its own folder, or its part of a data set that is dealt."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from client_app import client_data
from client_app.client_data import ClientData, load_client_data
from common.config import parse
from common.data import FolderOptions, load_folder
from common.errors import ClientError, DataError
from tests.folders import write_pictures

OWN = {
    "data.name": "own",
    "data.classes": "dark, striped, bright, plaid",
    "data.image-size": 16,
    "data.channels": 1,
    "train.device": "cpu",
    "clients": 3,
}
DEALT = {"clients": 3, "data.partition": "iid", "train.device": "cpu"}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """As in a deployment, where every message is answered by a process of its own."""
    for kept in (client_data.load_own_images, client_data.dataset_of, client_data.splits_of):
        kept.cache_clear()
    yield
    for kept in (client_data.load_own_images, client_data.dataset_of, client_data.splits_of):
        kept.cache_clear()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """24 pictures each of bright, dark and striped, all for training."""
    return write_pictures(tmp_path / "own")


def at(folder: Path | str, client: str = "", **run: Any) -> ClientData:
    return load_client_data(parse({**OWN, **run}).to_flat(), {"data": str(folder)}, client)


def dealt(node: Mapping[str, Any], client: str = "", **run: Any) -> ClientData:
    return load_client_data(parse({**DEALT, **run}).to_flat(), node, client)


def test_own_pictures_have_the_federations_classes_size_channels_and_scale(own: Path) -> None:
    here = at(own, "lab")
    assert here.data.classes == ("dark", "striped", "bright", "plaid")
    assert here.data.shape == (1, 16, 16)
    assert (here.data.mean, here.data.std) == ((0.5,), (0.25,))
    assert_array_equal(np.unique(here.data.labels), [0, 1, 2])
    assert (here.client_id, here.partition) == ("lab", "")


# A public report of this bug: https://github.com/ultralytics/ultralytics/issues/13936
def test_the_models_head_is_the_federations_whatever_the_client_holds(own: Path) -> None:
    weights = at(own).flat.layout
    (own / "train" / "dark").rename(own / "train" / ".dark")
    client_data.load_own_images.cache_clear()
    fewer = at(own).flat
    assert fewer.layout == weights
    assert list(fewer.model.parameters())[-1].shape == (4,)


def test_own_pictures_are_split_by_the_clients_id_and_counted_without_it(own: Path) -> None:
    parts = {client: at(own, client).split for client in ("", "a", "b")}
    sizes = {(len(split.train), len(split.test)) for split in parts.values()}
    assert sizes == {(58, 14)}
    assert not np.array_equal(parts["a"].test, parts["b"].test)
    assert_array_equal(parts["a"].test, at(own, "a").split.test)
    assert_array_equal(np.sort(np.concatenate([parts["a"].train, parts["a"].test])), np.arange(72))


def test_a_test_part_of_the_folder_is_the_test(own: Path) -> None:
    (own / "test").mkdir()
    (own / "train" / "dark").rename(own / "test" / "dark")
    split = at(own, "a", **{"data.calibration-fraction": 0.25}).split
    assert (len(split.train), len(split.calibration)) == (36, 12)
    assert_array_equal(split.test, np.arange(48, 72))
    assert_array_equal(at(own, "b").split.test, split.test)


def test_a_client_with_a_test_part_only_has_nothing_to_train_on(own: Path) -> None:
    (own / "test").mkdir()
    for name in ("dark", "bright", "striped"):
        (own / "train" / name).rename(own / "test" / name)
    split = at(own).split
    assert (len(split.train), len(split.test)) == (0, 72)


@pytest.mark.parametrize("node", [{}, {"data": ""}, {"partition-id": 0, "num-partitions": 3}])
def test_an_own_run_needs_a_folder_and_says_which_command_gives_one(node: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="fedkeel join --data FOLDER"):
        load_client_data(parse(OWN).to_flat(), node)


def test_the_limit_on_bad_files_is_the_run_configs(own: Path) -> None:
    (own / "train" / "dark" / "bad.png").write_text("x")
    assert len(at(own).data) == 72
    with pytest.raises(DataError, match=r"1 of 73 files.* at most 1\.0%"):
        at(own, **{"data.max-bad": 0.01})
    folder = {"data.name": f"folder:{own}", "data.max-bad": 0.01}
    with pytest.raises(DataError, match=r"1 of 73 files.* at most 1\.0%"):
        dealt({"partition-id": 0, "num-partitions": 3}, **folder)


def test_a_cache_of_an_own_run_does_not_change_what_a_folder_run_sees(own: Path) -> None:
    before = load_folder(own, FolderOptions(size=16))
    at(own)
    after = load_folder(own, FolderOptions(size=16))
    assert (after.classes, after.mean, after.std) == (before.classes, before.mean, before.std)
    assert_array_equal(after.labels, before.labels)
    assert at(own).data.mean == (0.5,)


@pytest.mark.parametrize("node", [{}, {"data": "/somewhere"}, {"partition-id": 3}])
def test_a_dealt_run_names_both_ways_to_have_data(node: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as caught:
        dealt(node)
    assert "partition-id and num-partitions" in str(caught.value)
    assert 'data.name="own"' in str(caught.value)
    assert "digits" in str(caught.value)


def test_the_servers_name_for_a_client_does_not_change_which_part_it_holds() -> None:
    node = {"partition-id": 2, "num-partitions": 3}
    alone, named = dealt(node), dealt(node, "lab")
    assert (alone.client_id, named.client_id) == ("2", "lab")
    assert (alone.partition, named.partition) == ("2", "2")
    assert_array_equal(alone.split.train, named.split.train)


def test_on_a_client_the_node_says_where_a_dealt_data_set_lies(own: Path, tmp_path: Path) -> None:
    """data.root and the folder of folder:PATH are places on the machine of the server."""
    node = {"partition-id": 1, "num-partitions": 3, "data": str(own)}
    here = dealt(node, **{"data.name": "folder:/on/the/server", "data.image-size": 16})
    assert (len(here.data), here.data.classes) == (72, ("bright", "dark", "striped"))
    elsewhere = {"data.name": "cifar10", "data.root": "/on/the/server", "data.download": False}
    with pytest.raises(DataError, match=str(own)):
        dealt(node, **elsewhere)


def test_the_same_picture_is_the_same_to_the_model_at_two_clients(tmp_path: Path) -> None:
    shared = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for client, others in (("a", 0), ("b", 255)):
        place = tmp_path / client / "dark"
        place.mkdir(parents=True)
        Image.fromarray(shared).save(place / "0.png")
        for number in range(1, 4):
            Image.fromarray(np.full((16, 16), others, np.uint8)).save(place / f"{number}.png")
    a, b = (at(tmp_path / client).data for client in "ab")
    assert_array_equal(a.images[0], b.images[0])
    assert (a.mean, a.std, a.labels[0]) == (b.mean, b.std, b.labels[0])
