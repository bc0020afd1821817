"""The checks of `manage.py check` beyond the YAML: problems that would prevent a start, or show up after it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.core import checks

import runtimeconf.state
from authkeys import salt
from authkeys.errors import SaltError
from datasources.refresh.dry_run import dry_run
from runtime_site import startup
from runtimeconf.errors import ConfigError
from runtimeconf.model import RuntimeConfig
from system.errors import StateDirectoryError
from system.ports import bind_problem
from system.state_directory import judge_state_dir

DATA_ERROR_ID = "runtime_site.E002"
START_ERROR_ID = "runtime_site.E003"
SOURCE_WARNING_ID = "runtime_site.W001"
MACHINE_WARNING_ID = "runtime_site.W002"


def check_runtime(*_: Any, **__: Any) -> list[checks.CheckMessage]:
    """Return the problems of state directory, addresses, machine, sources and views, without changing anything."""
    try:
        config = runtimeconf.state.get_config()
    except ConfigError:
        return []  # runtimeconf's own check says why.
    messages: list[checks.CheckMessage] = [checks.Error(text, id=START_ERROR_ID) for text in _start_problems(config)]
    messages += [checks.Warning(text, id=MACHINE_WARNING_ID) for text in startup.machine_warnings(config)]
    with suppress(ConfigError):  # Another check reports it.
        found = dry_run(startup.with_checked_statements(config))
        messages += [checks.Error(str(fault), id=DATA_ERROR_ID) for fault in found.errors]
        messages += [checks.Warning(str(fault), id=SOURCE_WARNING_ID) for fault in found.warnings]
    return messages


def _start_problems(config: RuntimeConfig) -> Iterator[str]:
    """Yield a sentence for each problem that would prevent a start, except a port in use by a running runtime."""
    try:
        judge_state_dir(config.state_dir)
        if config.auth.enabled:
            salt.load(config.state_dir)
    except (StateDirectoryError, SaltError) as error:
        yield str(error)
    for address, is_used in ((config.http.bind, True), (config.flight.bind, config.flight.enabled)):
        if is_used and (problem := bind_problem(address)) is not None:
            yield problem
