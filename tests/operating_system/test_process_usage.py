"""What processes use, of which a test knows what they do."""

import os
import subprocess
import sys
from pathlib import Path

from system.memory import out_of_memory_kills
from system.process_usage import arguments, children, started_at, usage_of
from tests.system.harness import wait_for

#: Works for a while in a child that ends, then waits in another one.
WORKING = """
import subprocess, sys
code = "import time; began = time.process_time()\\nwhile time.process_time() - began < 0.3: pass"
subprocess.run([sys.executable, "-c", code])
other = subprocess.Popen([sys.executable, "-c", "print('on', flush=True); input()"], stdin=subprocess.PIPE)
input()
other.communicate()
"""


def test_a_family_counts_its_members_and_those_that_have_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"

        usage = usage_of(process.pid)
        assert usage.processes == 2
        assert usage.cpu_s >= 0.3
        assert usage.resident_bytes > 8_000_000
        assert len(children(process.pid)) == 1
        assert process.pid in children(os.getpid())
        assert arguments(process.pid)[1] == "-c"
        assert started_at(process.pid) != started_at(os.getpid())
        process.communicate("\n")

    wait_for(lambda: started_at(process.pid) is None, "its end")
    assert usage_of(process.pid).processes == 0
    assert arguments(process.pid) == []
    assert children(process.pid) == []


def test_kills_for_lack_of_memory_are_those_of_the_kernel() -> None:
    lines = Path("/proc/vmstat").read_text().splitlines()

    assert f"oom_kill {out_of_memory_kills()}" in lines
