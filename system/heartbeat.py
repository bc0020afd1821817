"""How long a worker has shown no sign of life, as its arbiter sees it."""

from __future__ import annotations


class Pulse:
    """
    How long a worker has been quiet, by what this process sees of its heartbeat.

    No clock of the worker is trusted, and time in which this process did not look counts for a second at most: after
    both were stopped, the worker is not to blame.
    """

    def __init__(self, now: float) -> None:
        self.quiet_s = 0.0
        self.age_s = 0.0
        self._beat = 0.0
        self._looked_at = now

    def look(self, beat: float, now: float) -> None:
        """Take note of the heartbeat file's time."""
        passed_s = min(now - self._looked_at, 1.0)
        self._looked_at = now
        self.age_s += passed_s
        self.quiet_s = 0.0 if beat != self._beat else self.quiet_s + passed_s
        self._beat = beat
