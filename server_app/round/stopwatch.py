"""Where the seconds of a round go."""

import time


class Stopwatch:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap for `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """Return and forget what was counted."""
        taken, self.seconds = self.seconds, {}
        return taken
