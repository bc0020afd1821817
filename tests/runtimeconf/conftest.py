"""A configuration in a fresh directory, loaded from its text."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from runtimeconf.errors import ConfigError, ConfigFault
from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig
from tests.runtimeconf.configurations import NO_VARIABLES, Fault, Faults, Load


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    return tmp_path / "runtime.yaml"


@pytest.fixture
def load_text(yaml_file: Path) -> Load:
    def load_text(text: str | bytes, environ: Mapping[str, str] = NO_VARIABLES, mode: int = 0o600) -> RuntimeConfig:
        yaml_file.write_bytes(text.encode() if isinstance(text, str) else text)
        yaml_file.chmod(mode)
        return load(yaml_file, environ)

    return load_text


@pytest.fixture
def faults(load_text: Load) -> Faults:
    def faults(text: str | bytes, environ: Mapping[str, str] = NO_VARIABLES) -> tuple[ConfigFault, ...]:
        with pytest.raises(ConfigError) as caught:
            load_text(text, environ)
        return caught.value.faults

    return faults


@pytest.fixture
def fault(faults: Faults) -> Fault:
    def fault(text: str | bytes, environ: Mapping[str, str] = NO_VARIABLES) -> str:
        (only,) = faults(text, environ)
        return f"{only.line}: {only.yaml_path}: {only.message}"

    return fault
