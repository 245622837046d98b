"""ServerModel: the server's state, and its model as the ArrayRecord that goes out."""

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord

from common.layout import Layout
from common.methods import Method
from common.types import Vector
from common.wire.arrays import Codec, NamedCodec
from server_app.state.server_state import ServerState, evaluated_weights

StoreState = Callable[[ServerState[Any]], ServerState[Any]]


class ServerModel:
    """The state between rounds, in sync with the arrays that Flower's hooks pass around.

    Args:
        method: the method with its settings.
        server_lr: server learning rate.
        codec: how the model travels, or None to derive it from the first model.
        buffers: names of arrays that are not trained, see `NamedCodec.of`.
        store_state: returns an equal state that replaces each new state.
    """

    def __init__(
        self,
        method: Method[Any],
        server_lr: float,
        codec: Codec | None,
        buffers: tuple[str, ...] | None,
        store_state: StoreState | None,
    ) -> None:
        self.method, self.server_lr = method, server_lr
        self.codec, self.buffers = codec, buffers
        self._store_state = store_state or (lambda state: state)
        self.state: ServerState[Any] | None = None
        self.packed: ArrayRecord | None = None  # the model in `state`

    @property
    def current_state(self) -> ServerState[Any]:
        """The state, which exists from the first `load` on."""
        assert self.state is not None, "no model is loaded yet"
        return self.state

    @property
    def current_codec(self) -> Codec:
        """The codec, which exists from the first `load` on."""
        assert self.codec is not None, "no model is loaded yet"
        return self.codec

    @property
    def layout(self) -> Layout:
        """The layout of the model."""
        return self.current_codec.layout

    @property
    def evaluated_weights(self) -> Vector:
        """The weights to evaluate and to save [d]."""
        return evaluated_weights(self.current_state, self.method, self.server_lr)

    def load(self, arrays: ArrayRecord) -> ServerState[Any]:
        """Return the state whose model is `arrays`.

        The caller of the hooks may have changed the model since the last round. A state restored
        from a checkpoint takes the place of the first model.
        """
        codec: Codec = self.codec or NamedCodec.of(arrays, self.buffers)
        self.codec = codec
        if self.state is not None and self.packed is None:  # restored from a checkpoint
            self.state = self._store_state(self.state)
            self.packed = codec.pack(self.state.weights, self.state.buffers)
        elif self.state is None or arrays is not self.packed:
            weights, buffers = codec.unpack(arrays)
            before = self.state or ServerState.first(codec.layout, weights, buffers, self.method)
            self.state = ServerState(before.round, weights, buffers, before.method)
            self.packed = arrays
        return self.state

    def load_to_evaluate(self, arrays: ArrayRecord) -> ArrayRecord:
        """Load a model. Return the one to evaluate, which is another one for some methods."""
        state, weights = self.load(arrays), self.evaluated_weights
        if weights is state.weights:
            return arrays
        return self.current_codec.pack(weights, state.buffers)

    def store(self, state: ServerState[Any]) -> None:
        """Replace the state by that of a new round; `pack` has to follow."""
        self.state = self._store_state(state)

    def pack(self) -> ArrayRecord:
        """Return the model of the state as it goes out."""
        self.packed = self.current_codec.pack(
            self.current_state.weights, self.current_state.buffers
        )
        return self.packed
