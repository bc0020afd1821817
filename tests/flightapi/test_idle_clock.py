"""The clock that ends calls of silent clients."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import partial

from flightapi.calls import IdleClock

LONG_S = 30.0


def test_a_block_that_was_left_meanwhile_is_not_ended() -> None:
    clock = IdleClock()
    ended: list[int] = []
    waits: list[AbstractContextManager[None]] = []
    looked_on = threading.Event()

    def end(number: int) -> None:
        ended.append(number)
        for wait in waits:
            wait.__exit__(None, None, None)

    try:
        # All are due before the first tick.
        waits += [clock.limit(0.1, partial(end, number)) for number in range(8)]
        for wait in waits:
            wait.__enter__()
        clock.each_tick(lambda: looked_on.set() if ended else None)
        assert looked_on.wait(LONG_S)
    finally:
        clock.close()

    assert len(ended) == 1
