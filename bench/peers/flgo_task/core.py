"""The three classes that flgo looks for in a benchmark."""

import json
import sys
from functools import cache

import numpy as np
from flgo.benchmark.toolkits.cv.classification import (
    FromDatasetGenerator,
    FromDatasetPipe,
    GeneralCalculator,
)
from torch import Tensor

from bench.reference.pictures import deal
from bench.reference.quickstart.task import Pictures, pool
from bench.work import Work

WORK = Work(**json.loads(sys.argv[1]))


@cache
def train_data() -> Pictures:
    """Return the whole pool, of which clients have parts."""
    return Pictures(WORK, np.arange(len(pool(WORK)[1])))


class TaskGenerator(FromDatasetGenerator):
    """Deals the pictures."""

    def __init__(self) -> None:
        super().__init__(benchmark=__package__, train_data=train_data())


class TaskPipe(FromDatasetPipe):
    """Hands the pictures out."""

    class TaskDataset(FromDatasetPipe.TaskDataset):
        """Some of the pictures; newer versions of torch ask for several at once."""

        def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
            return [self[index] for index in indices]

    def __init__(self, task_path: str) -> None:
        test = Pictures(WORK, deal(WORK)[1].ravel())
        super().__init__(task_path, train_data=train_data(), test_data=test)


TaskCalculator = GeneralCalculator
