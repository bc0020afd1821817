"""A runtime answers as its OpenAPI document says, whatever Schemathesis sends: valid and invalid, keyed and not."""

import copy
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sqlapi.status import OPENAPI
from sqlapi.wsgi_handler import ApiHandler
from tests.system.harness import K1, KEYED, PYTHON, REPOSITORY, Server, clean_environ

HERE = Path(__file__).parent
HOOKS = "tests.sqlapi.openapi.schemathesis_hooks"
CONFIGURATION = HERE / "schemathesis.toml"
PROGRAM = "from schemathesis.cli import schemathesis; schemathesis()"


def closed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with closed objects, so that a field which is not described is a mismatch."""
    changed = copy.deepcopy(dict(document))
    for name, schema in changed["components"]["schemas"].items():
        for node in (schema, *schema.get("properties", {}).values()):
            if "properties" in node and name != "OpenApi":
                node["additionalProperties"] = False
    return changed


def send_some(described: Mapping[str, Any], key: str | None, *, examples: int) -> None:
    """Send cases of each operation to this process, and compare the answers with the document."""
    # It takes a second of each process of tests to import.
    import schemathesis  # noqa: PLC0415
    from schemathesis.generation import GenerationMode  # noqa: PLC0415

    import_module(HOOKS)

    config = schemathesis.Config.from_path(CONFIGURATION)
    schema = schemathesis.openapi.from_dict(closed(described), config=config)
    schema.app = ApiHandler()
    headers = {} if key is None else {"X-API-Key": key}

    found: list[Any] = list(schema.get_all_operations())
    for operation in (each.ok() for each in found):
        # Any text is a valid header: only the query string and the body can be invalid.
        modes = [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if list(operation.query) else [])]
        for mode in modes:

            @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                case.call_and_validate(headers=headers)

            send()


def run_schemathesis(server: Server, key: str | None, *, examples: int) -> dict[str, Any]:
    """Run all phases of Schemathesis against *server*, and return its counts of cases."""
    described = server.directory / "openapi.json"
    described.write_text(json.dumps(closed(server.get("/v1/openapi.json", headers=KEYED).json())))
    reports = server.directory / ("keyed" if key else "not_keyed")
    environ = clean_environ(
        PYTHONPATH=os.pathsep.join([str(REPOSITORY), os.environ["PYTHONPATH"]]),
        SCHEMATHESIS_HOOKS=HOOKS,
        TESTED_URL=server.url,
        TESTED_KEY=key or "",
    )

    done = subprocess.run(
        [
            PYTHON, "-c", PROGRAM, "--config-file", str(CONFIGURATION), "run", str(described), "--url", server.url,
            *(["--header", f"X-API-Key: {key}"] if key else []),
            "--max-examples", str(examples), "--seed", "1", "--generation-deterministic", "--continue-on-failure",
            "--request-timeout", "60", "--report", "json",
            "--report-dir", str(reports),
        ],
        cwd=server.directory, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    (report,) = reports.glob("json-*.json")
    return dict(json.loads(report.read_text())["test_cases"])


@pytest.mark.parametrize(
    ("examples", "cases"),
    [pytest.param(5, 150, marks=pytest.mark.exhaustive), pytest.param(200, 5_000, marks=pytest.mark.soak)],
)
def test_many_cases_against_serve(tmp_path: Path, examples: int, cases: int) -> None:
    with Server(tmp_path) as server:
        keyed = run_schemathesis(server, K1, examples=examples)
        not_keyed = run_schemathesis(server, None, examples=examples // 5)

        assert (keyed["with_failures"], not_keyed["with_failures"]) == (0, 0)
        assert keyed["generated"] + not_keyed["generated"] >= cases, (keyed, not_keyed)
        assert "Traceback" not in server.output()
        assert not [run for run in server.refreshes() if run["error"] and "internal" in run["error"]]


def codes(described: dict[str, Any], name: str) -> Any:
    content = described["components"]["responses"][name]["content"]["application/problem+json"]
    return content["schema"]["allOf"][1]["properties"]["code"]["enum"]


#: Changes to the document that make it false.
LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "status": lambda described: described["paths"]["/v1/sql"]["post"]["responses"].pop("400"),
    "field": lambda described: described["components"]["schemas"]["Catalog"].update(properties={}, required=[]),
    "type": lambda described: described["components"]["schemas"]["Key"]["properties"].update(name={"type": "integer"}),
    "code": lambda described: codes(described, "Unauthorized").remove("missing_key"),
    "header": lambda described: described["components"]["headers"]["X-Request-Id"].update(schema={"pattern": "^no$"}),
    "media type": lambda described: described["paths"]["/v1/catalogs"]["get"]["responses"]["200"]["content"].pop(
        "application/json"
    ),
}


@pytest.mark.usefixtures("memory")
@pytest.mark.exhaustive
@pytest.mark.parametrize("lie", LIES)
def test_a_document_that_differs_from_the_runtime_is_found_out(lie: str) -> None:
    described = json.loads(OPENAPI.read_text())
    LIES[lie](described)

    with pytest.raises(BaseExceptionGroup, match="Schemathesis found"):
        send_some(described, None if lie == "code" else K1, examples=5)
