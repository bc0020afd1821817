"""
The engine: gunicorn's arbiter over the engine workers, with the broker in its loop.

What differs from gunicorn's arbiter: the wait for signals serves the broker; a worker that leaves, however it does,
never ends the arbiter; respawning has a limit; workers that are stuck are killed by what their heartbeat files say; and
SIGTERM lets statements finish. It has no thread and opens no DuckDB instance, so that forking is safe and quick.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

import runtimeconf.state
from queryengine.pool import gunicorn_worker
from queryengine.pool.broker import BROKER_SOCKET, Broker
from queryengine.pool.worker_state import WorkerState, read_state
from runtimeconf.model import RuntimeConfig
from system import sandbox
from system.errors import StateDirectoryError
from system.heartbeat import Pulse
from system.lock import ENGINE_LOCK_NAME, PREDECESSOR_WAIT_S, StateLock
from system.sharing import share_what_is_loaded
from system.state_directory import file_id

logger = logging.getLogger(__name__)

#: How often workers are looked at; more often while one boots, so that it is known at once when it is there.
LOOK_S = 0.5
BOOTING_LOOK_S = 0.1
#: A busy worker ends itself at its deadline. One that has not done so this much later is stopped, and is killed.
OVERDUE_S = 2.0
#: An idle worker without a heartbeat for so long is not counted as alive, and then is killed.
QUIET_S = 3.0
STUCK_S = 5.0
#: A worker that has not booted after so long is killed: a slow machine needs its time.
BOOT_S = 60.0
#: A process that was told to stop has so long for it; one that cannot does nothing else either.
HALT_S = 0.1
#: Before the end of the time to stop, statements are ended, so that their callers hear of it.
STOP_MARGIN_S = 2.0
#: How long statements that were told to end, and idle workers, have for it.
END_S = 1.5
LAST_END_S = 0.25
#: Seconds between two new workers, once as many as `SPAWNS_AT_ONCE` times their number were made in a row.
SPAWN_INTERVAL_S = 0.5
SPAWNS_AT_ONCE = 2
#: The exit code of an engine that nobody can reach.
SOCKETS_GONE = 1


class Respawns:
    """How many workers may be made now: a bucket that holds *burst* and fills by one every `SPAWN_INTERVAL_S`."""

    def __init__(self, burst: int, now: float) -> None:
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = now

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled_at) / SPAWN_INTERVAL_S)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def give_back(self) -> None:
        """Give one back: what it was taken for has come to a good end."""
        self._tokens = min(float(self._burst), self._tokens + 1)


class EngineArbiter(Arbiter):
    """gunicorn's arbiter with the broker of `broker.sock`."""

    LISTENERS: list[Any]
    WORKERS: dict[int, Any]

    def __init__(self, app: EngineApplication) -> None:
        self._config = app.config
        self._several_keys = app.several_keys
        self._lock = StateLock(self._config.state_dir, ENGINE_LOCK_NAME)
        self._pulses: dict[int, Pulse] = {}
        self._killed = 0
        self._broker: Broker | None = None
        self._drain_until: float | None = None
        self._ended_at: float | None = None
        self._looked_for_ended_at = 0.0
        self._names: dict[Path, tuple[int, int] | None] = {}  # of the listening sockets, and what they lead to
        super().__init__(app)
        self._respawns = Respawns(SPAWNS_AT_ONCE * self.num_workers, time.monotonic())

    # The loop.

    def start(self) -> None:
        """
        Bind both sockets.

        Raises:
            StateDirectoryError: Another engine has them.
        """
        if not self._lock.acquire(PREDECESSOR_WAIT_S):
            raise StateDirectoryError(
                f"The engine of this state directory is {self._lock.holder()}: stop that runtime first, or set another "
                "state_dir."
            )
        super().start()
        broker = Broker(
            self._config.state_dir / BROKER_SOCKET,
            self._config.query,
            several_keys=self._several_keys,
            kill=self._kill_runner,
        )
        self._broker = broker
        self._names = {path: file_id(path) for path in (Path(listener.getsockname()) for listener in self.LISTENERS)}
        # A signal's handler only queues it: the byte that Python writes here is what ends the broker's wait.
        self._woken, self._wakes = socket.socketpair()
        for end in (self._woken, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        broker.watch(self._woken.fileno())

    def wait_for_signals(self, timeout: float = 1.0) -> list[int]:
        """Serve the broker until there is a signal, or it is time to look at the workers."""
        booting = any(read_state(worker.tmp.fileno()).phase == "booting" for worker in self.WORKERS.values())
        missing = len(self.WORKERS) < self.num_workers
        until = time.monotonic() + (BOOTING_LOOK_S if booting or missing else LOOK_S)
        if self._broker is not None:
            while self.SIG_QUEUE.empty() and not self._is_drained and (left_s := until - time.monotonic()) > 0:
                self._broker.poll(left_s)
        signals = []
        while not self.SIG_QUEUE.empty():  # nobody else takes from it
            signals.append(self.SIG_QUEUE.get_nowait())
        return [received for received in signals if received != self.WAKEUP_REQUEST]

    # Signals.

    def handle_hup(self) -> None:
        """Say that nothing is read again."""
        logger.info("SIGHUP does nothing: restart the runtime to change its configuration")

    def handle_ttin(self) -> None:
        """Do nothing: the number of workers is in the YAML."""

    def handle_ttou(self) -> None:
        """Do nothing: the number of workers is in the YAML."""

    def handle_usr1(self) -> None:
        """Do nothing: there are no log files to open again."""

    def handle_usr2(self) -> None:
        """Do nothing: a runtime is not replaced while it runs."""

    def handle_winch(self) -> None:
        """Do nothing."""

    def handle_term(self) -> None:
        """Refuse new statements, and stop when the others have ended."""
        if self._broker is None or self._drain_until is not None:
            return
        whole_s = self._config.shutdown_timeout_s
        self._drain_until = time.monotonic() + max(whole_s - STOP_MARGIN_S, whole_s / 2)
        self._broker.drain()

    @property
    def _is_drained(self) -> bool:
        return self._drain_until is not None and self._broker is not None and self._broker.is_idle

    def _drain(self, broker: Broker, until: float) -> None:
        """Stop once nothing runs; when time is up, have what runs ended first."""
        now = time.monotonic()
        if self._ended_at is None and now >= until:
            self._ended_at = now
            broker.end_statements()
        if broker.is_idle or (self._ended_at is not None and now >= self._ended_at + END_S):
            raise StopIteration

    # Workers.

    def murder_workers(self) -> None:
        """Look at every worker: kill what is stuck, tell the broker's clients who is alive, go on with a stop."""
        now = time.monotonic()
        alive = 0
        running = set()
        any_idle = False
        for pid, worker in list(self.WORKERS.items()):
            state, pulse = self._look_at(pid, worker, now)
            if _is_stuck(state, pulse, now) and kill_if(
                pid, worker.tmp.fileno(), partial(_is_stuck, pulse=pulse, now=now)
            ):
                logger.warning("engine worker was stuck and is killed", extra={"fields": {"pid": pid, **_shown(state)}})
            elif state.phase == "busy":
                running.add(state.query_id)
                alive += 1
            elif state.phase in ("idle", "unfit") and pulse.quiet_s < QUIET_S:
                any_idle = True
                alive += state.phase == "idle"
        if self._broker is None:
            return
        self._broker.report(alive=alive, killed=self._killed)
        if now - self._looked_for_ended_at >= 1.0:
            self._looked_for_ended_at = now
            self._see_that_sockets_are_there(self._broker)
            self._broker.free_unused(running, any_idle=any_idle)
        if self._drain_until is not None:
            self._drain(self._broker, self._drain_until)

    def _see_that_sockets_are_there(self, broker: Broker) -> None:
        """
        End this process when nobody can reach it any more: whoever started it starts another.

        Raises:
            HaltServer: A socket's name leads to it no more, as after a clean-up of temporary files, or another process
                has its lock.
        """
        if self._drain_until is None and not (
            broker.is_reachable and all(map(self._is_there, self._names)) and self._lock.keep()
        ):
            logger.error("the engine's sockets are gone from the state directory: it ends")
            raise HaltServer("the sockets are gone", SOCKETS_GONE)

    def _is_there(self, path: Path) -> bool:
        return file_id(path) == self._names[path]

    def _look_at(self, pid: int, worker: Any, now: float) -> tuple[WorkerState, Pulse]:
        pulse = self._pulses.setdefault(pid, Pulse(now))
        pulse.look(worker.tmp.last_update(), now)
        return read_state(worker.tmp.fileno()), pulse

    def _kill_runner(self, query_id: str) -> None:
        """Kill the worker that runs a statement whose client has given it up."""
        for pid, worker in list(self.WORKERS.items()):
            if kill_if(pid, worker.tmp.fileno(), lambda state: state.runs(query_id)):
                fields = {"pid": pid, "query_id": query_id}
                logger.warning("engine worker is killed for its client", extra={"fields": fields})

    def reap_workers(self) -> None:
        """Take note of workers that have ended. How they did never ends this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            worker = self.WORKERS.pop(pid, None)
            if worker is None:  # an orphan, when this is the first process of a container
                continue
            self._pulses.pop(pid, None)
            code = os.waitstatus_to_exitcode(status)
            state = read_state(worker.tmp.fileno())
            if code == 0 and state.phase != "booting":
                self._respawns.give_back()  # It has served until it was worn out, and is not one of many that fail.
            if code != 0 and self.LISTENERS:  # else this is the end of all
                self._killed += 1
                fields = {"pid": pid, "exit": code, **_shown(state)}
                logger.warning("engine worker ended", extra={"fields": fields})
            worker.tmp.close()

    def manage_workers(self) -> None:
        """Make workers for those that are missing, as fast as `Respawns` lets it."""
        while len(self.WORKERS) < self.num_workers and self._respawns.take(time.monotonic()):
            try:
                self.spawn_worker()
            except OSError as error:  # no process, no descriptor or no space for its heartbeat: later, perhaps
                # gunicorn has set the one of its sockets and not come to setting it back: a later worker would make
                # directories that it cannot enter.
                os.umask(gunicorn_worker.PRIVATE_UMASK)
                logger.error(  # noqa: TRY400 - the system's sentence is all there is to know
                    "an engine worker could not be made", extra={"fields": {"error": error.strerror}}
                )
                return

    def spawn_worker(self) -> int:
        """Fork a worker. In the worker this does not return: nothing above is for it."""
        try:
            pid: int = super().spawn_worker()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1)
        return pid

    def close_in_worker(self) -> None:
        """In a worker that was just forked: let go of what is the arbiter's."""
        signal.set_wakeup_fd(-1)
        self._woken.close()
        self._wakes.close()
        if self._broker is not None:
            self._broker.close_inherited()
            self._broker = None

    # The end.

    def stop(self, graceful: bool = True) -> None:
        """End the workers, which are idle or are not to finish, and close both sockets."""
        are_there = [path for path in self._names if self._is_there(path)]
        for listener in self.LISTENERS:
            listener.close()
        for path in are_there:
            with contextlib.suppress(OSError):
                path.unlink()
        self.LISTENERS = []
        if graceful:
            self.kill_workers(signal.SIGTERM)
            # One that still runs a statement when time was up has been told to end before.
            until = time.monotonic() + (END_S if self._ended_at is None else LAST_END_S)
            while self.WORKERS and time.monotonic() < until:
                self.reap_workers()
                if self._broker is not None:
                    self._broker.poll(0.02)
        self.kill_workers(signal.SIGKILL)
        until = time.monotonic() + END_S
        while self.WORKERS and time.monotonic() < until:
            time.sleep(0.005)
            self.reap_workers()
        if self._broker is not None:
            self._broker.close()
            self._broker = None


def kill_if(pid: int, heartbeat: int, condition: Callable[[WorkerState], bool]) -> bool:
    """
    Kill the worker *pid* if *condition* holds of the state in its *heartbeat* file; whether it was killed.

    The worker is stopped before that is decided, so that its next statement is not hit.
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


def _is_stuck(state: WorkerState, pulse: Pulse, now: float) -> bool:
    if state.phase == "busy":
        return now >= state.deadline + OVERDUE_S
    if state.phase in ("idle", "unfit"):
        return pulse.quiet_s >= STUCK_S
    return pulse.age_s >= BOOT_S


def _shown(state: WorkerState) -> dict[str, str]:
    return {"phase": state.phase, "query_id": state.query_id}


class EngineApplication(BaseApplication):
    """What gunicorn asks for its settings; there is no WSGI application."""

    def __init__(self, config: RuntimeConfig, *, several_keys: bool) -> None:
        self.config = config
        self.several_keys = several_keys
        super().__init__()

    def load_config(self) -> None:
        """Take the settings of the engine."""
        for name, value in gunicorn_worker.options(self.config).items():
            self.cfg.set(name, value)
        self.cfg.set("post_fork", _after_fork)

    def load(self) -> None:
        """Nothing to load."""


def _after_fork(arbiter: EngineArbiter, _worker: Any) -> None:
    arbiter.close_in_worker()


def run_engine(config: RuntimeConfig, several_keys: bool) -> NoReturn:
    """
    Run the engine of *config* until a signal ends it; the process exits with 0 then.

    *several_keys* says whether there is more than one key to be fair to.
    """
    runtimeconf.state.set_config(config)
    if lacks := sandbox.missing():
        fields = {"missing": ", ".join(lacks)}
        logger.warning("the system cannot confine engine workers as it should", extra={"fields": fields})
    arbiter = EngineArbiter(EngineApplication(config, several_keys=several_keys))
    share_what_is_loaded()
    arbiter.run()
    raise SystemExit(errno.EIO)  # gunicorn's loop ends by SystemExit only
