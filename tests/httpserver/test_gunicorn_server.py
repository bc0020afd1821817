"""gunicorn's settings: those that it is given, and those of a request."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from gunicorn.config import Config
from gunicorn.http.wsgi import Response

from httpserver import gevent_worker
from httpserver.gunicorn_server import heartbeat_timeout, options, web_options
from runtimeconf.model import MIB, QueryConfig, RuntimeConfig

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
        assert (config.forwarder_headers, config.secure_scheme_headers, config.forwarded_allow_ips) == ([], {}, [])
        assert (config.http_protocols, config.http_parser) == (["h1"], "python")
        assert not config.is_ssl
    assert in_process.workers == 1
    assert in_process.threads > 3 + 5
    assert web.workers == len(os.sched_getaffinity(0))
    assert web.timeout == 11


def test_a_worker_that_checks_large_bodies_may_be_silent_for_longer() -> None:
    config = replace(CONFIG, http=replace(CONFIG.http, max_body_bytes=64 * MIB))

    assert heartbeat_timeout(config) == 74


def test_request_settings_are_those_of_gunicorn_which_has_the_private_hook_for_bodies() -> None:
    config = gunicorn_config(web_options(CONFIG))

    settings = gevent_worker._Settings(config)

    for name in config.settings:
        assert repr(getattr(settings, name)) == repr(getattr(config, name))
    assert settings.is_ssl is config.is_ssl
    assert settings.forwarded_allow_networks() == []
    assert callable(Response._emit_body)
