"""The configuration of a process is read on the first call only, even if that fails."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtimeconf.errors import ConfigError
from runtimeconf.state import config_path, get_config, set_config

pytestmark = pytest.mark.usefixtures("named")


def test_the_file_is_named_by_the_environment() -> None:
    assert config_path({"RUNTIME_CONFIG": "/etc/x.yaml"}) == Path("/etc/x.yaml")
    assert config_path({"RUNTIME_CONFIG": ""}) == Path("runtime.yaml")
    assert config_path({}) == Path("runtime.yaml")


def test_c32_it_is_read_once_by_many_threads_too(yaml_file: Path) -> None:
    yaml_file.write_text("name: first\n")

    with ThreadPoolExecutor(8) as pool:
        configs = list(pool.map(lambda _: get_config(), range(32)))
    yaml_file.write_text("name: second\n")

    assert configs[0].name == "first"
    assert {id(config) for config in (*configs, get_config())} == {id(configs[0])}
    set_config(None)
    assert get_config().name == "second"


def test_secrets_come_from_the_environment_of_the_process(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "from-the-process")
    yaml_file.write_text("runtime: {auth: {api-key: {enabled: true, keys: ['${ secrets:api_key }']}}}\n")

    assert [key.reveal() for key in get_config().auth.keys] == ["from-the-process"]


def test_a_failure_is_remembered_and_raised_anew_each_time(yaml_file: Path) -> None:
    errors = []
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            get_config()
        errors.append(caught.value)
        yaml_file.write_text("{}\n")

    assert errors[0] is not errors[1]
    assert errors[0].faults == errors[1].faults
    assert errors[1].__context__ is None
