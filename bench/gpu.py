"""The trainer's step compared with a hand-written loop for the same model, on one device.

    python -m bench.gpu [--device cuda] [--model cnn] [--batch 50] [--steps 40] [--repeats 7]

The loop has all images on the device, normalised. It only runs the step: choose a batch, forward,
backward, torch.optim.SGD. It never reads the loss. It runs in both memory formats, and the better
time of a precision counts. The trainer is what clients run, from the order of
an epoch to its summary. All run in one process, which keeps freed memory, one after another, all of
them once before any runs again. Where there is no GPU, `--device cpu` shows the same ratio on one
thread.
"""

import argparse
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch.nn.functional import cross_entropy

from bench.command import add_json, at_least, carry_out, keep, print_tables
from client_app.device import why_no_gpu
from client_app.trainer import train
from common.config import MODEL_NAMES
from common.config_groups import TrainConfig
from common.data import Dataset, image_batches
from common.data.image_batches import normalise
from common.malloc import keep_freed_memory
from common.methods import LocalRule
from common.models import FlatModel, build

SHAPE, CLASSES, LR = (3, 32, 32), 10, 0.05
FORMATS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
LEGEND = "medians; of the loop's: of the faster loop with the same precision"
Epoch = Callable[[int], object]  # of this number
Timed = tuple[str, Epoch]  # and its precision


def drawn(count: int) -> Dataset:
    """Return a data set of random images."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    names = tuple(map(str, range(CLASSES)))
    labels = rng.integers(0, CLASSES, count)
    return Dataset("drawn", images, labels, names, count, (0.5,) * 3, (0.25,) * 3)


def by_hand(
    data: Dataset, model: str, device: str, batch: int, precision: str, order: torch.memory_format
) -> Epoch:
    """Return an epoch of the hand-written loop."""
    pixels = normalise(torch.from_numpy(data.images), data.mean, data.std).to(device)
    pixels, labels = pixels.to(memory_format=order), torch.from_numpy(data.labels).to(device)
    net = build(model, SHAPE, CLASSES, seed=0).to(device, memory_format=order).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)

    def mixed() -> AbstractContextManager[Any]:
        is_mixed = precision == "bfloat16"
        return torch.autocast(device, torch.bfloat16) if is_mixed else nullcontext()

    def epoch(_: int) -> None:
        for chosen in torch.randperm(len(labels), device=device).split(batch):
            optimiser.zero_grad()
            with mixed():
                loss = cross_entropy(net(pixels[chosen]), labels[chosen])
            loss.backward()
            optimiser.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return epoch


def ours(data: Dataset, model: str, device: str, plan: TrainConfig) -> Epoch:
    """Return an epoch of the trainer, as a client runs it."""
    flat = FlatModel(build(model, SHAPE, CLASSES, seed=0), device)
    everything = np.arange(len(data))
    return lambda number: train(
        flat, data, everything, plan, LocalRule(), lr=LR, seed=1, path=(number, "0")
    )


def away(epoch: Epoch) -> Epoch:
    """Return the epoch for a data set that does not fit on the device."""

    def without_room(number: int) -> None:
        share, image_batches.RESIDENT_SHARE = image_batches.RESIDENT_SHARE, 0.0
        epoch(number)
        image_batches.RESIDENT_SHARE = share

    return without_room


def rows(data: Dataset, model: str, device: str, batch: int) -> dict[str, Timed]:
    """Return each row's precision and epoch by its name; the loop's rows come first."""
    found: dict[str, Timed] = {}
    for precision in ("float32", "bfloat16"):
        hand = partial(by_hand, data, model, device, batch, precision)
        for name, order in FORMATS.items():
            found[f"loop, {precision}, {name}"] = precision, hand(order)
    for precision in ("float32", "bfloat16"):
        plan = TrainConfig(batch_size=batch, lr=LR, device=device, precision=precision)
        found[f"trainer, {precision}"] = precision, ours(data, model, device, plan)
        if device == "cuda":
            graph = ours(data, model, device, replace(plan, cuda_graph=True))
            found[f"trainer, {precision}, CUDA graph"] = precision, graph
            host = away(ours(replace(data), model, device, plan))
            found[f"trainer, {precision}, pictures from the host"] = precision, host
    return found


Times = Mapping[str, list[float]]  # seconds of the epochs of each row


def measure(epochs: Mapping[str, Timed], repeats: int, times: Times) -> None:
    """Run all epochs `repeats` times, after one warm-up."""
    for number in range(repeats + 1):
        for name, (_, epoch) in epochs.items():
            begin = time.perf_counter()
            epoch(number)
            if number:
                times[name].append(time.perf_counter() - begin)


def compared(epochs: Mapping[str, Timed], times: Times, steps: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of a step and how they compare to the loop's of that precision."""
    each = {name: [1e3 * took / steps for took in all_] for name, all_ in times.items() if all_}
    middle = {name: median(all_) for name, all_ in each.items()}
    best = {
        precision: min(middle[n] for n, (p, _) in epochs.items() if p == precision and "loop" in n)
        for precision in {epochs[name][0] for name in each}
    }
    return {
        name: {"ms": middle[name], "least": min(all_), "most": max(all_), "times": len(all_),
               "ratio": middle[name] / best[epochs[name][0]]}
        for name, all_ in each.items()
    }  # fmt: skip


def show(
    given: argparse.Namespace, table: Mapping[str, Mapping[str, float]], why: str | None
) -> None:
    """Print the table and write the file."""
    card = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor()
    shown = Table(title=f"{given.model}, batches of {given.batch}, on {card or given.device}")
    for title in ("", "ms a step", "range", "epochs", "of the loop's"):
        shown.add_column(title, justify="right" if title else "left")
    for name, row in table.items():
        spread = f"{row['least']:.2f}-{row['most']:.2f}"
        shown.add_row(name, f"{row['ms']:.2f}", spread, f"{row['times']}", f"{row['ratio']:.2f}")
    print_tables([shown], LEGEND)
    about = {"card": card, **{name: getattr(given, name) for name in ("device", "model", "batch")}}
    keep(given.json, why, about, rows=table)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", choices=MODEL_NAMES, default="cnn")
    parser.add_argument("--batch", type=at_least(1), default=50, help="pictures of a step")
    parser.add_argument("--steps", type=at_least(1), default=40, help="of an epoch")
    parser.add_argument("--repeats", type=at_least(1), default=7, help="epochs that count")
    add_json(parser)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"nothing measured: {why_no_gpu()}; --device cpu shows the ratio on a CPU")
    keep_freed_memory()
    torch.set_num_threads(1)
    epochs: dict[str, Timed] = {}
    times: dict[str, list[float]] = defaultdict(list)

    def measured(_: Path) -> None:
        data = drawn(given.batch * given.steps)
        epochs.update(rows(data, given.model, given.device, given.batch))
        measure(epochs, given.repeats, times)

    carry_out(measured, lambda why: show(given, compared(epochs, times, given.steps), why))


if __name__ == "__main__":
    main()
