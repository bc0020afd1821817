"""The documents say what is there: links, targets, commands, options, dependencies, versions."""

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from authkeys.credentials import Reason
from authkeys.keys import FINGERPRINT_DIGITS
from datasources.control import DatasetStatus, RefreshStatus
from datasources.errors import INTERRUPTED
from runtimeclient import COMMANDS
from runtimeclient.commands.base import command_parser, load_command
from tests.corpus import each
from tests.system.harness import PATIENCE_S, clean_environ, free_port, wait_for, write_program
from tests.system.harness import REPOSITORY as ROOT

ROOMS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]

#: Made by tools or by the runtime: whatever stands there is not ours.
FOREIGN = {"node_modules", "htmlcov", "secrets"}

FENCE = re.compile(r"^(?P<fence>```+)(?P<language>\w*)\n(?P<body>.*?)^(?P=fence)\s*$", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`+[^`]+`+")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
#: A call of our program. Its name is also that of images, units and resources, which follow other words.
PROGRAM = re.compile(r"(?:manage\.py|(?:^|bin/|[$|] |-- |sudo |-u \w+ )querykeep) (?P<name>[a-z]\w*)(?P<rest>[^|>;&]*)")
HEADING = re.compile(r"^#{1,6} (?P<text>.+?)\s*$", re.MULTILINE)


def texts(*suffixes: str) -> Iterator[Path]:
    for directory, names, files in os.walk(ROOT):
        names[:] = sorted(name for name in names if name not in FOREIGN and not name.startswith("."))
        yield from (Path(directory, file) for file in sorted(files) if file.endswith(suffixes))


DOCUMENTS = list(texts(".md"))
ALL_TEXT = "\n".join(document.read_text() for document in DOCUMENTS)


def document_id(document: Path) -> str:
    return str(document.relative_to(ROOT))


def prose(document: Path) -> str:
    return INLINE_CODE.sub("", FENCE.sub("", document.read_text()))


def anchors(document: Path) -> set[str]:
    """Anchors as GitHub makes them: lower case, punctuation dropped, blanks to hyphens."""
    headings = HEADING.findall(FENCE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def own_commands() -> dict[str, BaseCommand]:
    return {name: load_command_class(app, name) for name, app in get_commands().items() if app in ROOMS}


def options_of_commands() -> dict[str, set[str]]:
    of_server = {name: command.create_parser("manage.py", name) for name, command in own_commands().items()}
    of_client = {name: command_parser(load_command(name), "querykeep") for name in COMMANDS}
    return {name: set(parser._option_string_actions) for name, parser in {**of_server, **of_client}.items()}


def code_lines() -> Iterator[tuple[Path, str]]:
    """Every line of a fenced block, joined over a trailing backslash, and every piece of inline code."""
    for document in DOCUMENTS:
        text = document.read_text()
        for block in FENCE.finditer(text):
            for line in block["body"].replace("\\\n", " ").splitlines():
                yield document, line.strip()
        for code in INLINE_CODE.findall(FENCE.sub("", text)):
            yield document, " ".join(code.strip("` ").split())


def command_lines() -> Iterator[tuple[Path, str, list[str]]]:
    """Every `querykeep NAME ...` or `manage.py NAME ...`: the document, the name, and the words after it."""
    for document, line in code_lines():
        for call in PROGRAM.finditer(line):
            try:
                words = shlex.split(call["rest"], comments=True)
            except ValueError:  # A quoted statement that holds one of |>;&
                words = call["rest"].split()
            yield document, call["name"], words


