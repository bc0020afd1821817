"""
The parent of the runtime's parts: it starts them, restarts those that exit or hang, and stops them in order.

The supervisor has no threads, opens no files and runs no statements. It waits for signals, including SIGCHLD, and
handles them one at a time, so nothing can interrupt it. Each part has its own session, so that Ctrl-C in a terminal
reaches only the supervisor, which stops the parts in order; Ctrl-Z is passed on. The system kills each part if the
supervisor dies.
"""

import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from system.heartbeat import HUNG_S, HangDetector, Heartbeat, is_stopped

logger = logging.getLogger(__name__)

#: Seconds until a part is restarted: the first delay, and the maximum to which the delay doubles.
FIRST_DELAY_S = 0.2
LAST_DELAY_S = 10.0

#: The delay starts over after a part has run for this many seconds.
GOOD_LIFE_S = 30.0

DAY_S = 86_400.0

#: Seconds between two checks of the parts' heartbeats.
LOOK_S = 1.0

#: Seconds between readiness checks: the first interval, and the longest one if startup takes long.
_FIRST_POLL_S = 0.02
_LAST_POLL_S = 0.5

#: The last part gets SIGTERM at least this many seconds before the shutdown timeout ends, the part before it twice as
#: early, and so on. This margin is limited to the given fraction of the timeout.
_LAST_TERM_S = 0.75
_LAST_TERM_SHARE = 0.15

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_IGNORED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU)
#: SIGALRM ends the wait for the next signal.
_HANDLED = frozenset({*_STOP, *_IGNORED, signal.SIGHUP, signal.SIGCHLD, signal.SIGTSTP, signal.SIGALRM})


class PartCommand(Struct, frozen=True, kw_only=True):
    """
    How to start a part: its name, arguments, complete environment, and inherited descriptors.

    If the part's first process exits with the code `fatal`, the runtime stops. If `heartbeat` is set to the descriptor
    of a `Heartbeat` file, the part is killed and restarted when it has not sent a heartbeat for `hung_s` seconds.
    """

    name: str
    arguments: Sequence[str]
    environ: Mapping[str, str]
    descriptors: Sequence[int] = ()
    fatal: int | None = None
    heartbeat: int | None = None
    hung_s: float = HUNG_S


class Runtime(Protocol):
    """The runtime whose parts a supervisor runs."""

    def is_ready(self) -> bool:
        """Return whether the runtime is ready. The supervisor calls this until it is."""

    def report_ready(self) -> None:
        """Report once that the runtime is ready. A failure is logged, and the runtime continues."""

    def report_alive(self) -> None:
        """Report that the supervisor is alive. Called at least every `LOOK_S` seconds, including during the stop."""

    def report_stopping(self) -> None:
        """Report that the stop has begun."""

    def remind(self) -> None:
        """Log reminders of upcoming problems. Called every 24 hours."""

    def ask_reload(self) -> None:
        """Reload the configuration. Called on SIGHUP."""

    def advance(self) -> float:
        """Perform the actions that are due. Return the seconds until the next call. Not called during a stop."""


class Part:
    """
    A part, with its process or the time of its next start.

    A part that is not restarted has an `exit_code` (as in `Popen`) once it has ended.
    """

    def __init__(self, command: PartCommand, *, is_restarted: bool = True) -> None:
        self.command = command
        self.is_restarted = is_restarted
        self.exit_code: int | None = None
        self.kill_at: float | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.due: float | None = 0.0
        self.is_terminating = False
        self.starts = 0
        self._began = 0.0
        self._delay_s = FIRST_DELAY_S
        self._heartbeat = None if command.heartbeat is None else Heartbeat(command.heartbeat)
        self._detector = self._new_detector()

    def start(self) -> None:
        """Start the process; if that fails, schedule another attempt."""
        self.due = None
        self.starts += 1
        self._began = time.monotonic()
        self._detector = self._new_detector()
        try:
            if self._heartbeat is not None:
                self._heartbeat.clear()
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
        """Schedule the next start, with a delay that doubles each time."""
        now = time.monotonic()
        if now - self._began - self._detector.silent_s >= GOOD_LIFE_S:
            self._delay_s = FIRST_DELAY_S
        logger.error(
            "A process of the runtime ended and will be restarted",
            extra={"fields": {"part": self.command.name, "reason": reason, "delay_s": self._delay_s}},
        )
        self.due = now + self._delay_s
        self._delay_s = min(LAST_DELAY_S, 2 * self._delay_s)

    def terminate(self) -> None:
        """Send SIGTERM, once."""
        if self.process is not None and not self.is_terminating:
            self.is_terminating = True
            # Do not use Popen.terminate: it may reap the process. Only `end` may do that, or the pid could be reused
            # too early.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to the process group if it exists."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def look(self, now: float) -> None:
        """Kill the processes if they do not respond, unless the part is stopping. SIGCHLD then reports their end."""
        if self.process is None or self._heartbeat is None or self.is_terminating:
            return
        stopped = is_stopped(self.process.pid)
        if self._detector.is_hung(self._heartbeat.read(), self.command.hung_s, now, is_stopped=stopped):
            # Do not call `end` here: it would wait for a process that is blocked in the kernel.
            self.send_group(signal.SIGKILL)

    def _new_detector(self) -> HangDetector:
        return HangDetector(self.command.name, time.monotonic())

    def end(self) -> int:
        """Kill the rest of the process group, and return the exit code as `Popen` does."""
        # Until it is reaped the process is at least a zombie, so its group id cannot be reused.
        self.send_group(signal.SIGKILL)
        process, self.process = self.process, None
        assert process is not None  # noqa: S101 (called for running parts only)
        return process.wait()


