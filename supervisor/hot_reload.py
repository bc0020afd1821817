"""
Hot reload in web and flight: switch to each configuration that the supervisor puts into effect, without a restart.

A process prepares for the offered configuration by connecting to the new engine, and reports when the runtime would be
ready. It switches at the first request after the configuration takes effect, or `POLL_S` seconds later if there is no
request. Running statements continue on the engine on which they began.
"""

import logging
import os
import select
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import telemetry.state
from authkeys import access
from authkeys.access import Access
from datasources.errors import DatasetsUnavailableError
from runtimeconf.handover import Handover
from runtimeconf.model import RuntimeConfig
from telemetry import spans

if TYPE_CHECKING:  # The supervisor does not need it.
    from queryengine.engine import Query, QueryEngine

logger = logging.getLogger(__name__)

#: Seconds between two checks of the inherited configuration when there are no requests.
POLL_S = 0.1

#: The report to the supervisor that a process is prepared or has switched. Any other line is the reason why it cannot.
DONE = "done"


def report(reports: int, number: int, text: str = DONE) -> None:
    """Report on configuration *number* to the supervisor, as one line in the pipe *reports*."""
    line = " ".join([str(number), str(os.getpid()), *text.split()])
    os.write(reports, line.encode()[: select.PIPE_BUF - 1] + b"\n")


def tell(config: RuntimeConfig) -> None:
    """Send this process's events to the `watch` process if *config* enables this, and sample traces as configured."""
    if config.is_watched:
        telemetry.state.connect(config.state_dir, keeps_sql=config.history.keeps_sql)
    else:
        telemetry.state.disconnect()
    if config.traces is not None:
        spans.sample(config.traces.sample)


class Serving:
    """Everything a process needs to serve requests: configuration, accepted callers, engine and datasets."""

    def __init__(self, config: RuntimeConfig, who: Access) -> None:
        # Imported here, because web imports this module before gevent replaces threads and sockets.
        from datasources.refresh.control_socket import ControlClient  # noqa: PLC0415
        from queryengine.cache.cached_engine import remembering  # noqa: PLC0415
        from queryengine.pool.client import EngineClient  # noqa: PLC0415

        self.config, self.who = config, who
        self.client = EngineClient(config)
        self.engine: QueryEngine = remembering(self.client, config)
        required = [dataset.name for dataset in config.loaded_datasets if dataset.required_for_ready]
        awaited = required if config.ready_state == "on_load" else []
        gets_stale = config.query.max_staleness_s is not None
        self.datasets = ControlClient(config.state_dir, awaited, config.generation, gets_stale=gets_stale)

    @classmethod
    def of(cls, config: RuntimeConfig, extra: Mapping[str, Any]) -> Self:
        """Build the object from the inherited configuration of this process."""
        return cls(config, access.from_handover(config, extra["access"]))

    def accepts(self, query: "Query") -> bool:
        """
        Return whether the key of *query* may query with the same scope in this configuration as in the former one.

        Otherwise, the statement could read what neither configuration lets its key see.
        """
        if self.who.key_set is None:
            return query.scope is None
        callers = self.who.key_set.principals()
        return any(
            one.fingerprint == query.fingerprint and one.scope == query.scope and "query" in one.rights
            for one in callers
        )

    def close(self) -> None:
        """Close the connection to the engine, and end every statement that still uses it."""
        self.engine.close()


class Follower:
    """
    Watches *handover* in its own thread, which is a greenlet under gevent.

    Args:
        handover: The inherited configuration of this process.
        serving: The initial configuration, callers, engine and datasets of this process.
        reports: The pipe to the supervisor.
        adopt: Called to make this process serve with a new `Serving`, by any thread, but by one at a time.
        keeps_data: Whether a new configuration must have its data loaded if this one has, whatever the engine does.
    """

    def __init__(
        self,
        handover: Handover,
        serving: Serving,
        reports: int,
        *,
        adopt: Callable[[Serving], None],
        keeps_data: bool = False,
    ) -> None:
        self._handover = handover
        self._reports = reports
        self._adopt = adopt
        self._keeps_data = keeps_data
        self._lock = threading.Lock()
        self._number = serving.config.generation
        self._serving = serving
        self._prepared: Serving | None = None
        self._tried = 0
        self._must_load = False
        self._is_reported = True
        self._former: Serving | None = None
        serving.client.look = self.check
        threading.Thread(target=self._follow, name="handover", daemon=True).start()

    def check(self) -> None:
        """Switch if another configuration has taken effect. Call this before each request is authenticated."""
        if self._handover.in_force != self._number:
            self._change_over()

    def _change_over(self) -> None:
        with self._lock:
            while (number := self._handover.in_force) != self._number:
                new, self._prepared = self._prepared, None
                if new is None or new.config.generation != number:
                    self._drop(new)
                    new = self._made(number)
                    if new is None:  # It has been replaced already.
                        continue
                former, self._serving = self._serving, new
                new.client.look = self.check
                new.client.succeed(former.client, new.accepts)
                self._adopt(new)
                self._number = number  # From here on, no other thread waits for this one.
                self._drop(self._former)
                self._former = former
                report(self._reports, number)

    def _follow(self) -> None:
        pause = threading.Event()
        while not pause.wait(POLL_S):
            try:
                self.check()
                self._prepare()
                if self._former is not None and self._former.client.has_ended:
                    self._serving.client.forget_predecessor()
                    former, self._former = self._former, None
                    self._drop(former)
            except Exception:
                logger.exception("The new configuration cannot be used")
                report(self._reports, self._tried, "a process cannot use the new configuration: see the log")

    def _prepare(self) -> None:
        in_force, offered = self._handover.numbers()
        # The offered configuration may have taken effect since `check`, so it still has to be adopted.
        if offered != self._tried and in_force == self._number:
            with self._lock:
                self._drop(self._prepared)
                self._prepared = None
                self._tried, self._is_reported = offered, False
                if offered:
                    self._must_load = self._keeps_data and self._serving.datasets.is_loaded()
                    self._prepared = self._made(offered)
        prepared = self._prepared
        if prepared is not None and not self._is_reported and (outcome := self._outcome(prepared)):
            self._is_reported = True
            report(self._reports, self._tried, outcome)

    def _outcome(self, prepared: Serving) -> str:
        """Return DONE if the runtime would be ready with *prepared*, "" if it may become ready, or why it cannot."""
        if not prepared.engine.is_alive():
            return ""
        if not self._must_load or prepared.datasets.is_loaded():
            return DONE
        try:
            awaited, states = prepared.datasets.waiting_for(), prepared.datasets.datasets()
        except DatasetsUnavailableError:
            return ""
        failed = (state for state in states if state.name in awaited and state.status == "Error")
        return next((f"dataset {state.name} cannot be loaded: {state.error}" for state in failed), "")

    def _made(self, number: int) -> Serving | None:
        try:
            return Serving.of(*self._handover.read(number))
        except LookupError:
            return None

    @staticmethod
    def _drop(serving: Serving | None) -> None:
        if serving is not None:
            serving.close()
