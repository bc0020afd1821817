"""What a signal does to a server that only starts, whatever code it comes into."""

import signal

import pytest

from tests.operating_system.programs import printed, run

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_while_the_engine_computes(number: signal.Signals) -> None:
    ended = run(START, str(int(number)))

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("command", ["serve", "runrefresh", "check"])
def test_a_command_that_reads_keys_leaves_no_core(command: str) -> None:
    code = """
    import resource, sys
    from contextlib import suppress
    import manage

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    sys.argv[1:] = [sys.argv[1], "--config", "missing.yaml"]
    with suppress(SystemExit):
        manage.main()
    print(resource.getrlimit(resource.RLIMIT_CORE))
    """

    assert printed(code, command).splitlines()[-1] == "(0, 0)"


@pytest.mark.parametrize(("command", "module"), [("sql", "runtimeclient.main"), ("check", "manage")])
def test_ctrl_c_while_a_command_is_loaded(command: str, module: str) -> None:
    code = """
    import signal, sys

    class Interrupting:
        @staticmethod
        def find_spec(name, *_):
            if name == sys.argv[2]:
                signal.raise_signal(signal.SIGINT)

    from deploy.wheel.__main__ import main
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.meta_path.insert(0, Interrupting)
    main()
    """

    ended = run(code, command, module)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
