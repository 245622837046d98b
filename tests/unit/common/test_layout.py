"""A layout knows which part of the flat vector belongs to which tensor."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from common.errors import ConfigError
from common.layout import Block, Layout, Tensor
from common.rng import stream

LAYOUT = Layout(
    (
        Tensor("features.0.weight", (2, 3)),
        Tensor("features.0.bias", (2,)),
        Tensor("features.2.weight", (2, 2)),
        Tensor("scale", ()),
        Tensor("classifier.weight", (3, 2)),
        Tensor("classifier.bias", (3,)),
    ),
    (Tensor("features.1.running_mean", (2,)),),
)
shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)


@given(shapes)
def test_flatten_and_named_are_each_others_inverse(sizes: list[tuple[int, ...]]) -> None:
    layout = Layout(tuple(Tensor(f"t{k}", shape) for k, shape in enumerate(sizes)))
    flat = np.arange(layout.size, dtype=np.float32)
    named = layout.unflatten(flat)
    assert {name: array.shape for name, array in named.items()} == {
        tensor.name: tensor.shape for tensor in layout.tensors
    }
    assert_array_equal(layout.flatten(named), flat)


def test_named_arrays_are_views_and_flatten_copies() -> None:
    flat = np.zeros(LAYOUT.size, np.float32)
    LAYOUT.unflatten(flat)["classifier.bias"][:] = 1
    assert flat[-3:].tolist() == [1, 1, 1]
    copied = LAYOUT.flatten(LAYOUT.unflatten(flat))
    copied[:] = 5
    assert flat.max() == 1


def test_buffers_are_not_in_the_vector() -> None:
    assert LAYOUT.size == 6 + 2 + 4 + 1 + 6 + 3
    assert "features.1.running_mean" not in LAYOUT.spans


def test_modules_are_listed_in_order_and_once() -> None:
    assert LAYOUT.modules == ["features.0", "features.2", "", "classifier"]


@pytest.mark.parametrize(
    ("names", "spans"),
    [
        ([], []),
        (["*"], [(0, 22)]),
        (["classifier"], [(13, 22)]),
        (["classifier.bias"], [(19, 22)]),
        (["features"], [(0, 12)]),
        (["features.0", "classifier"], [(0, 8), (13, 22)]),
        (["classifier", "features.0"], [(0, 8), (13, 22)]),
        (["features.0", "features.0.bias"], [(0, 8)]),
        (["scale"], [(12, 13)]),
    ],
)
def test_blocks_are_chosen_by_name_and_merged(
    names: list[str], spans: list[tuple[int, int]]
) -> None:
    block = LAYOUT.block(names)
    assert [(span.start, span.stop) for span in block.spans] == spans
    assert block.size == sum(stop - start for start, stop in spans)


@pytest.mark.parametrize("name", ["feature", "features.", "classifier.weigh", "features.1", ""])
def test_a_name_that_owns_nothing_trained_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf'no trainable module is named "{name}"'):
        LAYOUT.block([name])


@given(st.sets(st.sampled_from([t.name for t in LAYOUT.tensors])))
def test_a_block_and_what_is_outside_make_the_whole(names: set[str]) -> None:
    block, vector = LAYOUT.block(sorted(names)), stream(0, "vector").normal(size=LAYOUT.size)
    outside = block.outside(LAYOUT.size)
    assert block.size + outside.size == LAYOUT.size
    assert outside.outside(LAYOUT.size) == block
    rebuilt = np.full(LAYOUT.size, np.nan)
    for part in (block, outside):
        for span, values in part.pieces(part.take(vector)):
            rebuilt[span] = values
    assert_array_equal(rebuilt, vector)


def test_a_block_takes_a_copy() -> None:
    vector = np.zeros(4)
    for block in (Block((slice(0, 4),)), Block((slice(0, 1), slice(2, 3)))):
        block.take(vector)[:] = 1
    assert not vector.any()
    assert Block(()).take(vector).size == 0


def edges(layout: Layout, *, norms_join: bool = False) -> list[tuple[int, int]]:
    return [(span.start, span.stop) for span in layout.layers(norms_join=norms_join)]


def test_layers_are_a_weight_with_its_bias() -> None:
    expected = [(0, 8), (8, 12), (12, 13), (13, 22)]
    assert edges(LAYOUT) == edges(LAYOUT, norms_join=True) == expected
    assert edges(Layout(())) == []


NORM = (Tensor("norm.weight", (5,)), Tensor("norm.bias", (5,)))


@pytest.mark.parametrize(
    ("tensors", "apart", "joined"),
    [
        ((Tensor("a.weight", (2, 3)), *NORM), [(0, 6), (6, 16)], [(0, 16)]),
        (NORM, [(0, 10)], [(0, 10)]),  # the first has nothing before it
        ((*NORM, Tensor("a.weight", (3,))), [(0, 10), (10, 13)], [(0, 10), (10, 13)]),
        (
            (Tensor("a.weight", (2,)), *NORM, Tensor("o.weight", (1,)), Tensor("o.bias", (1,))),
            [(0, 2), (2, 12), (12, 14)],
            [(0, 14)],
        ),
        ((Tensor("a.bias", (4,)), Tensor("b.scale", (4,))), [(0, 4), (4, 8)], [(0, 4), (4, 8)]),
        (
            (Tensor("a.weight", (2,)), Tensor("b.scale", (3,)), Tensor("b.shift", (1,))),
            [(0, 2), (2, 6)],
            [(0, 2), (2, 6)],
        ),
        (
            (Tensor("a.weight", (2,)), Tensor("b.query", (2, 2)), Tensor("b.key", (2, 2))),
            [(0, 2), (2, 10)],
            [(0, 2), (2, 10)],
        ),
        (
            (Tensor("a.w", (2, 2)), Tensor("b.w", (1,)), Tensor("a.v", (3,))),
            [(0, 4), (4, 5), (5, 8)],
            [(0, 4), (4, 5), (5, 8)],
        ),
    ],
)
def test_a_normalisation_may_join_the_layer_before_it(
    tensors: tuple[Tensor, ...], apart: list[tuple[int, int]], joined: list[tuple[int, int]]
) -> None:
    """It is told by several tensors of one one-dimensional shape; a single one may be anything."""
    assert edges(Layout(tensors)) == apart
    assert edges(Layout(tensors), norms_join=True) == joined


@given(shapes, st.lists(st.sampled_from("abc"), min_size=6, max_size=6), st.booleans())
def test_layers_cover_the_vector_without_splitting_a_tensor(
    sizes: list[tuple[int, ...]], modules: list[str], norms_join: bool
) -> None:
    layout = Layout(
        tuple(Tensor(f"{m}.{k}", s) for k, (m, s) in enumerate(zip(modules, sizes, strict=False)))
    )
    found = edges(layout, norms_join=norms_join)
    ends = [0, *(stop for _, stop in found)]
    assert found == list(pairwise(ends))
    assert ends[-1] == layout.size
    assert set(ends) <= {0, *(span.stop for span in layout.spans.values())}


def test_the_digest_tells_models_apart() -> None:
    tensors, buffers = LAYOUT.tensors, LAYOUT.buffers
    others = [
        Layout(tensors[::-1], buffers),
        Layout(tensors[:-1], buffers),
        Layout(tensors),
        Layout((*tensors[:-1], Tensor("classifier.bias", (4,))), buffers),
        Layout((*tensors[:-1], Tensor("classifier.b", (3,))), buffers),
        Layout(tensors, (Tensor("features.1.running_mean", (2,), "float64"),)),
    ]
    assert len({layout.digest for layout in (LAYOUT, *others)}) == 7
    assert Layout(tensors, buffers).digest == LAYOUT.digest
