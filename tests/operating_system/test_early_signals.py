"""What a signal does to a server that only starts, whatever code it comes into."""

import signal

import pytest

from tests.operating_system.programs import run

#: A start that gets a signal while the engine, which judges the SQL of the YAML, computes.
START = """
import os, sys, threading, time, duckdb
from system.early_signals import take_signals

def interrupt():
    clock = time.pthread_getcpuclockid(threading.main_thread().ident)
    until = time.clock_gettime(clock) + 0.2
    while time.clock_gettime(clock) < until:
        time.sleep(0.01)
    os.kill(os.getpid(), int(sys.argv[1]))

take_signals()
engine = duckdb.connect(config={"threads": 1})
threading.Thread(target=interrupt, daemon=True).start()
engine.execute("SELECT count(*) FROM range(1000000000000)").fetchall()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_engine_computes(number: signal.Signals) -> None:
    ended = run(START, str(int(number)))

    assert (ended.returncode, ended.stderr) == (0, "")
