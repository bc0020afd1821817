"""The time limits of requests."""

from dataclasses import dataclass

#: A response with a lower average rate over a whole timeout counts as silent.
MIN_BYTES_PER_S = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """
    Time limits.

    Attributes:
        connect_s: The limit for connecting, and for the whole response to any request except a query.
        silence_s: The maximum seconds until the response to a query begins. While the response arrives, the longest
            time that its average rate may stay below `MIN_BYTES_PER_S`.
    """

    connect_s: float = 10.0
    silence_s: float = 300.0


DEFAULT_TIMEOUTS = Timeouts()
