"""A real Prometheus, for the tests and the pictures of the documentation."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import yaml

from tests.system.harness import NO_ROOTS, REPOSITORY, Program, free_port


class Prometheus(Program):
    """Debian's Prometheus with our alert rules, which it evaluates every half a second."""

    def __init__(self, directory: Path, target: str) -> None:
        self.log = directory / "prometheus.log"
        self.directory = directory
        self.url = f"http://127.0.0.1:{free_port()}"
        settings = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(REPOSITORY / "deploy/prometheus/alerts.yml")],
            "scrape_configs": [{"job_name": "querykeep", "static_configs": [{"targets": [target]}]}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))

    def __enter__(self) -> Self:
        if shutil.which("prometheus") is None:
            assert "CI" not in os.environ, "prometheus is missing: .ci/run installs it"
            pytest.skip("needs prometheus")
        options = {
            "config.file": self.directory / "prometheus.yml",
            "storage.tsdb.path": self.directory / "prometheus-data",
            "web.listen-address": self.url.removeprefix("http://"),
        }
        self.run(["prometheus", *(f"--{name}={value}" for name, value in options.items())], dict(os.environ))
        return self

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of its API; None while it does not answer."""
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, verify=NO_ROOTS)
            return answer.json()["data"] if answer.status_code == 200 else None
        return None

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire."""
        found = self.ask("alerts") or {"alerts": []}
        return [alert["labels"] for alert in found["alerts"] if alert["state"] == "firing"]
