"""The deployment files are well-formed, and name only what exists."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_site.parts import PARTS

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"

INSTRUCTIONS = {
    *("CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "WORKDIR"),
}


def test_the_procfile_names_every_part_and_its_command() -> None:
    lines = [line for line in (REPOSITORY / "Procfile").read_text().splitlines() if not line.startswith("#")]

    named = dict(line.split(": ", 1) for line in lines)

    assert named == {name: f"exec .venv/bin/python manage.py run{name}" for name in PARTS}
    commands = REPOSITORY / "runtime_site" / "management" / "commands"
    assert all((commands / f"run{name}.py").exists() for name in PARTS)


def read_unit(name: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read_string((DEPLOY / name).read_text())
    return unit


def test_the_unit_stops_only_the_supervisor_and_names_existing_paths() -> None:
    unit = read_unit("querykeep.service")

    assert unit.sections() == ["Unit", "Service", "Install"]
    assert unit["Service"]["KillMode"] == "mixed"
    assert "/srv/querykeep/manage.py serve --config /srv/flights/runtime.yaml" in unit["Service"]["ExecStart"]


def test_the_backup_copies_what_is_documented() -> None:
    service = read_unit("querykeep-backup.service")["Service"]
    (documented,) = re.findall(r"^tar .*$", (REPOSITORY / "docs/operations.md").read_text(), re.MULTILINE)

    command = shlex.split(service["ExecStart"])
    assert command[0] == "/usr/bin/tar"
    assert [word for word in command[1:] if "state.tar" not in word] == [
        word for word in shlex.split(documented)[1:] if "state.tar" not in word
    ]
    assert service["User"] == read_unit("querykeep.service")["Service"]["User"]
    assert "Timer" in read_unit("querykeep-backup.timer")


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="needs systemd; the strict parsing above runs everywhere",
)
@pytest.mark.parametrize("name", ["querykeep.service", "querykeep-backup.service", "querykeep-backup.timer"])
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    for unit in DEPLOY.glob("querykeep*"):
        # On this machine the paths differ, and the user may not exist.
        text = unit.read_text().replace("/srv/querykeep/.venv/bin/python", sys.executable)
        text = text.replace("User=querykeep\n", "").replace("/srv/flights", str(tmp_path))
        text = text.replace("/srv/backup", str(tmp_path)).replace("/srv/querykeep", str(REPOSITORY))
        (tmp_path / unit.name).write_text(text)

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert [line for line in done.stderr.splitlines() if "querykeep" in line] == []


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def test_the_dockerfile_is_well_formed() -> None:
    found = instructions()

    assert found[0][0] == "FROM"
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert all(rest for _, rest in found)
    assert [name for name, _ in found].count("CMD") == [name for name, _ in found].count("ENTRYPOINT") == 1
    for name, rest in found:
        command = rest.partition("CMD ")[2] if name == "HEALTHCHECK" else rest
        if name in {"CMD", "ENTRYPOINT", "HEALTHCHECK"}:
            assert all(isinstance(word, str) for word in json.loads(command))


def test_the_image_contains_every_room_and_nothing_else() -> None:
    copied = {source for name, rest in instructions() if name == "COPY" for source in rest.split()[:-1]}
    rooms = re.search(r"^ROOMS := (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)

    assert rooms is not None
    assert copied == {"manage.py", "LICENSE", "requirements/base.txt", *rooms[1].split()}
    assert all((REPOSITORY / source).exists() for source in copied)
