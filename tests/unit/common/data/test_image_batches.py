"""Batches are normalised and augmented as one, with the result of one image at a time."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from common.data.image_batches import PAD, RandomCrops, augment, normalise
from common.errors import DataError
from common.rng import stream


def pictures(count: int = 9, channels: int = 3, height: int = 6, width: int = 5) -> torch.Tensor:
    shape = (count, channels, height, width)
    return torch.from_numpy(np.random.default_rng(0).integers(1, 256, shape).astype(np.uint8))


def test_normalise_is_the_textbook_formula() -> None:
    batch, mean, std = pictures(), (0.1, 0.5, 0.9), (0.2, 0.3, 0.4)
    result = normalise(batch, mean, std)
    assert result.dtype == torch.float32
    slow = batch.numpy() / 255
    for channel in range(3):
        slow[:, channel] = (slow[:, channel] - mean[channel]) / std[channel]
    assert_allclose(result.numpy(), slow, rtol=1e-5, atol=1e-6)


def test_normalise_refuses_other_channels() -> None:
    with pytest.raises(DataError, match="3 channels"):
        normalise(pictures(), (0.5,), (0.5,))


@pytest.mark.parametrize(("pad", "flip"), [(0, True), (2, False), (3, True)])
def test_augment_is_pad_crop_flip(pad: int, flip: bool) -> None:
    batch = pictures(count=40)
    rng = stream(1, "augment")
    tops, lefts = rng.integers(0, 2 * pad + 1, size=(2, 40))
    mirrored = rng.random(40) < 0.5
    slow = np.zeros(batch.shape, dtype=np.uint8)
    for i, picture in enumerate(batch.numpy()):
        padded = np.pad(picture, ((0, 0), (pad, pad), (pad, pad)))
        crop = padded[:, tops[i] : tops[i] + 6, lefts[i] : lefts[i] + 5]
        slow[i] = crop[:, :, ::-1] if flip and mirrored[i] else crop
    result = augment(batch, RandomCrops.draw(40, stream(1, "augment"), pad=pad), pad=pad, flip=flip)
    assert result.dtype == torch.uint8
    assert_array_equal(result.numpy(), slow)
    assert mirrored.any()
    assert not mirrored.all()


def test_augment_crops_alike_with_and_without_flips() -> None:
    batch = pictures()
    draws = RandomCrops.draw(len(batch), stream(2, "augment"))
    straight, flipped = (augment(batch, draws, flip=flip) for flip in (False, True))
    for one, other in zip(straight, flipped, strict=True):
        assert torch.equal(one, other) or torch.equal(one.flip(-1), other)


def test_augment_leaves_its_input_alone_and_takes_empty_batches() -> None:
    batch = pictures()
    before = batch.clone()
    augment(batch, RandomCrops.draw(len(batch), stream(0, "augment")))
    assert torch.equal(batch, before)
    assert augment(batch[:0], RandomCrops.draw(0, stream(0, "augment"))).shape == (0, 3, 6, 5)
    assert normalise(batch[:0], (0.5,) * 3, (0.5,) * 3).shape == (0, 3, 6, 5)


@pytest.mark.parametrize("flip", [True, False])
def test_augment_gives_the_pixels_of_torchvision(flip: bool) -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    batch, crops = pictures(count=40), RandomCrops.draw(40, stream(3, "augment"))
    expected = []
    for k, image in enumerate(functional.pad(batch, [PAD])):
        crop = functional.crop(image, int(crops.tops[k]), int(crops.lefts[k]), 6, 5)
        mirrored = flip and crops.mirrored[k]
        expected.append(functional.horizontal_flip(crop) if mirrored else crop)
    assert torch.equal(augment(batch, crops, flip=flip), torch.stack(expected))
