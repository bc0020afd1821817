"""
The process that prepares a reload: it reads and checks the configuration file, and sends the result to the supervisor.

The process runs `serve` again with the environment that the runtime was started with, because the configuration file
may refer to secrets in that environment. It sends the configuration, or one line per error, and exits.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

from msgspec import Struct

import authkeys.state
import runtimeconf.state
from runtimeconf import handover
from runtimeconf.model import MetricsConfig, RuntimeConfig
from supervisor import parts, startup
from supervisor.errors import StartError
from supervisor.process_tree import PartCommand
from system.addresses import bind_problem, wait_until_bindable
from system.process_limits import die_with_parent

#: The environment variable with this process's parent and descriptors.
VARIABLE = "RUNTIME_PREPARATION_FDS"


class Preparation(Struct, frozen=True):
    """The input of the process: the configuration in effect, and the descriptor for its result."""

    running: RuntimeConfig
    answer: int


_preparation: Preparation | None = None


def current() -> Preparation | None:
    """Return the input of this process; None if it does not prepare a reload."""
    return _preparation


def keep_environment() -> int:
    """Write the environment of this process to an anonymous file, which `serve` keeps, and return its descriptor."""
    descriptor = os.memfd_create("querykeep-environment", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(
            json.dumps([[os.fsdecode(name), os.fsdecode(value)] for name, value in os.environb.items()]).encode()
        )
    return descriptor


def command(environ: Mapping[str, str], environment: int, running: int, answer: int) -> PartCommand:
    """Return the command that starts the process, with the descriptors of `keep_environment` and `Preparation`."""
    descriptors = (environment, running, answer)
    fields = ",".join(map(str, (os.getpid(), *descriptors)))
    return PartCommand(
        name="reload",
        arguments=[sys.executable, str(parts.MANAGE), *sys.argv[1:]],
        environ={**environ, VARIABLE: fields},
        descriptors=descriptors,
    )


def receive() -> None:
    """Receive the input of this process, if it prepares a reload."""
    global _preparation  # noqa: PLW0603 (a process prepares one reload)
    fields = os.environ.pop(VARIABLE, "")
    if not fields:
        return
    parent, environment, running, answer = map(int, fields.split(","))
    die_with_parent(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(json.loads(os.pread(environment, os.fstat(environment).st_size, 0)))
    _preparation = Preparation(handover.read(running)[0], answer)
    for descriptor in (environment, running):
        os.close(descriptor)


def prepare(preparation: Preparation) -> None:
    """Check the configuration file and send the configuration, or send the errors and exit with 1."""
    running = preparation.running
    try:
        config = runtimeconf.state.get_config()
        if restarts := needs_restart(running, config):
            _refuse(preparation, "\n".join(restarts))
        config = startup.checked_config()
        check_metrics_endpoint(running.metrics, config.metrics)
    except StartError as error:
        _refuse(preparation, str(error))
    startup.log_warnings(config)
    environ = parts.environment("serve", config, os.environ)
    content = parts.content("serve", config, authkeys.state.get_access(), environ=environ)
    handover.write(*content, preparation.answer)


def needs_restart(running: RuntimeConfig, new: RuntimeConfig) -> list[str]:
    """Return a sentence for each setting that differs between *running* and *new* and requires a restart."""
    fixed = {
        "runtime.state_dir": (running.state_dir, new.state_dir),
        "runtime.http.bind": (running.http.bind, new.http.bind),
        "runtime.flight.enabled": (running.flight.enabled, new.flight.enabled),
        "runtime.flight.bind": (running.flight.bind, new.flight.bind),
        "runtime.flight.max_message_bytes": (running.flight.max_message_bytes, new.flight.max_message_bytes),
        "runtime.tls.enabled": (running.tls.enabled, new.tls.enabled),
        "runtime.snapshots": (_shared(running), _shared(new)),
        "runtime.traces": ("on" if running.traces else "off", "on" if new.traces else "off"),
    }
    return [
        f"{name} has changed from {before} to {after}, which needs a restart."
        for name, (before, after) in fixed.items()
        if before != after
    ]


def _shared(config: RuntimeConfig) -> str:
    return "off" if config.snapshots is None else f"{config.snapshots.role} of {config.snapshots.location}"


def check_metrics_endpoint(before: MetricsConfig, after: MetricsConfig) -> None:
    """Raise OSError if the metrics endpoint cannot listen on the address in *after*."""
    if not after.enabled:
        return
    if before.enabled and before.bind.port == after.bind.port:  # The address may only be free later.
        if (problem := bind_problem(after.bind)) is not None:
            raise OSError(problem)
    else:
        wait_until_bindable(after.bind, "runtime.metrics.bind", time.monotonic())


def _refuse(preparation: Preparation, reason: str) -> NoReturn:
    os.pwrite(preparation.answer, reason.encode(), 0)
    sys.exit(1)
