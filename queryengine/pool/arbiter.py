"""
The engine process: gunicorn's arbiter for the engine workers, with the broker in its loop.

It differs from gunicorn's arbiter in five ways. While it waits for signals, it serves the broker. The exit of a worker
never ends the arbiter. Respawning is rate-limited. Workers are killed if their heartbeat files show that they are
stuck. SIGTERM lets statements finish. The arbiter has no threads and opens no DuckDB instance, so forking is safe and
fast.

It uses only gunicorn names without a leading underscore. `test_gunicorn_worker` fails if an upgrade moves one of them.
"""

import contextlib
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

import runtimeconf.state
import telemetry.state
from queryengine.backends import companion_of
from queryengine.gate.macros import macros
from queryengine.manifest import REPLACED_NAME
from queryengine.pool import gunicorn_worker
from queryengine.pool.broker import BROKER_SOCKET, Broker
from queryengine.pool.slots import ENGINE_SOCKET
from queryengine.pool.worker import WorkerState, read_state
from runtimeconf.model import RuntimeConfig
from system import sandbox
from system.errors import StateDirectoryError
from system.heartbeat import Pulse, is_stopped
from system.lock import ENGINE_LOCK_NAME, PREDECESSOR_WAIT_S, StateLock
from system.memory import out_of_memory_kills
from system.process_limits import share_what_is_loaded
from system.state_directory import file_id
from telemetry.events import Cause, WorkerLostEvent

logger = logging.getLogger(__name__)

#: Seconds between checks of the workers. They are more frequent while a worker boots, so that it soon counts as alive.
CHECK_S = 0.5
BOOTING_CHECK_S = 0.1
#: A busy worker ends itself at its deadline. If it has not ended this many seconds later, it is killed.
OVERDUE_S = 2.0
#: An idle worker without a heartbeat for `QUIET_S` does not count as alive, and is killed after `STUCK_S`. So is any
#: worker that has been stopped by a signal for `STUCK_S`.
QUIET_S = 3.0
STUCK_S = 5.0
#: A worker that has not booted after this time is killed. The time is long because some machines are slow.
BOOT_S = 60.0
#: Seconds that `kill_if` waits for SIGSTOP to take effect. If it has no effect, the process is not doing anything else.
HALT_S = 0.1
#: Statements are stopped this long before the end of the shutdown timeout, so that their callers get a response.
STOP_MARGIN_S = 2.0
#: Seconds for stopped statements and idle workers to end, and seconds for workers to end after stopped statements.
END_S = 1.5
LAST_END_S = 0.25
#: Seconds between new workers, after a burst of `SPAWNS_AT_ONCE` times the number of workers.
SPAWN_INTERVAL_S = 0.5
SPAWNS_AT_ONCE = 2
#: With a cluster, where a statement may run for minutes, the number of slots reserved for previously short statements.
RESERVED_SLOTS = 2
#: The exit code of an engine whose sockets are gone.
SOCKETS_GONE = 1


class Respawns:
    """A token bucket for new workers. It holds up to *burst* tokens and gains one every `SPAWN_INTERVAL_S`."""

    def __init__(self, burst: int) -> None:
        self._full_s = burst * SPAWN_INTERVAL_S
        self._empty_at = -math.inf  # The bucket has one token for each interval since this time.

    def take(self, now: float) -> bool:
        """Take a token. Return False if there is none."""
        empty_at = max(self._empty_at, now - self._full_s) + SPAWN_INTERVAL_S
        if empty_at > now:
            return False
        self._empty_at = empty_at
        return True

    def give_back(self) -> None:
        """Return a token, after a worker has ended normally."""
        self._empty_at -= SPAWN_INTERVAL_S


