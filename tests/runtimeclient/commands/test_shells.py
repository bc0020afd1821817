"""What `querykeep` prints for shells, and what it imports."""

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from runtimeclient import COMMANDS, SERVER_COMMANDS
from runtimeclient.commands.base import load_command
from runtimeclient.distribution import version
from tests.runtimeclient.calling import call
from tests.runtimeclient.conftest import run_python
from tests.runtimeclient.remote import ONE, Remote, Reply


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_have_every_command_and_option(shell: str) -> None:
    done = call("completion", shell)

    assert (done.status, done.err) == (0, "")
    assert all(name in done.out for name in (*COMMANDS, *SERVER_COMMANDS))
    assert all(option in done.out for option in ("max-rows", "api-key-file", "continue-on-error", "chart-file"))


@pytest.mark.parametrize("arguments", [(), ("--help",), ("help",)])
def test_the_help_lists_every_command_once(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as left:
        call(*arguments)

    shown = re.findall(r"^ {4}([a-z]+)(?= {2,}\S|$)", capsys.readouterr().out, re.MULTILINE)
    assert (left.value.code, shown) == (0, [*COMMANDS, *SERVER_COMMANDS])


def test_help_shows_the_options_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("help", "sql")

    assert capsys.readouterr().out.startswith("usage: querykeep sql ")
    for unknown in (("help", "absent"), ("slq",), ("--nothing",)):
        assert (call(*unknown).status, call(*unknown).err[-22:]) == (2, "See querykeep --help.\n")
    with pytest.raises(SystemExit) as left:
        call("--version")
    assert (left.value.code, capsys.readouterr().out) == (0, f"querykeep {version()}\n")
    assert call("help", "serve").err.startswith("Error: querykeep serve needs the server extra: ")


def test_bash_completes(tmp_path: Path) -> None:
    script = tmp_path / "querykeep.bash"
    script.write_text(call("completion", "bash").out)
    (tmp_path / "config.toml").touch()
    shell = shutil.which("bash")
    assert shell is not None

    # What Tab after `querykeep sql --output conf` asks for, and after `querykeep ref`.
    keys = (
        f". {script}; complete -p querykeep; COMP_WORDS=(querykeep sql --output conf); COMP_CWORD=3; COMP_TYPE=9;"
        ' _shtab_querykeep; echo "${COMPREPLY[@]}"; COMP_WORDS=(querykeep ref); COMP_CWORD=1; _shtab_querykeep;'
        ' echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [shell, "--noprofile", "--norc", "-c", keys],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[1:] == ["config.toml", "refresh"]


#: Packages, beside the standard library, that `sql "SELECT 1"` imports. Each costs every start.
PACKAGES = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "runtimeclient", "sniffio"}
#: What httpx takes along where it is installed; the package querykeep does not bring them.
OF_HTTPX = {"brotli", "brotlicffi", "h2", "socksio", "typing_extensions", "zstandard"}


def imported(arguments: list[str], status: int) -> set[str]:
    """The modules that a command line imports."""
    program = (
        "import sys; before = set(sys.modules); from runtimeclient.main import run;"
        f"assert run('querykeep', {arguments!r}) == {status};"
        "print('MODULES', *(name for name in set(sys.modules) - before if sys.modules[name]))"
    )
    return set(run_python(program).stdout.rpartition("MODULES")[2].split())


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("arguments", [["--help"], ["slq"]])
def test_the_list_of_commands_imports_no_command(arguments: list[str]) -> None:
    modules = imported(arguments, 0 if arguments == ["--help"] else 2)

    assert packages(modules) == {"runtimeclient"}
    assert {name for name in modules if name.startswith("runtimeclient.commands.")} == {"runtimeclient.commands.base"}
    assert not modules & {"importlib.metadata", "runtimeclient.output.formats", "ssl", "subprocess", "tomllib"}


def test_the_options_of_a_command_import_no_library() -> None:
    assert packages(imported(["completion", "bash"], 0)) == {"mcpapi", "operations", "runtimeclient", "shtab"}


@pytest.mark.parametrize("format_", ["table", "json", "csv"])
def test_a_statement_imports_only_what_it_needs(remote: Remote, format_: str) -> None:
    remote.on_sql({"table": ONE, "json": Reply(body=b"[]"), "csv": Reply(content_type="text/csv")}[format_])

    modules = imported(["sql", "SELECT 1", "--format", format_, "--http-endpoint", remote.url], 0)

    assert "httpx" in packages(modules) <= PACKAGES | OF_HTTPX
    unused = {"prompt.repl", "output.charts", "output.arrow_files", "output.programs", "http.resources"}
    assert not modules & {"encodings.idna", *(f"runtimeclient.{name}" for name in unused)}


def test_the_table_has_every_command_of_every_module() -> None:
    modules = {module for module, _ in COMMANDS.values()}

    assert {name for module in modules for name in import_module(module).COMMANDS} == set(COMMANDS)
    assert all(load_command(name).name == name for name in COMMANDS)
