"""Facts about the machine and its software, without which figures cannot be compared."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.processes import REPOSITORY

_OURS = ("duckdb", "pyarrow", "django", "djangorestframework", "gunicorn", "gevent", "grpcio", "adbc-driver-flightsql")
_PEERS = ("roapi", "pysail", "datasette", "datafusion")


def facts(peers: Path) -> Mapping[str, str]:
    """Return the facts by name."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "Python": " ".join(sys.version.split()),  # including the compiler, which matters too
        "commit": _commit(),
        "versions": ", ".join(f"{name} {_version(name)}" for name in _OURS),
        "peers": ", ".join(f"{name} {_peer_version(peers, name)}" for name in _PEERS),
        "wrk": _wrk(),
    }


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not a clone"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _peer_version(peers: Path, name: str) -> str:
    pattern = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/{name}-*.dist-info"
    return next((path.name.removesuffix(".dist-info").partition("-")[2] for path in peers.glob(pattern)), "absent")


def _wrk() -> str:
    try:
        said = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return "absent"
    return said.split()[1] if len(said.split()) > 1 else "unknown"