@each("document", DOCUMENTS)
def test_links_lead_somewhere_and_no_path_is_of_a_machine(document: Path) -> None:
    broken = []
    for target in LINK.findall(prose(document)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        page = (document.parent / path).resolve() if path else document
        if not page.exists() or not page.is_relative_to(ROOT) or (anchor and anchor not in anchors(page)):
            broken.append(target)

    assert broken == []
    assert re.findall(r"(?<![\w.])/(?:home|root|Users|work|mnt|opt(?!/querykeep))/\S+", document.read_text()) == []


def test_every_page_is_in_the_index_and_in_no_list_twice() -> None:
    pages = {page for page in DOCUMENTS if page.is_relative_to(ROOT / "docs")}
    listed_pages = {
        (index.parent / target).resolve()
        for index in (ROOT / "docs" / "README.md", ROOT / "docs" / "internals" / "README.md")
        for target in LINK.findall(index.read_text())
    }

    assert sorted(document_id(page) for page in pages - listed_pages - {ROOT / "docs" / "README.md"}) == []
    for index in DOCUMENTS:
        listed = re.findall(r"^\* \[[^\]]*\]\(([^)]+)\)", index.read_text(), re.MULTILINE)
        assert sorted({page for page in listed if listed.count(page) > 1}) == [], index


def test_pages_named_in_the_code_exist() -> None:
    named = {
        (document_id(file), page)
        for file in [*texts(".py", ".yaml", ".toml", ".in", ".md"), ROOT / "Makefile"]
        for page in re.findall(r"(?<![\w/.])docs/[\w/.-]+\.md", file.read_text())
    }

    assert sorted((file, page) for file, page in named if not (ROOT / page).exists()) == []


def test_every_make_target_is_explained_and_no_other_is_named() -> None:
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = {
        (document_id(document), target)
        for document, line in code_lines()
        for target in re.findall(r"^make (?:PYTHON=\S+ )?([a-z-]+)", line)
    }

    assert sorted(target for target in targets if f"`make {target}`" not in pages) == []
    assert sorted((document, target) for document, target in named if target not in targets) == []


def test_every_command_is_documented_and_no_other_is_named() -> None:
    named = {(document_id(document), name) for document, name, _ in command_lines()}
    existing = {*own_commands(), *COMMANDS}

    assert sorted(existing - {name for _, name in named}) == []
    assert (
        sorted((document, name) for document, name in named if name not in existing | {*get_commands(), "help"}) == []
    )


def test_only_options_that_exist_are_named() -> None:
    options = options_of_commands()

    unknown = [
        (document_id(document), name, word)
        for document, name, words in command_lines()
        for word in words
        if name in options and re.match(r"--[a-z]", word) and word.partition("=")[0] not in options[name]
    ]

    assert unknown == []


def test_the_words_for_states_and_reasons_are_those_of_the_code() -> None:
    http, logs = ((ROOT / "docs" / name).read_text() for name in ("http.md", "logs.md"))
    (dataset, refresh) = re.findall(r"^\| `status` \| (`(?:Initializing|queued)`.*) \|$", http, re.MULTILINE)
    (reasons,) = re.findall(r"^\| `reason` \| (.*) \|$", logs, re.MULTILINE)

    assert set(re.findall("`([A-Z][a-z]+)`", dataset)) == set(get_args(DatasetStatus))
    assert set(re.findall("`([a-z]+)`", refresh)) == set(get_args(RefreshStatus))
    assert set(re.findall("`([a-z_]+)`", reasons)) == {reason.value for reason in Reason}
    assert f"or `{INTERRUPTED}` if" in http


def test_fingerprints_have_the_digits_of_the_code() -> None:
    shown = re.findall(r"\bfingerprint\W{1,3}([0-9a-f]{4,})\b", ALL_TEXT)

    assert shown
    assert {len(one) for one in shown} == {FINGERPRINT_DIGITS}
    assert f"{FINGERPRINT_DIGITS} hexadecimal digits" in (ROOT / "docs" / "security.md").read_text()


def test_every_direct_dependency_is_decided() -> None:
    decided = {}
    for line in (ROOT / "docs/internals/decisions/0002-dependencies.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0] != "Package" and not cells[0].startswith("-"):
            decided[cells[0]] = cells
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [
        project["dependencies"],
        *(listed for extra, listed in project["optional-dependencies"].items() if extra != "all"),
        *(file.read_text().splitlines() for file in (ROOT / "requirements").glob("*.in")),
    ]
    required = {name[0] for line in chain(*lists) if (name := re.match(r"[a-z][\w-]*(?:\[\w+\])?", line))}

    assert set(decided) == required
    assert [cells for cells in decided.values() if not all(cells)] == []


def test_versions_and_licence_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    readme, contributing, changelog, licence = (
        (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
    )

    assert project["requires-python"] == ">=3.11,<3.15"
    assert "Python 3.11 to 3.14" in readme
    assert "Python 3.11 to 3.14" in contributing
    assert f"## [{project['version']}]" in changelog
    assert set(re.findall(r"querykeep-([\d.]+)-py3", ALL_TEXT)) == {project["version"]}
    assert project["license"] == "Apache-2.0"
    assert "Apache-2.0" in readme
    assert "Apache License\n                           Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


@pytest.mark.exhaustive
def test_the_commands_of_the_tutorial_print_what_it_shows(tmp_path: Path) -> None:
    """Run its blocks in order. What needs the network is left out: the installation and the dashboard."""
    port, flight_port = free_port(), free_port()
    binds = f'runtime:\n  http: {{bind: "127.0.0.1:{port}"}}\n  flight: {{bind: "127.0.0.1:{flight_port}"}}\n'
    program = write_program(tmp_path / ".venv")
    path = f"{program.parent}:{os.environ['PATH']}"
    environ = clean_environ(RUNTIME_HTTP_ENDPOINT=f"http://127.0.0.1:{port}", PATH=path)
    configuration = tmp_path / "shop" / "runtime.yaml"
    kept, printed, compared = 'curl() { command curl -sS "$@"; }\n', "", 0

    with ExitStack() as stack:
        for block in FENCE.finditer((ROOT / "docs" / "tutorial.md").read_text()):
            body = block["body"].replace(":8090", f":{port}")
            if block["language"] != "sh":
                if block["language"] != "yaml" and "dashboard" not in body:
                    assert printed.strip() == body.strip()
                    compared += 1
                continue
            left_out = r"make |\. \.venv|cd shop$|python3 -m venv|dashboard-env/"
            lines = [line for line in body.splitlines() if not re.match(left_out, line)]
            lasting = [line for line in lines if line.startswith("export ") or line.endswith("cd shop")]
            kept += "".join(f"{line}\n" for line in lasting)
            is_server = "querykeep serve" in body
            script = ["sh", "-c", kept + "exec " * is_server + "\n".join(line for line in lines if line not in lasting)]
            if is_server:
                with (tmp_path / "log").open("wb") as log:
                    runtime = subprocess.Popen(script, cwd=tmp_path, env=environ, stdout=log, stderr=log)
                stack.callback(runtime.wait, PATIENCE_S)
                stack.callback(runtime.terminate)
                wait_for(lambda: "Ready " in (tmp_path / "log").read_text(), "the runtime")
                continue
            done = subprocess.run(script, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
            printed = done.stdout + done.stderr
            assert done.returncode == ("broken" in body), printed  # a refresh of a broken line fails
            if "querykeep init" in body:
                configuration.write_text(configuration.read_text().replace("runtime:\n", binds))

    assert compared == 5
    assert runtime.returncode == 0


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {document_id(module): module.read_bytes().count(b"\n") for module in texts(".py")}
    assert {module: lines for module, lines in lengths.items() if lines > 500} == {}
