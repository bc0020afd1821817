"""The wheel: what it installs works without the clone, beside packages of others with the names of ours."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from runtimeclient.console.assets import BUILT, ensure_built
from tests.system.harness import REPOSITORY, clean_environ, free_port, run_program, wait_for, write_orders

#: What the tests use has everything that the wheel requires.
REQUIRED = sysconfig.get_path("purelib")

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

IN_A_CLONE = pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="git lists the files of the project")

#: A package of somebody else: whoever imports it by mistake notices.
STRANGER = "raise ImportError('this is the package of a stranger')\n"


def make_dist(source: Path, umask: int = -1, **environ: str) -> dict[str, bytes]:
    """Run `make dist` in *source* with the tools of the tests, and return the files."""
    tools = Path(sys.executable).parent
    subprocess.run(
        ["make", "-o", ".venv/dist.stamp", "dist", f"BIN={tools}"],
        cwd=source, env=clean_environ(**environ), umask=umask, capture_output=True, check=True,
    )  # fmt: skip
    return {file.name: file.read_bytes() for file in (source / "dist").iterdir()}


def copy(directory: Path) -> Path:
    """Copy what git would commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, directory / name)
    # Each copy would build the same page again.
    ensure_built(print)
    shutil.copytree(BUILT, directory / BUILT.relative_to(REPOSITORY))
    return directory


class Installed:
    """An environment with the wheel alone, and the programs in it."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory = directory
        venv.create(directory, symlinks=True)
        self.packages = next(directory.glob("lib/python*/site-packages"))
        self.run_pip("install", "--no-deps", "--no-index", str(wheel))

    def run_pip(self, *arguments: str) -> None:
        python = str(self.directory / "bin" / "python")
        done = run_program("-m", "pip", "--python", python, "--disable-pip-version-check", *arguments)
        assert done.returncode == 0, done.stderr

    def environ(self, *path: str) -> dict[str, str]:
        """The environment of a program that finds what the wheel requires in *path*."""
        return clean_environ(PYTHONPATH=os.pathsep.join(path))

    def run(self, *command: str, cwd: Path, path: Sequence[str] = (REQUIRED,)) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.directory / "bin" / command[0], *command[1:]],
            cwd=cwd, env=self.environ(*path), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    done = run_program("-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory))
    assert done.returncode == 0, done.stderr
    (file,) = directory.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The wheel, beside packages of others; it is uninstalled in the end, and leaves nothing."""
    found = Installed(tmp_path_factory.mktemp("installed"), wheel)
    strangers = [found.packages / f"{name}.py" for name in ("authkeys", "httpserver", "system", "manage")]
    for file in strangers:
        file.write_text(STRANGER)
    yield found
    found.run_pip("uninstall", "--yes", "querykeep")
    assert sorted(file for file in found.packages.iterdir() if file.name != "__pycache__") == sorted(strangers)
    assert not (found.directory / "bin" / "querykeep").exists()


@pytest.mark.exhaustive
def test_the_wheel_has_one_import_name_and_every_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    rooms = project["tool"]["importlinter"]["root_packages"]

    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"querykeep"}
    assert {name.split("/")[1] for name in names if name.startswith("querykeep/")} == {
        *rooms, "__init__.py", "__main__.py", "deploy", "manage.py",
    }  # fmt: skip
    assert [name for name in names if "__pycache__" in name or "/tests/" in name] == []
    page = "querykeep/runtimeclient/console"
    assert {f"{page}/assets/{name}" for name in ("index.html", "main.js", "style.css", "LICENSES.txt")} <= {*names}
    assert [name for name in names if name.startswith(f"{page}/page/")] == []


def test_the_console_needs_neither_the_clone_nor_node(installed: Installed, tmp_path: Path) -> None:
    with subprocess.Popen(
        [installed.directory / "bin" / "querykeep", "console", "--no-browser"],
        cwd=tmp_path, env=installed.environ(REQUIRED) | {"PATH": str(tmp_path)}, stdout=subprocess.PIPE, text=True,
    ) as console:  # fmt: skip
        assert console.stdout
        link = console.stdout.readline()
        try:
            page = httpx.get(link.partition("#")[0], trust_env=False)
        finally:
            console.terminate()

    assert page.status_code == 200
    assert '<script type="module" src="/main.js">' in page.text


