"""What the steps of a training see does not depend on how it is brought to the device."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import torch

from client_app import batches as batches_module
from client_app.batches import TrainingBatches, batch_slices
from common.data.image_batches import RandomCrops, augment
from common.rng import stream
from tests.builders import pictures
from tests.each import for_each

DATA = pictures(60)
BATCHES = TrainingBatches(
    data=DATA, indices=np.arange(5, 38),
    slices=batch_slices(33, 8, drop_last=False, no_single=False),
    device=torch.device("cpu"), augment=False, seed=1, path=(2, "0"),
)  # fmt: skip


@for_each("drop_last", [False, True])
@for_each(
    ("size", "no_single"), [(1, False), (2, False), (7, False), (32, False), (2, True), (7, True)]
)
@for_each("count", [0, 1, 2, 7, 8, 33, 64, 65])
def test_an_epoch_is_every_sample_once_in_batches(
    count: int, size: int, drop_last: bool, no_single: bool
) -> None:
    spans = batch_slices(count, size, drop_last=drop_last, no_single=no_single)
    parts = [np.arange(count)[span] for span in spans]
    kept = count // size * size if drop_last else count
    assert np.concatenate([*parts, np.zeros(0, np.int64)]).tolist() == list(range(kept))
    assert all(len(part) == size for part in parts[:-1])
    if no_single and count > 1:
        assert min((len(part) for part in parts), default=2) >= 2
    elif drop_last:
        assert len(parts) == count // size
    else:
        assert len(parts) == ceil(count / size)


def test_an_epoch_shows_each_sample_once_with_its_label_in_another_order_than_the_last() -> None:
    orders = []
    for number in (0, 1):
        pixels, labels = map(torch.cat, zip(*BATCHES.epoch(number), strict=True))
        rows = {row.tobytes(): k for k, row in enumerate(DATA.images)}
        order = [rows[row.numpy().tobytes()] for row in pixels]
        assert sorted(order) == list(range(5, 38))
        assert labels.tolist() == DATA.labels[order].tolist()
        orders.append(order)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 16 * 16, 16 * 24])
def test_the_size_of_a_chunk_changes_no_batch(
    augmented: bool, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The augmentation of a step has the address of that step."""
    shown = replace(BATCHES, augment=augmented)
    whole = list(shown.epoch(1))
    monkeypatch.setattr(batches_module, "CHUNK_BYTES", chunk_bytes)
    chunks = list(shown._chunks())
    assert len(chunks) == {1: 5, 16 * 16: 3, 16 * 24: 2}[chunk_bytes]
    cut = list(shown.epoch(1))
    assert len(whole) == len(cut) == 5
    for one, other in zip(whole, cut, strict=True):
        assert all(map(torch.equal, one, other))


def test_a_steps_augmentation_is_drawn_from_its_number_in_the_training() -> None:
    plain, shown = list(BATCHES.epoch(1)), list(replace(BATCHES, augment=True).epoch(1))
    draws = RandomCrops.draw(8, stream(1, "augment", 2, "0", 5 + 2))  # five steps an epoch
    assert torch.equal(shown[2][0], augment(plain[2][0], draws, flip=DATA.flip))


@pytest.mark.parametrize(("epochs", "seen"), [(1, 24), (2, 30), (20, 33)])
def test_examples_are_those_that_some_epoch_reached(epochs: int, seen: int) -> None:
    short = replace(BATCHES, slices=batch_slices(33, 12, drop_last=True, no_single=False))
    rows = {row.numpy().tobytes() for k in range(epochs) for x, _ in short.epoch(k) for row in x}
    assert short.examples(epochs) == len(rows) == seen
    assert BATCHES.examples(epochs) == 33
    assert replace(BATCHES, slices=[]).examples(epochs) == 0
