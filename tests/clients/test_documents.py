"""Every program of docs/flight-sql.md and docs/how-to/connect.md, run against the example, prints what is shown."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flightapi import prepared
from flightapi.calls import ERROR_CODE, IDLE_S, REQUEST_ID
from flightapi.error_table import MAX_MESSAGE_BYTES, STATUSES, code_of
from flightapi.errors import FlightApiError
from flightapi.open_calls import MAX_SILENT_OF_KEY
from flightapi.request_counts import CREDIT_S
from flightapi.server import SPARE_CALLS
from tests.clients import spice
from tests.clients.runtime import FlightServer
from tests.system.harness import PATIENCE_S, REPOSITORY
from tests.system.test_examples import clone, prepare

PAGE = (REPOSITORY / "docs" / "flight-sql.md").read_text()
PAGES = PAGE + (REPOSITORY / "docs" / "how-to" / "connect.md").read_text()
SNIPPETS = re.findall(r"^```(python|js)\n(.*?)^```\n\n```text\n(.*?)^```$", PAGES, re.DOTALL | re.MULTILINE)


def start(directory: Path, certificates: FlightServer | None = None) -> FlightServer:
    """Return the example of a fresh clone, not yet started, on free ports; with TLS by another server's certificate."""
    examples = clone(directory) / "examples"
    prepare(directory)
    server = FlightServer(examples)
    if certificates is not None:
        server = FlightServer(examples, trust=certificates.trust, key_file=certificates.key_file)
    example = yaml.safe_load((examples / "runtime.yaml").read_text())
    example["runtime"] |= {"http": {"bind": f"127.0.0.1:{server.port}"}, **server.changes["runtime"]}
    server.text = yaml.safe_dump(example)
    return server


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    with start(tmp_path_factory.mktemp("example")) as running:
        yield running


@pytest.fixture(scope="module")
def example_tls(tmp_path_factory: pytest.TempPathFactory, flight_tls: FlightServer) -> Iterator[FlightServer]:
    with start(tmp_path_factory.mktemp("example_tls"), flight_tls) as running:
        yield running


def test_the_page_lists_every_status_and_code_and_each_program_has_its_output() -> None:
    statuses = set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE.partition("\n## Errors\n")[2], re.MULTILINE))
    own = PAGE.partition("\n### Flight SQL error codes\n")[2]
    codes = set(re.findall(r"^\| `([A-Z_]+)` \| `([a-z_]+)` \|", own, re.MULTILINE))

    assert statuses == {status.name for status in STATUSES.values()} | {"UNAUTHENTICATED"}
    assert codes == {
        (status.name, code_of(kind.__new__(kind)))
        for kind, status in STATUSES.items()
        if issubclass(kind, FlightApiError)
    }
    assert len(SNIPPETS) == len(re.findall(r"^```(?:python|js)$", PAGES, re.MULTILINE)) >= 9


def test_the_page_states_the_limits() -> None:
    assert f"{prepared.IDLE_S / 60:g} minutes" in PAGE
    assert f"prepared {prepared.MAX_OF_KEY:,} newer statements" in PAGE
    assert f"longer than {MAX_MESSAGE_BYTES:,} bytes" in PAGE
    assert f"All messages of a call must arrive within {IDLE_S:g} seconds" in PAGE
    assert f"At most {SPARE_CALLS} calls are open at once" in PAGE
    assert f"For each key, at most {MAX_SILENT_OF_KEY} calls stay open" in PAGE
    keys = (REPOSITORY / "docs" / "api-keys.md").read_text()
    assert f"within {CREDIT_S:g} seconds of the previous call" in keys
    assert f"`{REQUEST_ID}`" in PAGE
    assert f"`{ERROR_CODE}`" in PAGE


@pytest.mark.parametrize(("language", "program", "printed"), SNIPPETS, ids=range(1, len(SNIPPETS) + 1))
def test_snippet(request: pytest.FixtureRequest, tmp_path: Path, language: str, program: str, printed: str) -> None:
    server: FlightServer = request.getfixturevalue("example_tls" if "certificate.pem" in program else "example")
    text = program.replace("50051", str(server.flight_port)).replace("8090", str(server.port))
    if server.trust:
        (tmp_path / "certificate.pem").write_bytes(server.trust.read_bytes())
    command: list[str | Path] = (
        [sys.executable, "-W", "error", "-c", text] if language == "python" else [spice.NODE, "-e", text]
    )
    others = ("SPICE_", "NODE_", "PYTHONPATH")  # a client may have packages that the runtime lacks
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environ |= {"KEY": (server.directory / "secrets" / "api_key").read_text().strip(), "NODE_PATH": str(spice.MODULES)}

    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False
    )

    assert done.stderr == ""
    assert done.stdout == printed
    assert done.returncode == 0