def test_from_a_file_to_its_first_rows(installed: Installed, tmp_path: Path) -> None:
    write_orders(tmp_path / "orders.parquet", rows=3)
    port, log = free_port(), tmp_path / "log"

    made = installed.run("querykeep", "init", "orders.parquet", cwd=tmp_path)
    serve, query = made.stdout.splitlines()
    config = tmp_path / "runtime.yaml"
    addresses = f"  http: {{bind: '127.0.0.1:{port}'}}\n  flight: {{bind: '127.0.0.1:{free_port()}'}}\n"
    config.write_text(config.read_text().replace("runtime:\n", f"runtime:\n{addresses}"))
    with log.open("wb") as output:
        server = subprocess.Popen(
            [installed.directory / "bin" / "querykeep", *serve.split()[1:]],
            # With this, which some set for all of a machine, Python does not look beside a program for its packages.
            cwd=tmp_path, env=installed.environ(REQUIRED) | {"PYTHONSAFEPATH": "1"}, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_for(lambda: "Ready" in log.read_text() or server.poll() is not None, "the runtime to be ready")
        assert server.poll() is None, log.read_text()
        done = subprocess.run(
            ["sh", "-c", query.replace("8090", str(port))], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    finally:
        server.terminate()

    assert done.stdout == '[{"n":3}]', done.stderr
    assert server.wait(60) == 0, log.read_text()


@pytest.mark.exhaustive
def test_packages_of_others_keep_their_names(installed: Installed, tmp_path: Path) -> None:
    theirs = installed.run("python", "-c", "import authkeys", cwd=tmp_path)
    ours = installed.run("python", "-c", "import querykeep, authkeys; print(authkeys.__file__)", cwd=tmp_path)

    assert "the package of a stranger" in theirs.stderr
    assert ours.stdout == f"{installed.packages}/querykeep/authkeys/__init__.py\n"


@pytest.mark.exhaustive
def test_the_client_works_without_the_server(installed: Installed, tmp_path: Path) -> None:
    client = link_requirements(tmp_path / "client")

    made = installed.run("querykeep", "init", cwd=tmp_path, path=[client])
    refused = installed.run("querykeep", "serve", cwd=tmp_path, path=[client])
    listed = installed.run("python", "-m", "querykeep", "apikey", "list", cwd=tmp_path, path=[client])

    assert (made.returncode, listed.returncode) == (0, 0), made.stderr + listed.stderr
    hint = f"python -m pip install 'querykeep[server]=={PROJECT['version']}'"
    assert (refused.returncode, refused.stderr) == (2, f"Error: querykeep serve needs the server extra: {hint}\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "command", ["check", "help", "help init", "status --help", "shell", "runrefresh --once", "--version"]
)
def test_every_command_works(installed: Installed, tmp_path: Path, command: str) -> None:
    (tmp_path / "runtime.yaml").write_text("{}\n")

    done = installed.run("querykeep", *command.split(), cwd=tmp_path)

    assert done.returncode == 0, done.stderr


@IN_A_CLONE
@pytest.mark.exhaustive
def test_a_clone_and_what_its_sdist_unpacks_make_the_same_bytes(tmp_path: Path) -> None:
    clone = copy(tmp_path / "clone" / "querykeep")
    (clone / "mine").mkdir()
    (clone / "mine" / "private.csv").touch()  # what the tutorial makes in a clone
    committed = {str(file.relative_to(clone)) for file in clone.rglob("*") if file.is_file()}
    put_down(clone, 0o022, 0)

    made = make_dist(clone, 0o022, SOURCE_DATE_EPOCH="1700000000", TZ="UTC")
    (sdist,) = (clone / "dist").glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    held = {str(file.relative_to(unpacked)) for file in unpacked.rglob("*") if file.is_file()}
    put_down(unpacked, 0o077, 1)

    assert len(made) == 3
    assert make_dist(unpacked, 0o077, TZ="UTC+1") == made
    assert committed - held == {"mine/private.csv"}
    assert held - committed == {"PKG-INFO"}


def put_down(source: Path, umask: int, second: int) -> None:
    """Give files the rights and the time that somebody else's have; `PKG-INFO` has the time of the commit."""
    for path in source.rglob("*"):
        path.chmod((0o755 if path.is_dir() or path.name == "manage.py" else 0o644) & ~umask)
        if path.name != "PKG-INFO":
            os.utime(path, (second, second))


def link_requirements(directory: Path) -> str:
    """Make a directory with links to what the client requires, and nothing else; return its path."""
    directory.mkdir()
    waiting, seen = list(PROJECT["dependencies"]), set[str]()
    while waiting:
        requirement = waiting.pop()
        name = re.match(r"[\w.-]+", requirement)
        if "extra ==" in requirement or name is None or name[0].lower() in seen:
            continue
        seen.add(name[0].lower())
        try:
            found = metadata.distribution(name[0])
        except metadata.PackageNotFoundError:  # for another system
            continue
        waiting += found.requires or ()
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (directory / top).exists():
                (directory / top).symlink_to(str(found.locate_file(top)))
    return str(directory)


def test_the_sbom_lists_the_libraries_of_the_console(tmp_path: Path) -> None:
    ensure_built(print)
    file = tmp_path / "sbom.json"
    file.write_text('{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [], "dependencies": []}')

    assert run_program(str(REPOSITORY / "deploy/wheel/sbom.py"), str(file), cwd=tmp_path).returncode == 0

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read_text()) is None
    listed = {f"{each['name']} {each['version']} (" for each in json.loads(file.read_text())["components"]}
    licences = (BUILT / "LICENSES.txt").read_text()
    assert listed == set(re.findall(r"^\S+ [0-9]\S* \(", licences, re.MULTILINE))
    assert {"vega", "apache-arrow", "@codemirror/view"} <= {each.partition(" ")[0] for each in listed}
