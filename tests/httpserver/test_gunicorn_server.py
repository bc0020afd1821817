"""gunicorn's settings: those that it is given, and those of a request."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.wsgi import Response
from msgspec.structs import replace

from httpserver import gevent_worker
from httpserver.application import checked
from httpserver.gunicorn_server import addresses, heartbeat_timeout, options, web_options
from runtimeconf.model import MIB, QueryConfig, RuntimeConfig
from system.addresses import Address
from tests.httpserver.web_tier import WebTier

CONFIG = RuntimeConfig(
    file=Path("/srv/runtime.yaml"),
    state_dir=Path("/srv/state"),
    query=QueryConfig(workers=3, max_queued=5),
    shutdown_timeout_s=12.3,
)


def gunicorn_config(settings: dict[str, Any]) -> Any:
    config = Config()
    for name, value in settings.items():
        config.set(name, value)
    return config


def test_gunicorn_takes_all_settings() -> None:
    in_process, web = (gunicorn_config(settings) for settings in (options(CONFIG), web_options(CONFIG)))

    for config in (in_process, web):
        assert config.graceful_timeout == 12
        assert config.keepalive == 75  # longer than the 60 s of AWS' load balancer and of nginx
        assert (config.forwarder_headers, config.secure_scheme_headers, config.forwarded_allow_ips) == ([], {}, [])
        assert (config.http_protocols, config.http_parser) == (["h1"], "python")
        assert not config.is_ssl
    assert in_process.workers == 1
    assert in_process.threads > 3 + 5
    assert in_process.worker_connections >= 2 * in_process.threads  # otherwise gunicorn keeps none idle
    assert web.workers == len(os.sched_getaffinity(0))
    assert web.timeout == 11


def test_another_application_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(TypeError, match=r"not the application of runtime_site\.wsgi"):
        checked(lambda _environ, _start_response: [])


def test_a_worker_that_checks_large_bodies_may_be_silent_for_longer() -> None:
    config = replace(CONFIG, http=replace(CONFIG.http, max_body_bytes=64 * MIB))

    assert heartbeat_timeout(config) == 74


def test_a_stop_while_the_application_is_loaded_is_no_error(tmp_path: Path) -> None:
    settings = {"worker_class": "tests.httpserver.web_server.HastyThreads", "workers": 1, "threads": 2}
    with WebTier(tmp_path, settings=settings) as server, server.connection() as client:
        assert client.get("/pid").status == 200
    assert (tmp_path / "stopped").exists()
    assert "Traceback" not in server.output()


@pytest.mark.exhaustive
def test_a_connection_that_stays_silent_does_not_last_as_long_as_an_idle_one(tmp_path: Path) -> None:
    """gunicorn itself gives both the same time."""
    settings = {"worker_class": "tests.httpserver.web_server.ImpatientThreads", "workers": 1, "threads": 2}
    with (
        WebTier(tmp_path, settings=settings, http={"keep_alive": "1h"}) as server,
        server.connection() as silent,
        server.connection() as idle,
    ):
        assert idle.get("/pid").status == 200
        assert silent.rest() == b""
        assert idle.get("/pid").status == 200


def test_request_settings_are_those_of_gunicorn_which_has_the_private_hook_for_bodies() -> None:
    config = gunicorn_config(web_options(CONFIG))

    settings = gevent_worker._Settings(config)

    for name in config.settings:
        assert repr(getattr(settings, name)) == repr(getattr(config, name))
    assert settings.is_ssl is config.is_ssl
    assert settings.forwarded_allow_networks() == []
    assert callable(Response._emit_body)


def test_every_address_of_gunicorn_is_found_whether_bound_or_passed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("0.0.0.0", 0)) as second:
        bind = ["0.0.0.0:1", "[::]:2", ":3", "unix:/run/a.sock", f"fd://{first.fileno()}", "EXAMPLE.org"]
        parsed = gunicorn_config({"bind": bind}).address

        found = list(addresses(parsed, {"GUNICORN_FD": str(second.fileno()), "LISTEN_PID": "1", "LISTEN_FDS": "9"}))

        assert found == [
            *(Address("0.0.0.0", 1), Address("::", 2), Address("", 3)),
            *(Address("127.0.0.1", first.getsockname()[1]), Address("example.org", 8000)),
            Address("0.0.0.0", second.getsockname()[1]),
        ]
