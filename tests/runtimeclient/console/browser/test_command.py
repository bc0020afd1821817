"""`querykeep console` as a process on a terminal."""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pexpect
import pytest

from runtimeclient.console.assets import Asset
from runtimeclient.console.server import SESSION_HEADER
from tests.runtimeclient.conftest import clean_environment
from tests.system.harness import K1, REPOSITORY, Server, taken_port, wait_for

SPAWN: Any = pexpect.spawn  # without annotations
RUN: Any = pexpect.run
LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]+)(\S*)")


@pytest.fixture
def program(runtime: Server, assets: dict[str, Asset]) -> Iterator[Any]:
    environ = clean_environment(RUNTIME_HTTP_ENDPOINT=runtime.url, RUNTIME_API_KEY=K1)
    arguments = [str(REPOSITORY / "manage.py"), "console", "SELECT 1 & 2", "--no-browser"]
    child = SPAWN(sys.executable, arguments, env=environ, encoding="utf-8", timeout=60)
    yield child
    child.close(force=True)


def test_the_link_opens_the_console_once_and_enter_prints_another(program: Any) -> None:
    program.expect(LINK)
    port, token, rest = program.match.groups()
    assert rest == "&sql=SELECT%201%20%26%202"
    url, headers = f"http://127.0.0.1:{port}", {"Origin": f"http://127.0.0.1:{port}"}
    with httpx.Client(trust_env=False) as client:
        session = client.post(f"{url}/session", content=token, headers=headers).json()["session"]
        names = [each["name"] for each in client.get(f"{url}/v1/datasets", headers={SESSION_HEADER: session}).json()]
        assert client.post(f"{url}/session", content=token, headers=headers).status_code == 403
        program.expect("Ctrl-C")
        program.sendline("")
        program.expect(LINK)
        other = program.match.groups()[1]
        assert client.post(f"{url}/session", content=other, headers=headers).status_code == 200

    program.sendintr()
    program.expect(pexpect.EOF)
    program.wait()
    assert names == ["orders"]
    assert program.exitstatus == 0
    assert K1 not in str(program.before)


@pytest.mark.usefixtures("assets")
def test_the_console_ends_by_itself_without_a_page() -> None:
    program = "from runtimeclient.commands import console; console._IDLE_S = 1;"
    program += "from runtimeclient.main import run; raise SystemExit(run('querykeep', ['console', '--no-browser']))"
    environ = clean_environment(PYTHONPATH=str(REPOSITORY))
    child = SPAWN(sys.executable, ["-c", program], env=environ, encoding="utf-8", timeout=60)
    child.expect(LINK)
    port = child.match.groups()[0]

    child.expect("The console has stopped because no page was open for an hour.")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    with pytest.raises(httpx.ConnectError), httpx.Client(trust_env=False) as client:
        client.get(f"http://127.0.0.1:{port}/")


@pytest.mark.usefixtures("assets")
def test_the_browser_does_not_get_the_key_and_a_signal_leaves_no_file(runtime: Server, tmp_path: Path) -> None:
    browser, environment, temporary = tmp_path / "browser", tmp_path / "environment", tmp_path / "temporary"
    browser.write_text(f"#!/bin/sh\nenv > {environment}.part && mv {environment}.part {environment}\n")
    browser.chmod(0o700)
    temporary.mkdir()
    variables = {"RUNTIME_API_KEY": K1, "KEY_IN_URL": f"http://{K1}@a", "DISPLAY": ":9", "BROWSER": str(browser)}
    environ = clean_environment(RUNTIME_HTTP_ENDPOINT=runtime.url, TMPDIR=str(temporary), **variables)
    child = SPAWN(sys.executable, [str(REPOSITORY / "manage.py"), "console"], env=environ, encoding="utf-8", timeout=60)
    child.expect(LINK)
    wait_for(environment.exists, "the browser to start")
    assert [each.name for directory in temporary.iterdir() for each in directory.iterdir()] == ["console.html"]

    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    child.close()

    assert "DISPLAY=:9" in environment.read_text()
    assert K1 not in environment.read_text()
    assert child.signalstatus == signal.SIGTERM
    assert list(temporary.iterdir()) == []


def test_a_port_in_use_is_named(runtime: Server, assets: dict[str, Asset]) -> None:
    with taken_port() as port:
        output, status = RUN(
            f"{sys.executable} {REPOSITORY}/manage.py console --port {port} --http-endpoint {runtime.url}",
            env=clean_environment(), encoding="utf-8", withexitstatus=True,
        )  # fmt: skip

    assert f"Port {port} on 127.0.0.1 cannot be used" in output
    assert status == 2
