"""The configuration of a process is read on the first call only, even if that fails."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtimeconf.errors import ConfigError
from runtimeconf.model import RuntimeConfig
from runtimeconf.state import config_path, get_config, set_config


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    set_config(None)
    yield
    set_config(None)


def test_the_file_is_named_by_the_environment() -> None:
    assert config_path({"RUNTIME_CONFIG": "/etc/x.yaml"}) == Path("/etc/x.yaml")
    assert config_path({"RUNTIME_CONFIG": ""}) == Path("runtime.yaml")
    assert config_path({}) == Path("runtime.yaml")


def test_c32_it_is_read_once(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CONFIG", str(yaml_file))
    yaml_file.write_text("name: first\n")

    first = get_config()
    yaml_file.write_text("name: second\n")

    assert first.name == "first"
    assert get_config() is first
    set_config(None)
    assert get_config().name == "second"


def test_secrets_come_from_the_environment_of_the_process(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CONFIG", str(yaml_file))
    monkeypatch.setenv("API_KEY", "from-the-process")
    yaml_file.write_text("runtime: {auth: {api-key: {enabled: true, keys: ['${ secrets:api_key }']}}}\n")

    assert [key.reveal() for key in get_config().auth.keys] == ["from-the-process"]


def test_a_failure_is_remembered_and_raised_anew_each_time(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CONFIG", str(yaml_file))

    errors = []
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            get_config()
        errors.append(caught.value)
        yaml_file.write_text("{}\n")

    assert errors[0] is not errors[1]
    assert errors[0].faults == errors[1].faults
    assert errors[1].__context__ is None


def test_a_configuration_can_be_set(tmp_path: Path) -> None:
    config = RuntimeConfig(file=tmp_path / "x.yaml", state_dir=tmp_path)

    set_config(config)

    assert get_config() is config


def test_many_threads_read_it_once(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CONFIG", str(yaml_file))
    yaml_file.write_text("{}\n")

    with ThreadPoolExecutor(8) as pool:
        configs = list(pool.map(lambda _: get_config(), range(32)))

    assert {id(config) for config in configs} == {id(configs[0])}
