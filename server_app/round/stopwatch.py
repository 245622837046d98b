"""Stopwatch: the seconds of a round by phase."""

import time


class Stopwatch:
    """Measures the seconds of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Record the time since the last lap as that of `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """Return the seconds by phase and start anew."""
        taken, self.seconds = self.seconds, {}
        return taken
