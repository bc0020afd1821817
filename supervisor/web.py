"""The web process, which serves HTTP. It has neither data nor an engine."""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

import authkeys.state
import datasources.state
import queryengine.state
import runtimeconf.state
import telemetry.state
from httpserver import gunicorn_server
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor import parts, process_tree, tracing
from supervisor.hot_reload import Follower, Serving, tell
from supervisor.part_process import heartbeat
from system.addresses import wait_until_bindable
from system.lock import PREDECESSOR_WAIT_S
from system.process_limits import share_what_is_loaded

#: gunicorn's exit codes for an unavailable address and for an application that cannot be loaded. Restarts do not help.
_FATAL = (1, Arbiter.APP_LOAD_ERROR, Arbiter.WORKER_BOOT_ERROR)

#: What every worker needs, and what is not affected by gevent's patches because it has no locks, threads or sockets.
#: Imported once, before the fork.
_SHARED = (
    "rest_framework.views",
    *("datasources.control", "mcpapi.server", "runtimeconf.fields"),
    *("queryengine.gate.fingerprint", "queryengine.pool.messages"),
)


def serve(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    """Serve HTTP until SIGTERM, with the engine and the datasets of other processes."""
    if "listener" not in extra:
        wait_until_bindable(config.http.bind, "runtime.http.bind", time.monotonic() + PREDECESSOR_WAIT_S)
    try:
        arbiter = gunicorn_server.WebArbiter(_Web(config, extra), heartbeat(extra))
        for module in _SHARED:
            import_module(module)
        share_what_is_loaded()
        arbiter.run()
    except SystemExit as error:
        sys.exit(parts.CANNOT_START if error.code in _FATAL else error.code)


class _Web(BaseApplication):
    """gunicorn with the settings of the configuration and without a command line."""

    def __init__(self, config: RuntimeConfig, extra: dict[str, Any]) -> None:
        self._config = config
        self._listener: int | None = extra.get("listener")
        self._ready: int | None = extra.get("ready")
        self._extra = extra
        super().__init__()

    def load_config(self) -> None:
        for name, value in gunicorn_server.web_options(self._config).items():
            self.cfg.set(name, value)
        if self._listener is not None:
            self.cfg.set("bind", [f"fd://{self._listener}"])

    def load(self) -> Any:
        """Connect this worker to the other processes, after gevent has patched threads and sockets."""
        tracing.connect(self._config, self._extra)
        # Imported here, so that this module uses gevent's threads and sockets.
        from sqlapi.wsgi_handler import ApiHandler  # noqa: PLC0415

        live = handover.live()
        serving = Serving(self._config, authkeys.state.ensure_built()) if live is None else Serving.of(*live.current())
        _adopt(serving)
        atexit.register(telemetry.state.disconnect)
        atexit.register(queryengine.state.cancel_statements)
        if self._ready is not None:
            report = partial(_report_ready, self._ready, ApiHandler.is_ready)
            threading.Thread(target=report, name="ready", daemon=True).start()
        if live is None:
            return ApiHandler()
        follower = Follower(live, serving, self._extra["reports"], adopt=_adopt, keeps_data=True)

        class Following(ApiHandler):
            def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
                follower.check()
                return super().__call__(environ, start_response)

        return Following()

    def limit_stop(self) -> None:
        """Let the requests in progress take as long as the current configuration allows."""
        self.cfg.set("graceful_timeout", gunicorn_server.graceful_timeout(self._in_force()))

    def heartbeat_timeout(self) -> int:
        """Return the seconds that a worker may be silent under the current configuration."""
        return gunicorn_server.heartbeat_timeout(self._in_force())

    def _in_force(self) -> RuntimeConfig:
        live = handover.live()
        if live is not None and live.in_force != self._config.generation:
            self._config, _ = live.current()
        return self._config


def _adopt(serving: Serving) -> None:
    runtimeconf.state.set_config(serving.config)
    authkeys.state.set_access(serving.who)
    queryengine.state.set_engine(serving.engine)
    datasources.state.set_datasets(serving.datasets)
    tell(serving.config)


def _report_ready(descriptor: int, is_ready: Callable[[], bool]) -> None:
    pauses_s = process_tree.poll_intervals_s()
    while not is_ready():
        time.sleep(next(pauses_s))
    os.eventfd_write(descriptor, 1)
    os.close(descriptor)
