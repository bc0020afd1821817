"""Engine workers in processes of their own, over any configuration, and their client."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queryengine.pool.client import EngineClient
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from tests.queryengine.publishing import PATIENCE_S, wait_until

_ENGINE = """
import logging.config, os, sys
from queryengine.pool.arbiter import run_engine
from runtime_site.logs import logging_config
from runtimeconf import handover
logging.config.dictConfig(logging_config(os.environ))
config, extra = handover.read(int(sys.argv[1]))
run_engine(config, extra["several_keys"])
"""


@contextmanager
def running(config: RuntimeConfig, *, stack: str = "") -> Iterator[EngineClient]:
    """
    Start the engine of *config*, for several keys, and stop it at the end of the block.

    *stack* holds the arguments of the shell's `ulimit`, for a limit on the engine's stack.
    """
    shell = ["sh", "-c", f'ulimit {stack}; exec "$@"', "sh"] if stack else []
    config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = handover.write(handover.without_sources(config), {"several_keys": True})
    log = config.state_dir / "engine.log"
    with log.open("wb") as stderr:
        engine = subprocess.Popen(
            [*shell, sys.executable, "-c", _ENGINE, str(descriptor)],
            pass_fds=[descriptor],
            stderr=stderr,
            cwd=Path(__file__).parents[2],
        )
    os.close(descriptor)
    client = EngineClient(config)
    try:
        wait_until(lambda: client.is_alive() or engine.poll() is not None, within_s=PATIENCE_S)
        assert engine.poll() is None, log.read_text()
        yield client
    finally:
        client.close()
        engine.send_signal(signal.SIGTERM)
        try:
            engine.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            engine.kill()
            raise
