"""
The parent of the runtime's parts: it starts them, starts again what ends, and stops them in order.

It has no threads, opens nothing and runs no statement: it waits for signals, a child's end among them, and takes them
one by one, so nothing can interrupt what it does. Each part is a session of its own, so that Ctrl-C in a terminal
reaches the supervisor only and the stop has its order; Ctrl-Z is passed on. Each part has the system kill it when the
supervisor ends.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

logger = logging.getLogger(__name__)

#: Seconds until a part that ended is started again: the first, doubled each time up to the last.
FIRST_DELAY_S = 0.2
LAST_DELAY_S = 10.0

#: A part that has lived so many seconds is started again as if for the first time.
GOOD_LIFE_S = 30.0

#: Seconds between two questions whether the runtime is ready, until it is: at first, and at last when it takes long.
_FIRST_LOOK_S = 0.02
_LAST_LOOK_S = 0.5

#: Seconds before the end of the stop when the last part is told at the latest, the one before it twice as early, and
#: so on; but at most this share of all the time.
_LAST_TELL_S = 0.75
_LAST_TELL_SHARE = 0.15

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_NOTHING = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU)
#: SIGALRM says that the time to wait is over.
_TAKEN = frozenset({*_STOP, *_NOTHING, signal.SIGHUP, signal.SIGCHLD, signal.SIGTSTP, signal.SIGALRM})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCommand:
    """
    How to start a part: its name, its arguments, its whole environment, and the descriptors it inherits.

    When its very first process ends with the code `fatal`, the runtime ends too.
    """

    name: str
    arguments: Sequence[str]
    environ: Mapping[str, str]
    descriptors: Sequence[int] = ()
    fatal: int | None = None


class _Part:
    """A part with its process, if it has one now, and the time of its next start, if it has none."""

    def __init__(self, command: PartCommand) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.due: float | None = 0.0
        self.told = False
        self._starts = 0
        self._began = 0.0
        self._delay_s = FIRST_DELAY_S

    @property
    def is_first(self) -> bool:
        """Whether it was started once only."""
        return self._starts == 1

    def start(self) -> None:
        """Start the process; when the system cannot, another try is due later."""
        self.due = None
        self._starts += 1
        self._began = time.monotonic()
        try:
            self.process = subprocess.Popen(  # noqa: S603 (our own program)
                self.command.arguments,
                env=self.command.environ,
                pass_fds=self.command.descriptors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self.start_later(error.strerror or "the system refuses it")

    def start_later(self, reason: str) -> None:
        """Have the next start wait, the longer the more often the part has ended."""
        now = time.monotonic()
        if now - self._began >= GOOD_LIFE_S:
            self._delay_s = FIRST_DELAY_S
        logger.error(
            "A part of the runtime ended; it is started again",
            extra={"fields": {"part": self.command.name, "reason": reason, "delay_s": self._delay_s}},
        )
        self.due = now + self._delay_s
        self._delay_s = min(LAST_DELAY_S, 2 * self._delay_s)

    def tell(self) -> None:
        """Ask the process to end in its own time."""
        if self.process is not None and not self.told:
            self.told = True
            # Not Popen's own way, which waits for a process that has ended: only `end` may, or a pid is another's.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and to those it started, if they run."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def end(self) -> int:
        """Kill what is left of the process and of those it started, and return its code, as `Popen` gives it."""
        # The process is a zombie at least until it is waited for, so its group cannot be another's.
        self.send_group(signal.SIGKILL)
        process, self.process = self.process, None
        assert process is not None  # noqa: S101 (it is asked for running parts only)
        return process.wait()


def looks_s() -> Iterator[float]:
    """Yield the seconds between each look whether the runtime is ready and the next: ever more, up to a limit."""
    pause_s = _FIRST_LOOK_S
    while True:
        yield pause_s
        pause_s = min(_LAST_LOOK_S, 1.1 * pause_s)


class Supervisor:
    """
    Starts *parts* in their order and keeps them running until it is told to stop.

    Args:
        parts: What to start.
        stop_order: The names of all parts: each is told to stop when the one before has ended, or time grows short.
        shutdown_timeout_s: Seconds after the first SIGTERM when whatever still runs is killed.
        is_ready: Says whether the runtime is ready; asked until it says so once.
        on_ready: Called then. Its failure is logged and ends nothing.
    """

    def __init__(
        self,
        parts: Sequence[PartCommand],
        *,
        stop_order: Sequence[str],
        shutdown_timeout_s: float,
        is_ready: Callable[[], bool],
        on_ready: Callable[[], None],
    ) -> None:
        self._parts = {command.name: _Part(command) for command in parts}
        self._stop_order = stop_order
        self._shutdown_timeout_s = shutdown_timeout_s
        self._is_ready = is_ready
        self._on_ready = on_ready
        self._was_ready = False
        self._looks_s = looks_s()
        self._stop_at: float | None = None
        self._code = 0

    def run(self) -> int:
        """
        Serve until a signal says to stop, and return the exit code.

        It is 0 after a stop that was asked for, 1 when a part could not start or a second signal cut the stop short.
        The signals stay blocked in this thread: the caller is to exit.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
        # Whoever ignores it never learns of a child's end, and this is inherited.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            while not self._has_stopped():
                self._start_due()
                self._say_when_ready()
                # Not sigtimedwait: when SIGSTOP and SIGCONT interrupt it and its time is over by then, CPython returns
                # a structure that nobody filled in, and so a signal that nobody sent.
                signal.setitimer(signal.ITIMER_REAL, self._pause_s())
                self._take(signal.Signals(signal.sigwaitinfo(_TAKEN).si_signo))
                self._reap()
                self._stop_next()
        finally:
            self._kill_all()
        return self._code

    def _has_stopped(self) -> bool:
        return self._stop_at is not None and all(part.process is None for part in self._parts.values())

    def _start_due(self) -> None:
        for part in self._parts.values():
            if self._stop_at is None and part.due is not None and time.monotonic() >= part.due:
                part.start()

    def _say_when_ready(self) -> None:
        if self._was_ready or self._stop_at is not None:
            return
        self._was_ready = self._is_ready()
        if self._was_ready:
            try:
                self._on_ready()
            except Exception:
                logger.exception("The runtime is ready, which could not be said")

    def _pause_s(self) -> float:
        """Return how long nothing but a signal can make a difference."""
        now = time.monotonic()
        times = [part.due for part in self._parts.values() if part.due is not None]
        if self._stop_at is not None:
            times = [self._stop_at, *(self._tell_by(number) for number in range(len(self._stop_order)))]
        elif not self._was_ready:
            times.append(now + next(self._looks_s))
        return min((at for at in times if at > now), default=now + 3600.0) - now

    def _take(self, number: signal.Signals) -> None:
        if number in _STOP:
            if self._stop_at is None:
                logger.info("The runtime stops", extra={"fields": {"signal": number.name}})
                self._begin_stop()
            else:
                logger.warning("The runtime ends at once", extra={"fields": {"signal": number.name}})
                self._code = 1
                self._kill_all()
        elif number == signal.SIGHUP:
            logger.info("SIGHUP changes nothing: the YAML is read at startup only. Restart to apply a change.")
        elif number == signal.SIGTSTP:
            self._suspend()

    def _suspend(self) -> None:
        """Stop all parts and this process, and go on with SIGCONT, as any job of a shell does (Ctrl-Z, `fg`)."""
        for part in self._parts.values():
            part.send_group(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for part in self._parts.values():
            part.send_group(signal.SIGCONT)

    def _begin_stop(self) -> None:
        self._stop_at = time.monotonic() + self._shutdown_timeout_s

    def _reap(self) -> None:
        """Take note of every child that has ended, and decide what that means."""
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                part = self._part_of(ended.si_pid)
                if part is None:
                    # Process 1 of a container inherits the children of others.
                    os.waitpid(ended.si_pid, 0)
                else:
                    self._has_ended(part, part.end())

    def _part_of(self, pid: int) -> _Part | None:
        parts = self._parts.values()
        return next((part for part in parts if part.process is not None and part.process.pid == pid), None)

    def _has_ended(self, part: _Part, code: int) -> None:
        reason = _reason(code)
        if self._stop_at is not None:
            if not part.told:
                logger.warning("A part of the runtime ended by itself", extra={"fields": _fields(part, reason)})
        elif part.is_first and code == part.command.fatal:
            logger.critical("A part of the runtime cannot start", extra={"fields": _fields(part, reason)})
            self._code = 1
            self._begin_stop()
        else:
            part.start_later(reason)

    def _stop_next(self) -> None:
        """Tell each part whose turn it is to stop, and kill what is left when time is up."""
        if self._stop_at is None:
            return
        now = time.monotonic()
        its_turn = True
        for number, part in enumerate(map(self._parts.__getitem__, self._stop_order)):
            if its_turn or now >= self._tell_by(number):
                part.tell()
            its_turn = its_turn and part.process is None
            if part.process is not None and now >= self._stop_at:
                logger.warning("A part of the runtime did not end in time", extra={"fields": _fields(part, "killed")})
                part.end()

    def _tell_by(self, number: int) -> float:
        """Return when the part that is stopped as *number* is told, whatever the ones before do."""
        assert self._stop_at is not None  # noqa: S101 (the stop has begun)
        lead_s = min(_LAST_TELL_S, _LAST_TELL_SHARE * self._shutdown_timeout_s)
        return self._stop_at - (len(self._stop_order) - number) * lead_s

    def _kill_all(self) -> None:
        for part in self._parts.values():
            part.due = None
            if part.process is not None:
                part.end()


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"


def _fields(part: _Part, reason: str) -> dict[str, str]:
    return {"part": part.command.name, "reason": reason}
