"""A configuration in a fresh directory, loaded from its text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeconf.errors import ConfigError, ConfigFault
from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig
from runtimeconf.state import set_config
from tests.runtimeconf.configurations import Fault, Faults, Load


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    return tmp_path / "runtime.yaml"


@pytest.fixture
def named(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the environment name the YAML, which this process has not read yet and forgets afterwards."""
    monkeypatch.setenv("RUNTIME_CONFIG", str(yaml_file))
    set_config(None)
    yield
    set_config(None)


@pytest.fixture
def load_text(yaml_file: Path) -> Load:
    def load_text(text: str | bytes, environ: dict[str, str] | None = None, mode: int = 0o600) -> RuntimeConfig:
        yaml_file.write_bytes(text.encode() if isinstance(text, str) else text)
        yaml_file.chmod(mode)
        return load(yaml_file, environ or {})

    return load_text


@pytest.fixture
def faults(load_text: Load) -> Faults:
    def faults(*arguments: Any) -> tuple[ConfigFault, ...]:
        with pytest.raises(ConfigError) as caught:
            load_text(*arguments)
        return caught.value.faults

    return faults


@pytest.fixture
def fault(faults: Faults) -> Fault:
    def fault(*arguments: Any) -> str:
        (only,) = faults(*arguments)
        return f"{only.line}: {only.yaml_path}: {only.message}"

    return fault
