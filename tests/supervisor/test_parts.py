"""What a part receives with its handover, and what it does not. Each handover is received by a new process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from authkeys import access
from authkeys.access import Access
from runtimeconf import handover
from runtimeconf.model import AuthConfig, DatasetConfig, RuntimeConfig, SnapshotsConfig
from runtimeconf.secret import Secret
from supervisor import parts
from tests.system.harness import K1, K2, run_program

#: Receives a handover and prints what it contains.
PART = """
import os, sys
from supervisor import part_process, parts
part_process.receive()
from authkeys.errors import AccessNotBuiltError
from authkeys.state import ensure_built
from runtimeconf import handover
from runtimeconf.state import get_config
config, extra = handover.received()
assert get_config() is config
try:
    key_set = ensure_built().key_set
except AccessNotBuiltError:
    print(extra, "nobody")
else:
    print(extra, None if key_set is None else [key_set.find(text) is not None for text in sys.argv[1:]])
print([(dataset.name, dict(dataset.params)) for dataset in config.datasets])
links = [f"/proc/self/fd/{number}" for number in range(1000)]
names = [os.readlink(link) for link in links if os.path.lexists(link)]
# From version 3.5, libffi, which ctypes uses, keeps its own file open.
print(parts.HANDOVER_VARIABLE in os.environ, sum("libffi" not in name for name in names))
"""


@pytest.fixture
def config(tmp_path: Path) -> RuntimeConfig:
    dataset = DatasetConfig(name="d", from_="file:a.csv", location="/a.csv", params={"token": "canary"})
    return RuntimeConfig(
        file=tmp_path / "runtime.yaml",
        state_dir=tmp_path / "state",
        auth=AuthConfig(enabled=True, keys=(Secret(K1), Secret(K2))),
        datasets=(dataset,),
    )


def receive(descriptor: int) -> subprocess.CompletedProcess[str]:
    """Receive the handover in a new process."""
    try:
        return subprocess.run(
            [sys.executable, "-c", PART, K1, K2, "another"],
            env=os.environ | {parts.HANDOVER_VARIABLE: str(descriptor)},
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(descriptor)


def hand_over(name: parts.PartName, config: RuntimeConfig, who: Access, **extra: int) -> int:
    """Write the handover of a part."""
    return handover.write(*parts.content(name, config, who, **extra))


def without_keys(config: RuntimeConfig) -> tuple[RuntimeConfig, Access]:
    """Return the configuration and access of a process that has built the key set and discarded the keys."""
    return replace(config, auth=AuthConfig(enabled=config.auth.enabled)), access.build(config)


@pytest.mark.parametrize(
    ("name", "callers", "params"),
    [
        ("web", "[True, True, False]", "{}"),
        ("flight", "[True, True, False]", "{}"),
        ("engine", "nobody", "{}"),
        ("refresh", "nobody", "{'token': 'canary'}"),
    ],
)
def test_only_web_and_flight_get_digests_and_only_refresh_gets_sources(
    config: RuntimeConfig, name: parts.PartName, callers: str, params: str
) -> None:
    digest = access.build(config).key_set.handover()["keys"][0][0]  # type: ignore[union-attr]
    descriptor = hand_over(name, *without_keys(config), ready=7)
    handed = os.pread(descriptor, 100_000, 0)

    assert receive(descriptor).stdout.splitlines() == [
        f"{{'ready': 7, 'several_keys': True}} {callers}",
        f"[('d', {params})]",
        "False 3",  # Nothing stays open but the three standard streams.
    ]
    assert (digest.encode() in handed) is (callers != "nobody")


@pytest.mark.parametrize(("name", "callers"), [("web", "None"), ("engine", "nobody")])
def test_authentication_stays_off_in_web(tmp_path: Path, name: parts.PartName, callers: str) -> None:
    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path / "state")

    said = receive(hand_over(name, config, access.build(config))).stdout

    assert said.splitlines()[0] == f"{{'several_keys': False}} {callers}"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["python", "/srv/manage.py", "runtraces"], "traces"),
        (["python", "-m", "datasources.refresh.loader_process", "3"], "loader"),
        (["python", "manage.py", "runserver", "--noreload"], "serve"),
        (["gunicorn", "runtime_site.wsgi"], "another"),
        ([], "another"),
    ],
)
def test_a_part_is_known_by_its_command_line(words: list[str], part: str) -> None:
    assert parts.part_of(words, "another") == part


def test_a_part_dies_if_its_supervisor_is_dead(config: RuntimeConfig) -> None:
    done = receive(hand_over("web", *without_keys(config), supervisor=1))

    assert (done.returncode, done.stdout) == (-9, "")


@pytest.mark.parametrize("name", parts.PARTS)
def test_parts_get_no_environment_variable_that_may_be_a_secret(config: RuntimeConfig, name: parts.PartName) -> None:
    names = "PATH HOME LANG LC_ALL TZ TMPDIR LOG_FORMAT PYTHONPATH PYTHONDONTWRITEBYTECODE"
    wanted = dict.fromkeys([*names.split(), "DJANGO_SETTINGS_MODULE"], "x")
    secrets = "API_KEY ENV_KEY AWS_SECRET_ACCESS_KEY PATH_KEY PYTHON_KEY RUNTIME_CONFIG WEB_CONCURRENCY"
    unwanted = dict.fromkeys(secrets.split(), "canary")
    ours = {
        "GRPC_VERBOSITY": "NONE",
        "GRPC_EXPERIMENTS": "-event_engine_listener",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    assert parts.environment(name, config, wanted | unwanted) == wanted | ours


def test_only_refresh_gets_the_variables_of_sources(config: RuntimeConfig) -> None:
    reached = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy", "SSL_CERT_FILE"), "x")
    machine = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE"), "x")
    other = {"PROXY": "x", "MY_AWS_KEY": "x", "PGPASSWORD": "x"}

    def got(name: parts.PartName, config: RuntimeConfig) -> set[str]:
        return set(parts.environment(name, config, reached | machine | other)) & {*reached, *machine, *other}

    assert [got(name, config) for name in ("web", "engine", "flight")] == [set(), set(), set()]
    assert got("refresh", config) == {*reached}
    by_machine = replace(config, datasets=(replace(config.datasets[0], params={"s3_auth": "iam_role"}),))
    assert got("refresh", by_machine) == {*reached, *machine}
    assert got("engine", by_machine) == set()
    shared = SnapshotsConfig(location="s3://lake/a", role="follower", params={"s3_auth": "iam_role"})
    assert got("refresh", replace(config, snapshots=shared)) == {*reached, *machine}


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        pytest.param(
            "supervisor.serve",
            {"gunicorn", "importlib.metadata", "queryengine.engine", "runtimeconf.fields", "tomllib", "yaml"},
            id="the supervisor",
        ),
        pytest.param("supervisor.watch", {"duckdb", "gunicorn", "pyarrow", "runtimeconf.fields", "yaml"}, id="watch"),
        pytest.param("supervisor.engine", {"grpc", "runtimeconf.fields", "yaml"}, id="engine"),
        pytest.param("supervisor.flight", {"duckdb", "gunicorn", "runtimeconf.fields", "yaml"}, id="flight"),
        pytest.param("queryengine.backends, queryengine.gate.gate", {"pyarrow"}, id="a check of the configured SQL"),
    ],
)
def test_a_program_imports_no_library_of_others(program: str, absent: set[str]) -> None:
    code = (
        f"import sys; from supervisor import part_process; part_process.receive(); import {program};"
        f"print(*{absent | {'numpy', 'pandas'}} & set(sys.modules))"
    )

    done = run_program("-c", code, DJANGO_SETTINGS_MODULE="runtime_site.settings")

    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.mark.parametrize("name", ["serve", "watch", "refresh", "engine"])
def test_a_part_without_http_does_not_load_django(config: RuntimeConfig, name: parts.Program) -> None:
    program = f"""
import sys
from runtime_site.uncaught import begin_logging
from supervisor import part_process
assert part_process.receive()
begin_logging()
import supervisor.{name}
print(sorted({{module.partition(".")[0] for module in sys.modules}} & {{"django", "asyncio", "asgiref"}}))
"""
    descriptor = handover.write(*parts.content(name, *without_keys(config)))

    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {parts.HANDOVER_VARIABLE: str(descriptor)},
        pass_fds=[descriptor],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (run.stdout, run.stderr) == ("[]\n", "")
