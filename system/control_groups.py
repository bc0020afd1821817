"""The control groups of this process, by which a container or a systemd unit limits it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def files(controller: str, name: str, name_in_v1: str) -> Iterator[Path]:
    """
    Yield the files that may limit this process, from its own group up; some may be missing.

    They have the name *name*, but *name_in_v1* in a hierarchy of version 1, of which there is one for the *controller*.
    """
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = _ROOT / controller if controllers else _ROOT
            group = root / path.lstrip("/")
            for directory in (group, *group.parents):
                if directory.is_relative_to(root):
                    yield directory / (name_in_v1 if controllers else name)
