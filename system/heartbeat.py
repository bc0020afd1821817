"""The time since the last heartbeat of a worker, as its arbiter measures it."""


class Pulse:
    """
    The silence of a worker, measured by changes of its heartbeat.

    The worker's clock is not used. The time between two looks counts as one second at most: if the arbiter did not
    run, the worker is not to blame.
    """

    def __init__(self, now: float) -> None:
        self.quiet_s = 0.0
        self.age_s = 0.0
        self._beat = 0.0
        self._looked_at = now

    def look(self, beat: float, now: float) -> None:
        """Record *beat*, the time of the heartbeat file."""
        passed_s = min(now - self._looked_at, 1.0)
        self._looked_at = now
        self.age_s += passed_s
        self.quiet_s = 0.0 if beat != self._beat else self.quiet_s + passed_s
        self._beat = beat
