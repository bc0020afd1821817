from pathlib import Path

from system.memory import memory_bytes


def test_it_is_the_memory_of_the_machine_or_less() -> None:
    (total,) = (line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)

    assert 0 < memory_bytes() <= int(total) * 1024
