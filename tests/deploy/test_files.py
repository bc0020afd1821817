"""The units, the image and the pages that lead to them: each file of `deploy/` is valid and fits the others."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands

from runtimeconf.loader import load
from runtimeconf.model import MIB, RuntimeConfig
from supervisor.parts import PARTS
from tests.deploy.sizing import most_memory
from tests.system.harness import K1, REPOSITORY

DEPLOY = REPOSITORY / "deploy"
PAGE = REPOSITORY / "docs/how-to/virtual-machine.md"
UNITS = sorted([*DEPLOY.glob("*.service"), *DEPLOY.glob("*.socket"), *DEPLOY.glob("*.timer")])


def settings(unit: str) -> dict[str, str]:
    """Return the settings of a unit; of those that are there twice, the last."""
    return dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / unit).read_text(), re.MULTILINE))


def systemd_analyze(*arguments: str) -> None:
    if shutil.which("systemd-analyze") is None:
        assert "CI" not in os.environ, "systemd-analyze is missing: .ci/run installs it"
        pytest.skip("needs systemd-analyze")
    done = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_systemd_knows_every_setting(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace("/opt/querykeep/bin/querykeep", "/bin/true")
        (tmp_path / unit.name).write_text(text)

    systemd_analyze("verify", "--man=no", "--recursive-errors=no", *(str(tmp_path / unit.name) for unit in UNITS))


@pytest.mark.parametrize("unit", [unit.name for unit in UNITS if unit.suffix == ".service"])
def test_the_services_are_hardened(unit: str) -> None:
    systemd_analyze("security", "--offline=true", "--threshold=19", str(DEPLOY / unit))  # 1.9


def configuration_of_the_page(directory: Path) -> RuntimeConfig:
    """Read the YAML of the step list, with secrets and data in *directory*."""
    (text,) = re.findall(r"<<'YAML'\n(.*?)\n *YAML\n", PAGE.read_text(), re.DOTALL)
    (directory / "api-key").write_text(K1)
    file = directory / "runtime.yaml"
    file.write_text(text.replace("/etc/querykeep/secrets", str(directory)))
    return load(file, {})


def test_units_proxies_and_steps_fit_each_other(tmp_path: Path) -> None:
    config = configuration_of_the_page(tmp_path)
    service, socket, backup = map(settings, ("querykeep.service", "querykeep.socket", "querykeep-backup.service"))

    assert config.warnings == ()
    assert socket["ListenStream"] == str(config.http.bind)
    assert service["Wants"] == "querykeep.socket"
    assert f"/var/lib/{service['StateDirectory']}/state" == str(config.state_dir)
    assert f"-C {config.state_dir.parent} " in backup["ExecStart"]
    assert backup["ExecStart"].endswith(f" {config.state_dir.name}")
    (documented,) = re.findall(r"^tar .*$", (REPOSITORY / "docs/operations.md").read_text(), re.MULTILINE)
    assert re.findall(r"--exclude=\S+", backup["ExecStart"]) == re.findall(
        r"--exclude=\S+", documented.replace("'", "")
    )
    assert int(service["TimeoutStopSec"]) > config.shutdown_timeout_s
    assert 0 <= int(service["MemoryMax"].removesuffix("G")) * 1024 * MIB - most_memory(config) < 1024 * MIB
    assert service["TimeoutStartSec"] == "infinity"  # of a reload too, which lasts as long as its loads
    # `reload` looks up the holder of a lock in /proc, which shows no process of another user namespace.
    assert "PrivateUsers" not in service
    for proxy in ("nginx.conf", "Caddyfile"):
        text = (DEPLOY / proxy).read_text()
        assert {str(config.http.bind), str(config.flight.bind)} <= set(re.findall(r"127\.0\.0\.1:\d+", text))
        assert "data.example.com" in text
    assert config.http.allowed_hosts is not None
    assert "data.example.com" in config.http.allowed_hosts
    assert config.http.trusted_proxies == ("127.0.0.1/32",)


def test_the_page_takes_its_files_from_the_wheel() -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    packed = {name for name, target in wheel["force-include"].items() if name == target}

    assert packed == {f"deploy/{unit.name}" for unit in UNITS} | {"deploy/nginx.conf", "deploy/Caddyfile"}
    for pattern in re.findall(r"querykeep/(deploy/[\w.*-]+)", PAGE.read_text()):
        assert [name for name in packed if Path(name).match(pattern)], pattern


def test_the_image_runs_our_commands() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    instructions = [line.split(maxsplit=1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    final = instructions[[number for number, (name, _) in enumerate(instructions) if name == "FROM"][-1] :]
    found = dict(final)

    assert [line for name, line in final if name == "RUN"] == []  # nothing needs a shell there
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", found["USER"])
    assert found["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(found["ENTRYPOINT"]) == ["querykeep"]
    commands = [*json.loads(found["CMD"]), json.loads(found["HEALTHCHECK"].partition("CMD ")[2])[1]]
    assert commands == ["serve", "healthcheck"]
    assert set(commands) <= set(get_commands())
    copied = [line.split()[:-1] for name, line in instructions if name == "COPY" and "--from" not in line]
    assert [name for names in copied for name in names if not (REPOSITORY / name).exists()] == []


def test_the_procfile_names_every_part_and_its_command() -> None:
    lines = [line for line in (REPOSITORY / "Procfile").read_text().splitlines() if not line.startswith("#")]

    assert dict(line.split(": ", 1) for line in lines) == {
        name: f"exec .venv/bin/python manage.py run{name}" for name in PARTS
    }


def test_every_file_has_a_test() -> None:
    known = {unit.name for unit in UNITS} | {"Dockerfile", "nginx.conf", "Caddyfile"}
    known |= {"helm", "kubernetes", "wheel"}  # test_kubernetes.py, test_scaling.py; tests of the wheel
    known |= {"prometheus", "grafana"}  # test_monitoring.py

    assert {path.name for path in DEPLOY.iterdir()} == known
    assert {path.name for path in (DEPLOY / "kubernetes").iterdir()} == {"querykeep.yaml", "spark.yaml"}
    assert {path.name for path in (DEPLOY / "helm").iterdir()} == {"querykeep", "nodes.yaml", "cluster.yaml"}
    assert yaml.safe_load((DEPLOY / "helm/querykeep/Chart.yaml").read_text())["name"] == "querykeep"
