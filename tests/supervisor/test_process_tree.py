"""The supervisor with small programs as parts: starts, restarts and stops."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import wait_for
from tests.system.processes import is_stopped, shown

#: A program that runs a supervisor, with parts and settings from its argument.
SUPERVISOR = """
import ctypes, json, logging.config, os, signal, sys
from runtime_site import logs
from supervisor import process_tree
from system import heartbeat
settings = json.loads(sys.argv[1])
logging.config.dictConfig(logs.logging_config({}))
process_tree.GOOD_LIFE_S = settings["good_life_s"]
process_tree._LAST_TERM_S, process_tree._LAST_TERM_SHARE = 1e9, settings["last_term"]
if settings["adopts_orphans"]:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, like process 1 of a container
if settings["ignores_children"]:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
terminate = process_tree.Part.terminate
def terminate_after_its_end(part):
    if part.process is not None and not part.is_terminating:
        open(settings["go"], "w").close()
        os.waitid(os.P_PID, part.process.pid, os.WEXITED | os.WNOWAIT)
    terminate(part)
if settings["go"]:
    process_tree.Part.terminate = terminate_after_its_end
asked = iter(range(1000))
def command(part):
    if not settings["hung_s"]:
        return process_tree.PartCommand(environ=dict(os.environ), fatal=78, **part)
    file = heartbeat.Heartbeat.new_file()
    beating = {"descriptors": [file], "heartbeat": file, "hung_s": settings["hung_s"]}
    return process_tree.PartCommand(environ={**os.environ, "HEARTBEAT": str(file)}, **beating, **part)
process_tree.LOOK_S, heartbeat._WARNING_S = settings["look_s"], settings["look_s"] / 2
if settings["has_no_output"]:
    sys.stdout = open("/dev/full", "w", buffering=1)
class Runtime:
    is_ready = lambda self: next(asked) == settings["ready_after"]
    report_ready = lambda self: print("ready", flush=True)
    report_alive = lambda self: open(settings["looks"], "a").write("looks\\n") if settings["looks"] else None
    report_stopping = remind = lambda self: None
    ask_reload = lambda self: logging.getLogger("hup").info("hung up")
    advance = lambda self: float("inf")
supervisor = process_tree.Supervisor(
    map(command, settings["parts"]),
    stop_order=settings["stop_order"],
    shutdown_timeout_s=settings["shutdown_timeout_s"],
)
sys.exit(supervisor.run(Runtime()))
"""

#: The beginning of each part: it unblocks signals, and logs its actions to a file that all parts share.
PART = """
import os, signal, subprocess, sys, time
signal.pthread_sigmask(signal.SIG_SETMASK, ())
name, log = {name!r}, {log!r}
def say(what):
    with open(log, "a") as file:
        file.write(f"{{name}} {{what}}\\n")
def end(*_):
    say("ends")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
say("starts")
"""

#: The defaults of its settings.
SETTINGS = {
    "shutdown_timeout_s": 60.0,
    "last_term": 0.15,
    "good_life_s": 30.0,
    "ignores_children": False,
    "adopts_orphans": False,
    "go": "",
    "has_no_output": False,
    "ready_after": 3,
    "hung_s": 0.0,
    "look_s": 1.0,
    "looks": "",
}

SERVES = "while True: time.sleep(60)"

#: After SIGTERM it waits until a file appears.
WAITS = """
def end(*_):
    say("drains")
    while not os.path.exists({go!r}): time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
