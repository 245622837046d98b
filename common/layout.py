"""Layout: which part of the flat vector [d] belongs to which named tensor.

The vector contains only trainable tensors. Buffers (BatchNorm statistics) are sent beside it,
averaged separately, and never enter an inner product.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import ConfigError, did_you_mean
from common.types import Vector


@dataclass(frozen=True)
class Tensor:
    """Name, shape and numpy dtype of one tensor of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Block:
    """Some named tensors of the flat vector, as sorted and merged slices."""

    spans: tuple[slice, ...]

    @property
    def size(self) -> int:
        """Number of elements v in the block."""
        return sum(span.stop - span.start for span in self.spans)

    def take(self, vector: Vector) -> Vector:
        """Return the block's elements [v] of a flat vector [d], as a copy."""
        parts = [vector[span] for span in self.spans]
        return np.concatenate(parts) if parts else vector[:0].copy()

    def pieces(self, values: Any) -> Iterable[tuple[slice, Any]]:
        """Pair each span with its part of `values` [v], an array or a tensor."""
        start = 0
        for span in self.spans:
            stop = start + span.stop - span.start
            yield span, values[start:stop]
            start = stop

    def outside(self, size: int) -> "Block":
        """Return the complement within a vector of `size` elements."""
        edges = [0, *(edge for span in self.spans for edge in (span.start, span.stop)), size]
        gaps = [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
        return Block(tuple(gaps))


@dataclass(frozen=True)
class Layout:
    """The trainable tensors, in the order of the flat vector, and the buffers beside it."""

    tensors: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...] = ()

    @cached_property
    def size(self) -> int:
        """Length d of the flat vector."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def spans(self) -> Mapping[str, slice]:
        """The slice of the flat vector that each tensor owns."""
        edges = accumulate((tensor.size for tensor in self.tensors), initial=0)
        names = [tensor.name for tensor in self.tensors]
        return dict(zip(names, (slice(a, b) for a, b in pairwise(edges)), strict=True))

    @cached_property
    def digest(self) -> str:
        """A short digest of names, shapes and dtypes, equal on client and server."""
        text = json.dumps([[t.name, t.shape, t.dtype] for t in (*self.tensors, *self.buffers)])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def flatten(self, named: Mapping[str, NDArray[Any]]) -> Vector:
        """Copy the trainable tensors out of `named` into one float32 vector [d]."""
        flat = np.empty(self.size, dtype=np.float32)
        for name, span in self.spans.items():
            flat[span] = named[name].reshape(-1)
        return flat

    def unflatten(self, flat: Vector) -> dict[str, NDArray[Any]]:
        """Return views of the flat vector [d] by tensor name, in the tensors' shapes."""
        return {t.name: flat[self.spans[t.name]].reshape(t.shape) for t in self.tensors}

    @property
    def modules(self) -> list[str]:
        """The modules that own trainable tensors, in order: "classifier.0", not its weight."""
        return list(dict.fromkeys(tensor.name.rpartition(".")[0] for tensor in self.tensors))

    def block(self, modules: Sequence[str]) -> Block:
        """Return the tensors of the named modules, or with exactly this tensor name.

        `"*"` is every tensor, and an empty list no tensor. Tensors are chosen by name, not by
        position, so a block cannot separate a weight from its bias by accident.

        Raises:
            ConfigError: a name owns no trainable tensor.
        """
        wanted = set()
        for module in modules:
            hits = {
                tensor.name
                for tensor in self.tensors
                if module == "*" or tensor.name == module or tensor.name.startswith(module + ".")
            }
            if not hits:
                known = [name for name in self.modules if name] or list(self.spans)
                raise ConfigError(
                    f'no trainable module is named "{module}"{did_you_mean(module, known)}; '
                    f"this model has: {', '.join(known)}"
                )
            wanted |= hits
        spans: list[slice] = []
        for name, span in self.spans.items():
            if name not in wanted:
                continue
            if spans and spans[-1].stop == span.start:
                spans[-1] = slice(spans[-1].start, span.stop)
            else:
                spans.append(span)
        return Block(tuple(spans))

    def layers(self, *, norms_join: bool = False) -> tuple[slice, ...]:
        """Return the slices of the layers, which cover the vector: a module's weight with its bias.

        Args:
            norms_join: count a normalisation as part of the layer before it. A module is one if it
                has several tensors, all of the same one-dimensional shape (scale and offset).
        """
        edges = [0]
        for _, run in groupby(self.tensors, key=lambda tensor: tensor.name.rpartition(".")[0]):
            tensors = list(run)
            shapes = {tensor.shape for tensor in tensors}
            is_norm = len(tensors) > 1 and len(shapes) == 1 and len(tensors[0].shape) == 1
            stop = edges[-1] + sum(tensor.size for tensor in tensors)
            if norms_join and is_norm and len(edges) > 1:
                edges[-1] = stop
            else:
                edges.append(stop)
        return tuple(slice(a, b) for a, b in pairwise(edges))

    @property
    def everything(self) -> Block:
        """The block of all tensors."""
        return Block((slice(0, self.size),) if self.size else ())