class EngineArbiter(Arbiter):
    """gunicorn's arbiter, with the broker."""

    LISTENERS: list[Any]
    WORKERS: dict[int, Any]
    _broker: Broker

    def __init__(self, app: "EngineApplication", beat: Callable[[], None] = lambda: None) -> None:
        self._beat = beat
        self._config = app.config
        self._several_keys = app.several_keys
        self._lock = StateLock(self._config.engine_dir, ENGINE_LOCK_NAME)
        self._pulses: dict[int, Pulse] = {}
        self._halts: dict[int, Pulse] = {}
        self._unfit: set[int] = set()  # the workers that had no engine when they were last idle
        self._killed = 0
        self._causes: dict[int, Cause] = {}  # of the workers that this process has killed
        self._out_of_memory_kills = out_of_memory_kills()
        self._drain_until: float | None = None
        self._statements_ended_at: float | None = None
        self._slots_checked_at = 0.0
        self._socket = self._config.engine_dir / ENGINE_SOCKET
        self._companion = companion_of(self._config)
        super().__init__(app)
        self._respawns = Respawns(SPAWNS_AT_ONCE * self.num_workers)

    # The loop.

    def start(self) -> None:
        """
        Bind both sockets.

        Raises:
            StateDirectoryError: Another engine uses this state directory.
        """
        self._config.engine_dir.mkdir(mode=0o700, exist_ok=True)
        if not self._lock.acquire(PREDECESSOR_WAIT_S):
            raise StateDirectoryError(
                f"The engine of this state directory is {self._lock.holder()}: stop that runtime first, or set another "
                "state_dir."
            )
        (self._config.engine_dir / REPLACED_NAME).unlink(missing_ok=True)  # of a runtime that has ended
        if self._companion is not None:
            self._companion.take_over(self._config.engine_dir)
        super().start()
        self._socket_id = file_id(self._socket)
        self._broker = Broker(
            self._config.engine_dir / BROKER_SOCKET,
            self._config.query,
            several_keys=self._several_keys,
            kill=self._kill_runner,
            reserved=0 if self._companion is None else min(RESERVED_SLOTS, self._config.query.workers // 2),
        )
        # gunicorn's handler only queues a signal. The byte that Python writes to this socket ends the broker's wait.
        self._woken, self._wakes = socket.socketpair()
        for end in (self._woken, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        self._broker.watch(self._woken.fileno())

    def wait_for_signals(self, timeout: float = 1.0) -> list[int]:
        """Send a heartbeat, and serve the broker until a signal arrives or it is time to check the workers."""
        self._beat()
        booting = any(read_state(worker.tmp.fileno()).phase == "booting" for worker in self.WORKERS.values())
        missing = len(self.WORKERS) < self.num_workers
        until = time.monotonic() + (BOOTING_CHECK_S if booting or missing else CHECK_S)
        while not (signals := list(super().wait_for_signals(timeout=0))):
            left_s = until - time.monotonic()
            if left_s <= 0 or (self._drain_until is not None and self._broker.is_idle):
                break
            self._broker.poll(left_s)
        return signals

    # Signals.

    def handle_hup(self) -> None:
        """Log that SIGHUP does not reload the configuration."""
        logger.info("SIGHUP has no effect here: run querykeep reload to apply a changed configuration")

    def _ignore(self) -> None:
        """Do nothing. The configuration sets the number of workers, and there is no log file or in-place upgrade."""

    handle_ttin = handle_ttou = handle_usr1 = handle_usr2 = handle_winch = _ignore

    def handle_term(self) -> None:
        """Refuse new statements, and stop when the running ones have ended."""
        if self._drain_until is not None:
            return
        whole_s = self._config.shutdown_timeout_s
        self._drain_until = time.monotonic() + max(whole_s - STOP_MARGIN_S, whole_s / 2)
        self._broker.drain()

    def _drain(self, now: float, until: float) -> None:
        """Stop once no statement is running. End the remaining statements when the time is up."""
        if self._statements_ended_at is None and now >= until:
            self._statements_ended_at = now
            self._broker.end_statements()
        if self._broker.is_idle or (self._statements_ended_at is not None and now >= self._statements_ended_at + END_S):
            raise StopIteration

    # Workers.

    def murder_workers(self) -> None:
        """Check every worker, kill those that are stuck, report the status to the clients, and advance a shutdown."""
        now = time.monotonic()
        if self._companion is not None and self.LISTENERS:
            self._companion.ensure(now)
        alive = 0
        running = set()
        any_idle = False
        for pid, worker in list(self.WORKERS.items()):
            if pid in self._causes:  # killed, and not yet reaped
                continue
            state, pulse = read_state(worker.tmp.fileno()), self._pulses.setdefault(pid, Pulse(now))
            pulse.look(worker.tmp.last_update(), now)
            # A busy worker sends no heartbeat, so this second pulse stops only while a signal has stopped the worker.
            halt = self._halts.setdefault(pid, Pulse(now))
            halt.look(-1.0 if is_stopped(pid) else now, now)
            is_stuck = partial(_is_stuck, pulse=pulse, halt=halt, now=now)
            if is_stuck(state) and kill_if(pid, worker.tmp.fileno(), is_stuck):
                self._causes[pid] = "time" if state.phase == "busy" and now >= state.deadline + OVERDUE_S else "stuck"
                logger.warning("engine worker was stuck and is killed", extra={"fields": {"pid": pid, **_shown(state)}})
            elif state.phase == "busy":
                running.add(state.query_id)
                alive += can_answer(state, pid, self._unfit)
            elif state.phase in ("idle", "unfit") and pulse.quiet_s < QUIET_S:
                any_idle = True
                alive += can_answer(state, pid, self._unfit)
        self._unfit &= self.WORKERS.keys()
        self._broker.report(alive=alive, killed=self._killed, busy=len(running))
        telemetry.state.flush()
        if now - self._slots_checked_at >= 1.0:
            self._slots_checked_at = now
            self._halt_if_unreachable()
            self._broker.free_unused(running, any_idle=any_idle)
        if self._drain_until is not None:
            self._drain(now, self._drain_until)

    def _halt_if_unreachable(self) -> None:
        """
        End an engine that clients can no longer reach, so that the supervisor starts another.

        This is the case if a socket's path no longer refers to the socket, for example after temporary files were
        cleaned up, or if another process has the lock.
        """
        if self._drain_until is None and not (self._broker.is_reachable and self._is_reachable and self._lock.keep()):
            logger.error("the engine is exiting: its sockets are gone from the state directory")
            raise HaltServer("the sockets are gone", SOCKETS_GONE)

    @property
    def _is_reachable(self) -> bool:
        return file_id(self._socket) == self._socket_id

    def _kill_runner(self, query_id: str) -> None:
        """Kill the worker that runs the statement *query_id*, at the request of its client."""
        for pid, worker in list(self.WORKERS.items()):
            if pid not in self._causes and kill_if(pid, worker.tmp.fileno(), lambda state: state.runs(query_id)):
                self._causes[pid] = "request"
                fields = {"pid": pid, "query_id": query_id}
                logger.warning("engine worker killed at the request of its client", extra={"fields": fields})

    def reap_workers(self) -> None:
        """Record the workers that have ended. Unlike in gunicorn, no exit code ends the arbiter."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self._companion is not None and self._companion.has_ended(pid):
                continue
            worker = self.WORKERS.pop(pid, None)
            if worker is None:  # an orphan, if this is the first process of a container
                continue
            self._pulses.pop(pid, None)
            self._halts.pop(pid, None)
            code = os.waitstatus_to_exitcode(status)
            state = read_state(worker.tmp.fileno())
            if code == 0 and state.phase != "booting":
                self._respawns.give_back()  # It served until it was worn out, which does not indicate a crash loop.
            cause = self._causes.pop(pid, None) or self._cause_of(code)
            if code != 0 and self.LISTENERS:  # without listeners the engine is stopping
                self._killed += 1
                telemetry.state.send(WorkerLostEvent(cause, code, state.query_id))
                fields = {"pid": pid, "exit": code, **_shown(state)}
                logger.warning("engine worker ended", extra={"fields": fields})
            if self._companion is not None and state.phase == "busy":
                self._companion.lost(state.query_id)
            worker.tmp.close()

    def _cause_of(self, code: int) -> Cause:
        """Return why a worker ended if this process did not kill it."""
        if code == -signal.SIGALRM:
            return "time"
        if code == -signal.SIGKILL:
            before, self._out_of_memory_kills = self._out_of_memory_kills, out_of_memory_kills()
            return "memory" if self._out_of_memory_kills > before else "signal"
        return "signal" if code < 0 else "exit"

    def manage_workers(self) -> None:
        """Start the missing workers, as fast as `Respawns` permits."""
        while len(self.WORKERS) < self.num_workers and self._respawns.take(time.monotonic()):
            try:
                self.spawn_worker()
            except OSError as error:  # no process, descriptor or space for its heartbeat file; retried later
                # gunicorn sets the umask for its sockets, and because of the error it did not restore the previous one.
                # With this umask, a later worker would create directories that it cannot enter.
                os.umask(gunicorn_worker.PRIVATE_UMASK)
                logger.error(  # noqa: TRY400 - a traceback adds nothing to the system's message
                    "an engine worker could not be started", extra={"fields": {"error": error.strerror}}
                )
                return

    def spawn_worker(self) -> int:
        """Fork a worker. In the worker, this does not return, because the calling code belongs to the arbiter."""
        try:
            pid: int = super().spawn_worker()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1)
        return pid

    def close_in_worker(self) -> None:
        """Close the arbiter's resources in a worker that was just forked."""
        signal.set_wakeup_fd(-1)
        self._woken.close()
        self._wakes.close()
        self._broker.close_inherited()
        telemetry.state.forget()
        if self._companion is not None:
            self._companion.close_inherited()

    # The end.

    def stop(self, graceful: bool = True) -> None:
        """End the workers and close both sockets. No statement is given time to finish."""
        if not self.LISTENERS:  # gunicorn calls this twice after SIGINT
            return
        is_ours = self._is_reachable
        for listener in self.LISTENERS:
            listener.close()
        if is_ours:
            with contextlib.suppress(OSError):
                self._socket.unlink()
        self.LISTENERS = []
        if graceful:
            self.kill_workers(signal.SIGTERM)
            # If the drain ran out of time, the workers have already had time to end their statements.
            until = time.monotonic() + (END_S if self._statements_ended_at is None else LAST_END_S)
            while self.WORKERS and time.monotonic() < until:
                self.reap_workers()
                self._broker.poll(0.02)
        self.kill_workers(signal.SIGKILL)
        if self._companion is not None:
            self._companion.leave()
        until = time.monotonic() + END_S
        while (self.WORKERS or (self._companion and self._companion.is_running)) and time.monotonic() < until:
            time.sleep(0.005)
            self.reap_workers()
        if self._companion is not None:
            self._companion.kill()
        self._broker.close()


def kill_if(pid: int, heartbeat: int, condition: Callable[[WorkerState], bool]) -> bool:
    """
    Kill the worker *pid* if *condition* is true for the state in its *heartbeat* file. Return whether it was killed.

    The worker is stopped before the decision, so that the kill cannot hit its next statement.
    """
    if not condition(read_state(heartbeat)):
        return False
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + HALT_S
        while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= until:
                break
            time.sleep(0.001)
        if condition(read_state(heartbeat)):
            os.kill(pid, signal.SIGKILL)
            return True
        os.kill(pid, signal.SIGCONT)
    return False


def can_answer(state: WorkerState, pid: int, unfit: set[int]) -> bool:
    """
    Return whether the worker *pid* has an engine, according to its *state*.

    *unfit*, which is updated, contains the workers that had no engine when they were last idle. Such a worker can only
    refuse the statement that it is busy with.
    """
    if state.phase == "idle":
        unfit.discard(pid)
    elif state.phase == "unfit":
        unfit.add(pid)
    return pid not in unfit


def _is_stuck(state: WorkerState, pulse: Pulse, halt: Pulse, now: float) -> bool:
    if halt.quiet_s >= STUCK_S:
        return True
    if state.phase == "busy":
        return now >= state.deadline + OVERDUE_S
    if state.phase in ("idle", "unfit"):
        return pulse.quiet_s >= STUCK_S
    return pulse.age_s >= BOOT_S


def _shown(state: WorkerState) -> dict[str, str]:
    return {"phase": state.phase, "query_id": state.query_id}


class EngineApplication(BaseApplication):
    """The source of gunicorn's settings. There is no WSGI application."""

    def __init__(self, config: RuntimeConfig, *, several_keys: bool) -> None:
        self.config = config
        self.several_keys = several_keys
        super().__init__()

    def load_config(self) -> None:
        """Set the engine's settings."""
        for name, value in gunicorn_worker.options(self.config).items():
            self.cfg.set(name, value)
        self.cfg.set("post_fork", lambda arbiter, _worker: arbiter.close_in_worker())


def run_engine(config: RuntimeConfig, several_keys: bool, beat: Callable[[], None] = lambda: None) -> None:
    """
    Run the engine of *config* until a signal ends it. gunicorn then exits the process with code 0.

    *several_keys*: there is more than one key to be fair to. *beat* is called at least every second.
    """
    runtimeconf.state.set_config(config)
    if config.is_watched:
        telemetry.state.connect(config.state_dir, has_thread=False)  # A process with threads must not fork.
    if lacks := sandbox.missing():
        fields = {"missing": ", ".join(lacks)}
        logger.warning("the system cannot confine engine workers as it should", extra={"fields": fields})
    arbiter = EngineArbiter(EngineApplication(config, several_keys=several_keys), beat)
    if config.query.datafusion_sql:
        macros()  # takes 20 ms, and every worker needs the result
    share_what_is_loaded()
    arbiter.run()