say("serves")
while True: time.sleep(60)
"""


@dataclass
class Supervised:
    """A running supervisor, and the output of it and its parts."""

    process: subprocess.Popen[bytes]
    directory: Path

    def said(self) -> list[str]:
        """Return what the parts logged."""
        log = self.directory / "parts.log"
        return log.read_text().splitlines() if log.exists() else []

    def output(self) -> str:
        """Return what the supervisor printed and logged."""
        return (self.directory / "output.log").read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        """Wait for the exit code."""
        return self.process.wait(60)

    def stop(self) -> list[str]:
        """Stop it with SIGTERM and return what the parts logged."""
        self.signal(signal.SIGTERM)
        assert self.ends() == 0
        return self.said()

    def wait_for(self, *said: str) -> None:
        """Wait until the parts have logged all of *said*."""
        wait_for(lambda: set(said) <= set(self.said()), f"{said}, not {self.output()}")

    def delays(self, part: str) -> list[str]:
        """Return the delay of each restart of *part*."""
        return re.findall(rf"part={part} .*delay_s=(\S+)", self.output())


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start supervisors of parts, given as names and programs, which they stop in that order."""
    started: list[Supervised] = []

    def start_one(parts: dict[str, str], *, commands: dict[str, list[str]] | None = None, **more: Any) -> Supervised:
        described: list[dict[str, Any]] = []
        for name, body in parts.items():
            program = PART.format(name=name, log=str(tmp_path / "parts.log")) + textwrap.dedent(body)
            described.append({"name": name, "arguments": [sys.executable, "-c", program]})
        described += [{"name": name, "arguments": arguments} for name, arguments in (commands or {}).items()]
        settings = SETTINGS | {"parts": described, "stop_order": [part["name"] for part in described]} | more
        with (tmp_path / "output.log").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", SUPERVISOR, json.dumps(settings)], stdout=output, stderr=output
            )
        started.append(Supervised(process, tmp_path))
        return started[-1]

    yield start_one
    for supervised in started:
        while supervised.process.poll() is None:
            supervised.signal(signal.SIGTERM)
            wait_for(lambda: supervised.process.poll() is not None, "the end")  # noqa: B023 (called at once)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in shown(pid, f"task/{pid}/children").split()]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_parts_run_concurrently_and_a_stop_waits_for_each_in_order(start: Start, tmp_path: Path) -> None:
    waits = WAITS.format(go=str(tmp_path / "go"))
    supervised = start({"a": SERVES, "b": waits, "c": SERVES}, stop_order=("b", "c", "a"))
    supervised.wait_for("a starts", "b serves", "c starts")
    children = children_of(supervised.process.pid)
    assert len({os.getsid(child) for child in children}) == 3

    supervised.signal(signal.SIGINT)
    supervised.wait_for("b drains")
    assert "c ends" not in supervised.said()
    (tmp_path / "go").touch()

    assert supervised.ends() == 0
    assert supervised.said()[-3:] == ["b drains", "c ends", "a ends"]
    assert all(is_gone(child) for child in children)


def test_parts_that_exit_or_cannot_be_started_are_restarted_with_a_growing_delay(start: Start, tmp_path: Path) -> None:
    fails_later = f"""
        if os.path.exists({str(tmp_path / "again")!r}): sys.exit(78)
        open({str(tmp_path / "again")!r}, "w").close()
    """
    ends = {
        "a": ("sys.exit(0)", "exit code 0"),
        "b": ("sys.exit(3)", "exit code 3"),
        "c": ("os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL"),
        "d": ("os.kill(os.getpid(), 40)", "signal 40"),
        "e": (fails_later, "exit code 78"),  # After a restart this code does not stop the runtime.
        "f": ("", "No such file or directory"),
    }
    programs = {name: program for name, (program, _) in ends.items() if program}
    supervised = start({**programs, "g": SERVES}, commands={"f": [str(tmp_path / "absent")]})

    for name, (_, reason) in ends.items():
        wait_for(lambda: len(supervised.delays(name)) >= 3, f"three new starts of {name}")  # noqa: B023 (called at once)
        assert supervised.delays(name)[:3] == ["0.2", "0.4", "0.8"]
        assert f'part={name} reason="{reason}"' in supervised.output()
    assert supervised.stop().count("g starts") == 1


def test_the_delay_starts_over_after_a_long_life(start: Start) -> None:
    supervised = start({"a": "sys.exit(1)"}, good_life_s=0.0)
    wait_for(lambda: len(supervised.delays("a")) >= 3, "three new starts")

    assert supervised.delays("a")[:3] == ["0.2", "0.2", "0.2"]


def test_processes_left_by_a_part_are_killed(start: Start, tmp_path: Path) -> None:
    leaves = f"""
        if not os.path.exists({str(tmp_path / "left")!r}):
            left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open({str(tmp_path / "left")!r}, "w") as file: file.write(str(left.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        say("serves")
        while True: time.sleep(60)
    """
    supervised = start({"a": leaves})
    supervised.wait_for("a serves")

    wait_for(lambda: is_gone(int((tmp_path / "left").read_text())), "the end of what was left")


def test_a_part_that_cannot_start_stops_the_runtime(start: Start) -> None:
    after_a = """
        while "a starts" not in open(log).read(): time.sleep(0.01)
        sys.exit(78)
    """
    supervised = start({"a": SERVES, "b": after_a})

    assert supervised.ends() == 1
    assert "cannot start" in supervised.output()
    assert supervised.said().count("b starts") == 1
    assert supervised.said()[-1] == "a ends"


STUBBORN = 'signal.signal(signal.SIGTERM, lambda *_: say("hears")); say("serves")\nwhile True: time.sleep(60)'


