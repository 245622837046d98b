"""What a program of `bench.round` writes: a line of JSON at the end of each round."""

import json
import time
from pathlib import Path


class Log:
    """The seconds of each round, and the accuracy of the final model."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.last = Path(path), time.perf_counter()

    def begin(self) -> None:
        """The first round begins."""
        self.last = time.perf_counter()

    def end_round(self) -> None:
        """A round is over, and the next one begins."""
        now = time.perf_counter()
        self._write("seconds", now - self.last)
        self.last = now

    def accuracy(self, value: float) -> None:
        """Note the share of right answers."""
        self._write("accuracy", value)

    def _write(self, key: str, value: float) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({key: value}) + "\n")
