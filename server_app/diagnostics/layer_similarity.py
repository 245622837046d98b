"""Linear CKA between the layers of the clients' models, on a probe batch of test samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.config import RunConfig
from common.data import OWN
from common.data.image_batches import normalise
from common.diagnostics import centred_gram, cka_matrix, layers_of, mean_of_pairs
from common.errors import DataError
from common.federated_data import dataset_of, splits_of
from common.models import FlatModel
from common.rng import stream
from common.types import ClientUpdate, Cohort, Matrix
from server_app.state.server_state import ServerState

BATCH = 256
MEMORY = 1 << 28  # bytes of the Gram matrices in memory at one time


@dataclass(frozen=True, eq=False)
class Probe:
    """The images of the probe batch, and a model that evaluates them.

    Attributes:
        flat: a model for this purpose only, which is overwritten for every client.
        images: uint8 [n, channels, height, width].
        mean: mean by channel, for normalisation.
        std: standard deviation by channel, for normalisation.
    """

    flat: FlatModel
    images: NDArray[np.uint8]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def drawn(cls, config: RunConfig, flat: FlatModel) -> "Probe":
        """Draw `diagnostics.probe` of all clients' test samples, or all if there are fewer.

        Raises:
            DataError: this process does not have the data, or there are no test samples.
        """
        if config.data.name == OWN:
            raise DataError("the pictures are the clients' own, and the server has none")
        data = dataset_of(config.data)
        splits = splits_of(config.data, config.clients, config.seed)
        pool = np.sort(np.concatenate([split.test for split in splits]))
        if not len(pool):
            raise DataError("the clients have no test samples (data.test-fraction)")
        rng = stream(config.seed, "probe")
        count = min(config.diagnostics.probe, len(pool))
        chosen = np.sort(rng.choice(pool, count, replace=False))
        return cls(flat, np.ascontiguousarray(data.images[chosen]), data.mean, data.std)

    def grams(
        self, before: ServerState[Any], update: ClientUpdate, modules: Sequence[str]
    ) -> dict[str, Matrix]:
        """Return the centred Gram matrices [n, n] of the outputs of a client's modules."""
        self.flat.load(before.weights - update.delta, update.buffers)
        return {name: centred_gram(rows) for name, rows in self.outputs(modules).items()}

    @torch.inference_mode()
    def outputs(self, modules: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the modules' flattened outputs for the images [n, p], without dropout."""
        model = self.flat.model.eval()
        kept: dict[str, list[NDArray[Any]]] = {name: [] for name in modules}

        def keep(name: str, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            kept[name].append(output.flatten(1).cpu().numpy())

        handles = [
            model.get_submodule(name).register_forward_hook(partial(keep, name)) for name in modules
        ]
        try:
            for start in range(0, len(self.images), BATCH):
                pixels = torch.from_numpy(self.images[start : start + BATCH])
                model(normalise(pixels.to(self.flat.device), self.mean, self.std))
        finally:
            for handle in handles:
                handle.remove()
        return {name: np.concatenate(rows) for name, rows in kept.items()}


def similarities(probe: Probe, before: ServerState[Any], cohort: Cohort) -> dict[str, Any]:
    """Return the linear CKA between the clients' models after training, layer by layer.

    A layer is a module with trainable tensors, and CKA compares its outputs. The value is None for
    a single client, and for outputs that do not depend on the image. MEMORY bounds the number of
    layers per pass through the models.

    Args:
        probe: the probe batch.
        before: the state whose weights the clients received.
        cohort: their updates.
    """
    layers: dict[str, Mapping[str, Any]] = {}
    modules = list(layers_of(probe.flat.layout))
    size = max(1, MEMORY // (8 * len(probe.images) ** 2 * len(cohort.updates)))
    for start in range(0, len(modules), size):
        group = modules[start : start + size]
        grams = [probe.grams(before, update, group) for update in cohort.updates]
        for name in group:
            matrix = cka_matrix([gram[name] for gram in grams])
            layers[name] = {"mean": mean_of_pairs(matrix), "matrix": matrix}
    return {"examples": len(probe.images), "layers": layers}