@pytest.mark.exhaustive
def test_parts_that_do_not_exit_in_time_are_killed(start: Start) -> None:
    supervised = start({"a": STUBBORN, "b": SERVES}, shutdown_timeout_s=6.0, last_term=0.45)
    supervised.wait_for("a serves", "b starts")

    assert supervised.stop()[-2:] == ["a hears", "b ends"]
    assert "did not end in time part=a" in supervised.output()


def test_a_second_signal_stops_immediately(start: Start) -> None:
    supervised = start({"a": STUBBORN, "b": SERVES}, shutdown_timeout_s=3600.0)
    supervised.wait_for("a serves", "b starts")
    children = children_of(supervised.process.pid)

    supervised.signal(signal.SIGTERM)
    supervised.wait_for("a hears")
    supervised.signal(signal.SIGINT)

    assert supervised.ends() == 1
    assert all(is_gone(child) for child in children)
    assert "b ends" not in supervised.said()


def test_a_part_that_exits_during_a_stop_is_not_restarted(start: Start, tmp_path: Path) -> None:
    slow = WAITS.format(go=str(tmp_path / "go"))
    supervised = start({"a": slow, "b": SERVES})
    supervised.wait_for("a serves", "b starts")
    (b,) = (child for child in children_of(supervised.process.pid) if b"'b'" in shown(child, "cmdline"))

    supervised.signal(signal.SIGTERM)
    supervised.wait_for("a drains")
    os.kill(b, signal.SIGKILL)
    wait_for(lambda: "ended unexpectedly" in supervised.output(), "the end to be noticed")
    (tmp_path / "go").touch()

    assert supervised.ends() == 0
    assert "ended unexpectedly part=b" in supervised.output()
    assert supervised.said().count("b starts") == 1


def test_a_part_that_exits_just_before_its_sigterm_delays_nothing(start: Start, tmp_path: Path) -> None:
    ends_when_its_turn_comes = """
        while not os.path.exists({go!r}): time.sleep(0.01)
        sys.exit(3)
    """.format(go=str(tmp_path / "go"))
    parts = {"a": ends_when_its_turn_comes, "b": ends_when_its_turn_comes}
    supervised = start(parts, shutdown_timeout_s=3600.0, go=str(tmp_path / "go"))
    supervised.wait_for("a starts", "b starts")

    supervised.stop()

    assert "did not end in time" not in supervised.output()


BEATS = """
import ctypes, threading
from system.heartbeat import Heartbeat
beat = Heartbeat(int(os.environ["HEARTBEAT"])).beat
def beat_on():
    while True:
        beat()
        time.sleep(0.02)
"""


def test_a_part_that_hangs_is_killed_and_restarted_with_a_growing_delay(start: Start) -> None:
    parts = {
        "a": BEATS + "beat()\nsubprocess.Popen(['sleep', '600'])\nos.kill(os.getpid(), signal.SIGSTOP)",
        "b": BEATS + "threading.Thread(target=beat_on).start(); ctypes.PyDLL(None).sleep(600)  # without the GIL",
        "c": "say('imports'); time.sleep(600)",
    }
    supervised = start(parts, hung_s=0.3, look_s=0.05)

    for part in ("a", "b"):
        wait_for(lambda: len(supervised.delays(part)) >= 2, f"two new starts of {part}")  # noqa: B023 (called at once)
        assert supervised.delays(part)[:2] == ["0.2", "0.4"]
        assert f'part={part} reason="signal SIGKILL"' in supervised.output()
        silent = re.findall(rf"does not respond part={part} silent_s=(\S+)", supervised.output())
        assert min(map(float, silent)) >= 0.3
    assert supervised.said().count("c imports") == 1

    def has_ended() -> bool:
        supervised.signal(signal.SIGTERM)  # The second one kills; two at once may count as one.
        return supervised.process.poll() is not None

    wait_for(has_ended, "the end")


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [signal.SIGTSTP, signal.SIGSTOP])
def test_no_part_is_killed_for_a_time_in_which_its_supervisor_did_not_run(start: Start, how: signal.Signals) -> None:
    supervised = start(dict.fromkeys("ab", BEATS + 'say("serves")\nbeat_on()'), hung_s=4.0)
    supervised.wait_for("a serves", "b serves")
    members = [supervised.process.pid, *children_of(supervised.process.pid)]

    for pid in members if how == signal.SIGSTOP else members[:1]:
        os.kill(pid, how)
    wait_for(lambda: all(map(is_stopped, members)), "all to stop")
    until = time.monotonic() + 8.0
    wait_for(lambda: time.monotonic() > until, "more than the time after which a part hangs")
    for pid in members if how == signal.SIGSTOP else members[:1]:
        os.kill(pid, signal.SIGCONT)
    until = time.monotonic() + 6.0
    wait_for(lambda: time.monotonic() > until, "the same once more")

    assert "does not respond" not in supervised.output()
    assert sorted(line for line in supervised.stop() if line.endswith("starts")) == ["a starts", "b starts"]


