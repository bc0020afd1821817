"""The clock that decides which rows are too old, while somebody sets the machine's clock."""

import pytest

from system.settled_clock import SETTLED_S, SettledClock

NOW = 1_800_000_000.0
YEAR_S = 365 * 86_400.0


class Machine:
    """A machine that booted at 0 and whose clock can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.booted_s, self.error_s = 1000.0, 0.0
        monkeypatch.setattr("time.time", lambda: NOW + self.booted_s + self.error_s)
        monkeypatch.setattr("system.settled_clock.since_boot", lambda: self.booted_s)
        self.clock = SettledClock()

    def late_s(self, after_s: float) -> float:
        """Return by how much the clock is ahead of the true time after so many seconds."""
        self.booted_s += after_s
        return self.clock.now() - NOW - self.booted_s


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_leap_forward_is_believed_after_an_hour(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    assert machine.late_s(5.0) == 0.0
    machine.error_s = YEAR_S
    assert [machine.late_s(after_s) for after_s in (8.0, SETTLED_S - 1, 1.0)] == [0.0, 0.0, YEAR_S]
    assert machine.late_s(10 * SETTLED_S) == YEAR_S
    assert [record.getMessage() for record in caplog.records] == [
        "The clock was set forward: rows expire by the former time"
    ]


def test_a_clock_that_is_set_back_again_was_never_believed(machine: Machine) -> None:
    for _ in range(3):
        machine.error_s = YEAR_S
        assert machine.late_s(SETTLED_S / 2) == 0.0
        machine.error_s = 0.0
        assert machine.late_s(SETTLED_S / 2) == 0.0


def test_a_second_leap_begins_another_hour(machine: Machine) -> None:
    machine.error_s = 600.0
    assert machine.late_s(SETTLED_S - 1) == 0.0
    machine.error_s = YEAR_S
    assert [machine.late_s(1.0), machine.late_s(SETTLED_S - 1), machine.late_s(1.0)] == [0.0, 0.0, YEAR_S]


def test_small_corrections_and_a_clock_set_back_count_at_once(machine: Machine) -> None:
    for error_s in (1.0, 59.0, 100.0, -YEAR_S, -YEAR_S + 30):
        machine.error_s = error_s
        assert machine.late_s(1.0) == error_s
