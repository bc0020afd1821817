"""What hints tell people to install: what this project needs, never a package that is somebody else's."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from runtimeclient.distribution import PROJECT, install_command, requirements_of, version
from tests.runtimeclient.conftest import ROOT, run_python
from tests.runtimeclient.remote import Remote

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_TOLD = re.compile(r'pipx? install ((?:(?!" )[^`\n])+)')
_NAME = re.compile(r"['\"]?([A-Za-z0-9][A-Za-z0-9._-]*)")
_SHOW = (
    "from runtimeclient.distribution import install_command, version;"
    "import runtimeclient; print(runtimeclient.__file__, version(), install_command('arrow'), sep='\\n')"
)


def show(*path: Path) -> list[str]:
    """What a program says that finds packages in *path* first: where the client is, its version, and a hint."""
    return run_python(f"import sys; sys.path[:1] = {list(map(str, path))}; {_SHOW}").stdout.splitlines()


def put_distribution(directory: Path) -> None:
    metadata = directory / f"{PROJECT}-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(
        f"Metadata-Version: 2.4\nName: {PROJECT}\nVersion: 9.9\nRequires-Dist: httpx~=0.28\n"
        'Provides-Extra: arrow\nRequires-Dist: theirs~=1.0; extra == "arrow"\n'
        "Requires-Dist: other>=2; python_version < '4' and extra == 'arrow'\nRequires-Dist: x; extra == 'charts'\n"
    )


def test_hints_in_a_clone_name_its_declared_requirements() -> None:
    assert version() == DECLARED["version"]
    assert {extra: requirements_of(extra) for extra in DECLARED["optional-dependencies"]} == DECLARED[
        "optional-dependencies"
    ]
    assert install_command("charts") == "python -m pip install 'altair~=6.3' 'vl-convert-python~=1.9'"


def test_hints_of_an_installed_client_name_the_requirements_of_its_distribution(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "runtimeclient", tmp_path / "runtimeclient", ignore=shutil.ignore_patterns("__pycache__"))
    put_distribution(tmp_path)

    assert show(tmp_path) == [
        str(tmp_path / "runtimeclient" / "__init__.py"),
        "9.9",
        "python -m pip " + "install 'theirs~=1.0' 'other>=2'",
    ]


def test_another_distribution_of_the_same_name_is_ignored(tmp_path: Path) -> None:
    put_distribution(tmp_path)

    assert show(tmp_path, ROOT)[1:] == [DECLARED["version"], install_command("arrow")]


@pytest.mark.parametrize(
    "case",
    [
        ("pyarrow", "sql x --output=a.parquet", "arrow"),
        ("altair", "sql x --chart-file=a.svg", "charts"),
        ("keyring", "status --profile a", "keyring"),
    ],
)
def test_a_missing_library_is_an_error_with_a_hint(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str]
) -> None:
    library, command, extra = case
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    for module in ("runtimeclient.output.arrow_files", "runtimeclient.output.chart_files"):
        monkeypatch.delitem(sys.modules, module, raising=False)
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


def test_no_hint_names_a_package_that_is_not_required() -> None:
    files = (ROOT / "requirements").glob("*.in")
    required = chain(*(file.read_text().splitlines() for file in files), *DECLARED["optional-dependencies"].values())
    ours = {name[1].lower() for line in required if (name := _NAME.match(line))}

    told = list(told_packages())

    assert {name for name, _ in told} >= {"pyarrow", "adbc-driver-flightsql"}
    assert [(name, file) for name, file in told if name.lower() not in ours] == []