def poll_intervals_s() -> Iterator[float]:
    """Yield the seconds between readiness checks, increasing up to a limit."""
    pause_s = _FIRST_POLL_S
    while True:
        yield pause_s
        pause_s = min(_LAST_POLL_S, 1.03 * pause_s)


class Supervisor:
    """
    Starts *parts* in order and keeps them running until a signal stops the runtime.

    Args:
        parts: The parts to start.
        stop_order: The names of all parts. Each part gets SIGTERM when the previous one has exited, or when time runs
            short.
        shutdown_timeout_s: Seconds after the first SIGTERM until the remaining parts are killed.
    """

    def __init__(self, parts: Iterable[PartCommand], *, stop_order: Sequence[str], shutdown_timeout_s: float) -> None:
        self.parts = [Part(command) for command in parts]
        self._stop_order = stop_order
        self.shutdown_timeout_s = shutdown_timeout_s
        self._advance_s = math.inf
        self._day_ends = time.monotonic() + DAY_S
        self._was_ready = False
        self._poll_intervals_s = poll_intervals_s()
        self._stop_at: float | None = None
        self._code = 0

    def run(self, runtime: Runtime) -> int:
        """
        Serve *runtime* until a signal stops it, and return the exit code.

        The code is 0 after a requested stop, and 1 if a part could not start or a second signal cut the stop short. The
        signals stay blocked in this thread, so the caller should exit.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        # SIGCHLD may be inherited as ignored. Child exits would then not be reported.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._runtime = runtime
        try:
            while not self._has_stopped():
                if self._stop_at is None:
                    self._advance_s = runtime.advance()
                self._start_due()
                self._look()
                runtime.report_alive()
                self._report_ready()
                if time.monotonic() >= self._day_ends:
                    self._day_ends += DAY_S
                    runtime.remind()
                # Do not use sigtimedwait: if SIGSTOP and SIGCONT interrupt it past its timeout, CPython returns an
                # uninitialised structure, which may name a signal that was never sent.
                signal.setitimer(signal.ITIMER_REAL, self._pause_s())
                self._take(signal.Signals(signal.sigwaitinfo(_HANDLED).si_signo))
                self._reap()
                self._stop_next()
        finally:
            self._kill_all()
        return self._code

    def start(self, command: PartCommand) -> Part:
        """Start one more part, which is not restarted."""
        part = Part(command, is_restarted=False)
        self.parts.append(part)
        part.start()
        return part

    def retire(self, part: Part, limit_s: float) -> None:
        """End *part* for good: SIGTERM now, SIGKILL after *limit_s* seconds."""
        part.is_restarted = False
        part.kill_at = time.monotonic() + limit_s
        part.terminate()
        if part.process is None:  # The part was waiting to be restarted.
            self.kill(part)

    def kill(self, part: Part) -> None:
        """End *part* for good, immediately."""
        if part in self.parts:
            self.parts.remove(part)
            part.exit_code = 0 if part.process is None else part.end()

    def _has_stopped(self) -> bool:
        return self._stop_at is not None and all(part.process is None for part in self.parts)

    def _start_due(self) -> None:
        for part in self.parts:
            if self._stop_at is None and part.due is not None and time.monotonic() >= part.due:
                part.start()

    def _look(self) -> None:
        now = time.monotonic()
        for part in self.parts:
            part.look(now)

    def _report_ready(self) -> None:
        if self._was_ready or self._stop_at is not None:
            return
        self._was_ready = self._runtime.is_ready()
        if self._was_ready:
            try:
                self._runtime.report_ready()
            except Exception:
                logger.exception("The runtime is ready, but that could not be reported")

    def _pause_s(self) -> float:
        """Return the seconds until the next action that needs no signal."""
        now = time.monotonic()
        times = [self._day_ends, *(part.due for part in self.parts if part.due is not None)]
        times += [part.kill_at for part in self.parts if part.kill_at is not None]
        if self._stop_at is not None:
            times = [self._stop_at, *(self._terminate_by(number) for number in range(len(self._stop_order)))]
        else:
            times.append(now + self._advance_s)
            if not self._was_ready:
                times.append(now + next(self._poll_intervals_s))
        return min(at for at in (*times, now + LOOK_S) if at > now) - now

    def _take(self, number: signal.Signals) -> None:
        if number in _STOP:
            if self._stop_at is None:
                logger.info("The runtime is stopping", extra={"fields": {"signal": number.name}})
                self._begin_stop()
            else:
                logger.warning("The runtime is stopped immediately", extra={"fields": {"signal": number.name}})
                self._code = 1
                self._kill_all()
        elif number == signal.SIGHUP:
            self._runtime.ask_reload()
        elif number == signal.SIGTSTP:
            self._suspend()

    def _begin_stop(self) -> None:
        self._stop_at = time.monotonic() + self.shutdown_timeout_s
        self._runtime.report_stopping()

    def _suspend(self) -> None:
        """Suspend all parts and this process until SIGCONT, like any job of a shell (Ctrl-Z, `fg`)."""
        for part in self.parts:
            part.send_group(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for part in self.parts:
            part.send_group(signal.SIGCONT)

    def _reap(self) -> None:
        """Reap every child that has exited, and react to it."""
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                for part in self.parts:
                    if part.process is not None and part.process.pid == ended.si_pid:
                        self._has_ended(part, part.end())
                        break
                else:  # As process 1 of a container, the supervisor also inherits orphaned processes.
                    os.waitpid(ended.si_pid, 0)

    def _has_ended(self, part: Part, code: int) -> None:
        reason = reason_of(code)
        if self._stop_at is not None:
            if not part.is_terminating:
                logger.warning("A process of the runtime ended unexpectedly", extra={"fields": _fields(part, reason)})
        elif not part.is_restarted:
            self.parts.remove(part)
            part.exit_code = code
        elif part.starts == 1 and code == part.command.fatal:
            logger.critical("A process of the runtime cannot start", extra={"fields": _fields(part, reason)})
            self._code = 1
            self._begin_stop()
        else:
            part.start_later(reason)

    def _stop_next(self) -> None:
        """Terminate the parts that are due, and kill the parts whose time is up."""
        now = time.monotonic()
        if self._stop_at is not None:
            is_next = True
            for number, name in enumerate(self._stop_order):
                of_name = [part for part in self.parts if part.command.name == name]
                if is_next or now >= self._terminate_by(number):
                    for part in of_name:
                        part.terminate()
                is_next = is_next and all(part.process is None for part in of_name)
        for part in list(self.parts):
            until = min(self._stop_at or math.inf, part.kill_at or math.inf)
            if part.process is not None and now >= until:
                logger.warning(
                    "A process of the runtime did not end in time", extra={"fields": _fields(part, "killed")}
                )
                self._has_ended(part, part.end())

    def _terminate_by(self, number: int) -> float:
        """Return the latest time at which the part at index *number* of the stop order gets SIGTERM."""
        assert self._stop_at is not None  # noqa: S101 (the stop has begun)
        lead_s = min(_LAST_TERM_S, _LAST_TERM_SHARE * self.shutdown_timeout_s)
        return self._stop_at - (len(self._stop_order) - number) * lead_s

    def _kill_all(self) -> None:
        for part in self.parts:
            part.due = None
            if part.process is not None:
                part.end()


def reason_of(code: int) -> str:
    """Describe how a process with this `Popen` exit code ended."""
    if code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"


def _fields(part: Part, reason: str) -> dict[str, str]:
    return {"part": part.command.name, "reason": reason}