def test_the_supervisor_looks_around_also_while_it_stops(start: Start, tmp_path: Path) -> None:
    looks = tmp_path / "looks"
    supervised = start({"a": WAITS.format(go=str(tmp_path / "go"))}, look_s=0.05, looks=str(looks))
    supervised.wait_for("a serves")

    supervised.signal(signal.SIGTERM)
    supervised.wait_for("a drains")
    before = looks.stat().st_size
    wait_for(lambda: looks.stat().st_size > before + 20, "more looks")
    (tmp_path / "go").touch()

    assert supervised.ends() == 0


def test_other_signals_are_ignored_and_readiness_is_reported_once(start: Start) -> None:
    supervised = start({"a": SERVES})
    supervised.wait_for("a starts")
    wait_for(lambda: "ready" in supervised.output(), "readiness")

    usual = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU)
    for number in (*usual, signal.SIGCHLD, signal.SIGHUP):
        supervised.signal(number)

    wait_for(lambda: "hung up" in supervised.output(), "the line about SIGHUP")
    assert supervised.stop() == ["a starts", "a ends"]
    assert supervised.output().count("ready") == 1


#: Logs a line every few milliseconds.
TICKS = """
number = 0
while True:
    say(f"tick {(number := number + 1)}")
    time.sleep(0.005)
"""


def test_a_suspended_supervisor_resumes(start: Start) -> None:
    supervised = start({"a": TICKS}, ready_after=-1)
    supervised.wait_for("a tick 1")

    for _ in range(5):
        supervised.signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(supervised.process.pid), "the stop")
        ticks = len(supervised.said())
        wait_for(lambda: len(supervised.said()) > ticks + 150, "its wait to be over")  # noqa: B023 (called at once)
        supervised.signal(signal.SIGCONT)
        wait_for(lambda: not is_stopped(supervised.process.pid), "it to go on")

    supervised.signal(signal.SIGHUP)
    wait_for(lambda: "hung up" in supervised.output(), "the line about SIGHUP")
    supervised.stop()
    assert "immediately" not in supervised.output()


def test_ctrl_z_suspends_the_parts_and_their_children(start: Start) -> None:
    supervised = start({"a": 'subprocess.Popen(["sleep", "600"]); say("serves")\n' + SERVES, "b": SERVES})
    supervised.wait_for("a serves", "b starts")
    parts = children_of(supervised.process.pid)
    members = [supervised.process.pid, *parts, *(child for part in parts for child in children_of(part))]
    assert len(members) == 4

    supervised.signal(signal.SIGTSTP)
    wait_for(lambda: all(map(is_stopped, members)), "all to stop")
    supervised.signal(signal.SIGCONT)
    wait_for(lambda: not any(map(is_stopped, members)), "all to go on")

    supervised.stop()
    assert all(is_gone(member) for member in members[:3])


def test_a_failed_readiness_report_changes_nothing(start: Start) -> None:
    supervised = start({"a": SERVES}, has_no_output=True)

    wait_for(lambda: "could not be reported" in supervised.output(), "the line about it")
    supervised.signal(signal.SIGHUP)
    wait_for(lambda: "hung up" in supervised.output(), "the supervisor to go on")
    wait_for(lambda: supervised.said() == ["a starts"], "the part")


def test_an_inherited_ignored_sigchld_changes_nothing(start: Start) -> None:
    supervised = start({"a": "sys.exit(3)"}, ignores_children=True)

    wait_for(lambda: 'reason="exit code 3"' in supervised.output(), "the end to be noticed")


def test_as_process_1_it_reaps_orphans(start: Start, tmp_path: Path) -> None:
    leaves = f"""
        orphan = "import os, time; os.setsid(); time.sleep(0.5)"
        parent = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {{orphan!r}}]).pid)"
        pid = subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, check=True).stdout
        with open({str(tmp_path / "orphan.new")!r}, "wb") as file: file.write(pid)
        os.rename({str(tmp_path / "orphan.new")!r}, {str(tmp_path / "orphan")!r})
        while True: time.sleep(60)
    """
    supervised = start({"a": leaves}, adopts_orphans=True)
    wait_for((tmp_path / "orphan").exists, "the orphan")

    wait_for(lambda: is_gone(int((tmp_path / "orphan").read_text())), "the burial")
    assert supervised.process.poll() is None
