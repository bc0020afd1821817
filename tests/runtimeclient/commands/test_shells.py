"""What `querykeep` prints for shells, and what it imports."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runtimeclient import COMMANDS, SERVER_COMMANDS
from runtimeclient.distribution import version
from tests.runtimeclient.calling import call
from tests.runtimeclient.conftest import run_python


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
PACKAGES = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "rich", "runtimeclient", "sniffio"}
#: What httpx takes along where it is installed; the package querykeep does not bring them.
OF_HTTPX = {"brotli", "brotlicffi", "click", "h2", "pygments", "socksio", "typing_extensions", "zstandard"}

OPTIONAL = {"pyarrow", "prompt_toolkit", "plotext", "vl_convert", "tomlkit", "shtab", "django"}


def test_help_and_sql_import_only_what_they_need() -> None:
    program = (
        "import sys; before = set(sys.modules); from runtimeclient.main import run;"
        f"run('querykeep', ['sql', '--help']); assert not {OPTIONAL} & set(sys.modules); print('MODULES');"
        "assert run('querykeep', ['sql', 'SELECT 1', '--http-endpoint', 'http://127.0.0.1:1']) == 3;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )

    done = run_python(program)

    imported = set(done.stdout.rpartition("MODULES")[2].split())
    assert imported <= PACKAGES | OF_HTTPX
    assert "runtimeclient" in imported
