"""gunicorn's settings, the descriptors of the web tier, and processes that die with their parent."""

import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.wsgi import Response

from httpserver import gevent_worker
from httpserver.gunicorn_server import options, web_options
from runtimeconf.model import QueryConfig, RuntimeConfig, TlsConfig
from system.process_limits import MAX_CONNECTIONS, connection_limit, die_with_parent
from tests.system.harness import REPOSITORY, wait_for
from tests.system.processes import is_alive

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


def test_request_settings_are_those_of_gunicorn() -> None:
    config = gunicorn_config(web_options(CONFIG))

    settings = gevent_worker._Settings(config)

    for name in config.settings:
        assert repr(getattr(settings, name)) == repr(getattr(config, name))
    assert settings.is_ssl is config.is_ssl
    assert settings.forwarded_allow_networks() == []


def test_gunicorn_still_has_the_private_hook_for_bodies() -> None:
    assert callable(Response._emit_body)


def test_tls_from_the_configuration() -> None:
    tls = TlsConfig(enabled=True, certificate_file=Path("/srv/certificate.pem"), key_file=Path("/srv/key.pem"))

    settings = web_options(replace(CONFIG, tls=tls))

    assert (settings["certfile"], settings["keyfile"]) == ("/srv/certificate.pem", "/srv/key.pem")


@pytest.mark.parametrize(
    ("hard", "connections"),
    [(64, 27), (20, 4), (1024, 987), (1_000_000, MAX_CONNECTIONS), (resource.RLIM_INFINITY, MAX_CONNECTIONS)],
)
def test_the_connection_limit_reserves_descriptors_for_statements(
    monkeypatch: pytest.MonkeyPatch, hard: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, hard))

    assert connection_limit(statements=5) == connections


def run(program: str) -> tuple[int, str]:
    """Return the exit code and the output of a process."""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout


def test_a_process_raises_its_soft_descriptor_limit() -> None:
    program = (
        "import resource; from system.process_limits import raise_soft_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
        "raise_soft_limit(); raise_soft_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )

    assert run(program) == (0, "300\n")


def test_a_process_whose_parent_is_dead_dies() -> None:
    program = "from system.process_limits import die_with_parent; die_with_parent(1); print('lives on')"

    assert run(program) == (-signal.SIGKILL, "")


def test_a_process_dies_with_its_parent() -> None:
    # The child prints its id once it is bound to its parent, which then waits.
    program = (
        "import os, subprocess, sys, time\n"
        "from system.process_limits import die_with_parent\n"
        "if len(sys.argv) > 1:\n"
        "    die_with_parent(os.getppid())\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "subprocess.run([sys.executable, '-c', os.environ['PROGRAM'], 'child'])\n"
    )
    environ = os.environ | {"PROGRAM": program}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())

        parent.kill()

    wait_for(lambda: not is_alive(child), "the end of the child")


def test_a_failed_system_call_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "SIGKILL", 99999)

    with pytest.raises(OSError, match="Invalid argument"):
        die_with_parent(os.getppid())
