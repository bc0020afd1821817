"""What hints tell people to install: what this project needs, never a package that is somebody else's."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import pytest

from runtimeclient import SERVER_COMMANDS
from runtimeclient.distribution import (
    PROJECT,
    install_command,
    is_installed,
    requirements_of,
    version,
)
from tests.runtimeclient.calling import call
from tests.runtimeclient.conftest import ROOT, run_python
from tests.runtimeclient.remote import Remote

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FROM_FILE = {"url": "file:///a%20b.whl", "archive_info": {}}
FROM_GIT = {"url": "https://forge.test/q", "vcs_info": {"vcs": "git", "commit_id": "0123abcd"}}
_TOLD = re.compile(r'pipx? install ((?:(?!" )[^`\n])+)')
_NAME = re.compile(r"['\"]?([A-Za-z0-9][A-Za-z0-9._-]*)")
_SHOW = (
    "from runtimeclient.distribution import install_command, version;"
    "import runtimeclient; print(runtimeclient.__file__, version(), install_command('arrow'), sep='\\n')"
)


def show(*path: Path, prefix: Path = ROOT) -> list[str]:
    """What a program says that finds packages in *path* first: where the client is, its version, and a hint."""
    program = f"import sys; sys.path[:1] = {list(map(str, path))}; sys.prefix = {str(prefix)!r}; {_SHOW}"
    return run_python(program).stdout.splitlines()


def put_distribution(directory: Path, origin: Mapping[str, object] | None = None) -> None:
    metadata = directory / f"{PROJECT}-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(
        f"Metadata-Version: 2.4\nName: {PROJECT}\nVersion: 9.9\nRequires-Dist: httpx~=0.28\n"
        'Provides-Extra: arrow\nRequires-Dist: theirs~=1.0; extra == "arrow"\n'
        "Requires-Dist: other>=2; python_version < '4' and extra == 'arrow'\nRequires-Dist: x; extra == 'charts'\n"
    )
    if origin is not None:
        (metadata.parent / "direct_url.json").write_text(json.dumps(origin))


def test_hints_in_a_clone_name_its_declared_requirements() -> None:
    assert version() == DECLARED["version"]
    assert {extra: requirements_of(extra) for extra in DECLARED["optional-dependencies"]} == DECLARED[
        "optional-dependencies"
    ]
    assert install_command("charts") == "python -m pip install 'vl-convert-python~=1.9'"


@pytest.mark.parametrize(
    ("marker", "origin", "hint"),
    [
        (None, None, "python -m pip install 'querykeep[arrow]==9.9'"),
        (None, FROM_FILE, "python -m pip install 'querykeep[arrow]==9.9'"),
        ("pipx_metadata.json", None, "pipx install --force 'querykeep[arrow]==9.9'"),
        ("uv-receipt.toml", None, "uv tool install 'querykeep[arrow]==9.9'"),
        ("uv-receipt.toml", FROM_FILE, "uv tool install 'querykeep[arrow] @ file:///a%20b.whl'"),
        ("uv-receipt.toml", FROM_GIT, "uv tool install 'querykeep[arrow] @ git+https://forge.test/q@0123abcd'"),
    ],
)
def test_hints_of_an_installed_client_name_its_own_distribution(
    tmp_path: Path, marker: str | None, origin: Mapping[str, object] | None, hint: str
) -> None:
    put_distribution(tmp_path, origin)
    if marker is not None:
        (tmp_path / marker).touch()
    inside = tmp_path / PROJECT
    shutil.copytree(ROOT / "runtimeclient", inside / "runtimeclient", ignore=shutil.ignore_patterns("__pycache__"))

    assert show(inside, tmp_path, prefix=tmp_path) == [str(inside / "runtimeclient" / "__init__.py"), "9.9", hint]


def test_another_distribution_of_the_same_name_is_ignored(tmp_path: Path) -> None:
    put_distribution(tmp_path)

    assert show(tmp_path, ROOT)[1:] == [DECLARED["version"], install_command("arrow")]


def test_commands_of_the_server_name_the_extra() -> None:
    done = call("serve")

    assert (done.status, done.err) == (
        2,
        f"Error: querykeep serve needs the server extra: {install_command('server')}\n",
    )
    files = (ROOT / "runtime_site" / "management" / "commands").glob("[!_]*.py")
    assert {file.stem for file in files} <= set(SERVER_COMMANDS)


def test_an_extra_is_installed_if_all_that_it_requires_is(tmp_path: Path) -> None:
    put_distribution(tmp_path / "site")
    client = tmp_path / "site" / PROJECT / "runtimeclient"
    shutil.copytree(ROOT / "runtimeclient", client, ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        f"import sys; sys.path[:1] = [{str(client.parent)!r}, {str(tmp_path / 'site')!r}];"
        "from runtimeclient.distribution import is_installed; print(is_installed('arrow'), is_installed('none'))"
    )

    assert is_installed("server")
    assert run_python(program).stdout == "False True\n"


@pytest.mark.parametrize(
    "case",
    [
        ("pyarrow", "sql x --output=a.parquet", "arrow"),
        ("vl_convert", "sql x --chart-file=a.svg", "charts"),
        ("keyring", "status --profile a", "keyring"),
    ],
)
def test_a_missing_library_is_an_error_with_a_hint(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str]
) -> None:
    library, command, extra = case
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "runtimeclient.output.arrow_files", raising=False)
    config = tmp_path / "querykeep" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'[profiles.a]\nendpoint = "{remote.url}"\napi_key_keyring = true\n')

    done = remote.call(*command.split(), environ={"XDG_CONFIG_HOME": str(tmp_path)})

    assert done.status == 2
    assert done.err.endswith(f": {install_command(extra)}\n")
    assert {request.path for request in remote.requests} <= {"/health"}


def told_packages() -> Iterator[tuple[str, str]]:
    """Every package that a file of the project tells people to install, and the file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in filter(None, listed.split("\0")):
        try:
            text = (ROOT / file).read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        for told in _TOLD.findall(text):
            words = iter(told.split())
            for word in words:
                if word in {"-r", "-c"}:
                    next(words)
                elif "{" not in word and not word.strip("'\"").startswith(("-", ".")):
                    name = _NAME.match(word)
                    yield name[1] if name else word, file


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files of the project")
def test_no_hint_names_a_package_that_is_not_required() -> None:
    files = (ROOT / "requirements").glob("*.in")
    extras = DECLARED["optional-dependencies"].values()
    required = chain([PROJECT], DECLARED["dependencies"], *extras, *(file.read_text().splitlines() for file in files))
    ours = {name[1].lower() for line in required if (name := _NAME.match(line))}

    told = list(told_packages())

    assert {name for name, _ in told} >= {"pyarrow", "adbc-driver-flightsql"}
    assert [(name, file) for name, file in told if name.lower() not in ours] == []
