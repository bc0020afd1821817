"""
The support bundle: what others need to see to help, without a secret.

Each file has only fields that are listed here. Neither SQL, nor data, nor logs, nor messages that may quote them are in
it, and what `redaction` leaves out of the YAML is left out of all texts.
"""

import io
import json
import os
import platform
import re
import resource
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from queryengine.manifest import Column, ManifestError, read_manifest
from runtime_site.doctor import machine, running
from runtime_site.doctor.configuration import Configuration
from runtime_site.doctor.findings import Finding
from runtime_site.doctor.redaction import Redaction, Scrubber, secrets_of
from runtime_site.doctor.state_files import listed
from supervisor.project import PROJECT, project
from supervisor.reload import Report
from system import sandbox
from system.memory import memory_bytes
from system.state_directory import KINDS

_DIRECTORY = "querykeep-support"
#: A type without names of fields and values of enumerations, which are data, such as `DECIMAL(18,3)[]`.
_PLAIN_TYPE = re.compile(r"[A-Z][A-Z0-9_ ]*(\([0-9]+(, ?[0-9]+)?\))?(\[[0-9]*\])*")
_KINDS = ("ENUM", "MAP", "STRUCT", "UNION")
_LIMITS = ("NOFILE", "DATA", "AS", "STACK", "NPROC", "FSIZE", "CORE", "CPU", "MEMLOCK")


def create(path: Path) -> int:
    """
    Create the file *path* for a bundle, readable by this user only, and return its descriptor.

    Raises:
        OSError: It exists, also as a link, or cannot be created.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def content(read: Configuration, findings: Iterable[Finding], runtime: running.Runtime) -> bytes:
    """Return the bundle, a compressed tar file."""
    redaction = None if read.document is None else Redaction(read.document)
    secrets = () if read.config is None else secrets_of(read.config)
    scrubber = Scrubber(secrets, () if redaction is None else redaction.hidden)
    files: dict[str, Callable[[], object]] = {
        "findings.json": lambda: [_plain(finding) for finding in findings],
        "versions.json": _versions,
        "machine.json": lambda: _machine(read.state_dir),
        "state.json": lambda: _state(read.state_dir, runtime),
    }
    texts = {name: json.dumps(_scrubbed(_tried(make), scrubber), indent=1) for name, make in files.items()}
    # Its values are redacted one by one.
    texts["configuration.yaml"] = yaml.safe_dump(redaction.content if redaction else None, sort_keys=False)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in texts.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{_DIRECTORY}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _tried(make: Callable[[], object]) -> object:
    """Return what *make* returns, or that it failed: a bundle of a broken runtime is the one that is needed."""
    try:
        return make()
    except Exception as exc:  # noqa: BLE001 (its text may hold anything)
        return {"failed": type(exc).__name__}


def _scrubbed(value: Any, scrubber: Scrubber) -> Any:
    if isinstance(value, str):
        return scrubber.scrubbed(value)
    if isinstance(value, Mapping):
        return {name: _scrubbed(item, scrubber) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item, scrubber) for item in value]
    return value


def _plain(finding: Finding) -> dict[str, str]:
    fields = asdict(finding)
    shared: str = fields.pop("shared")
    return fields | {"text": shared or finding.text}


def _versions() -> dict[str, str]:
    version, _ = project()
    return {
        PROJECT: version,
        "python": sys.version,
        "platform": platform.platform(),
        **machine.library_versions(),
    }


def _machine(state_dir: Path | None) -> dict[str, object]:
    existing = next((path for path in (state_dir, *state_dir.parents) if path.is_dir()), None) if state_dir else None
    disk = None if existing is None else os.statvfs(existing)
    return {
        "memory_bytes": memory_bytes(),
        "processors": len(os.sched_getaffinity(0)),
        "processor_quota": machine.processor_quota(),
        "load_average": os.getloadavg(),
        "sandbox_lacks": sandbox.missing(),
        "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS},
        "disk": None
        if disk is None
        else {
            "bytes": disk.f_blocks * disk.f_frsize,
            "free_bytes": disk.f_bavail * disk.f_frsize,
            "free_files": disk.f_favail,
            "is_noexec": bool(disk.f_flag & os.ST_NOEXEC),
            "is_read_only": bool(disk.f_flag & os.ST_RDONLY),
        },
    }


def _state(state_dir: Path | None, runtime: running.Runtime) -> dict[str, object]:
    if state_dir is None:
        return {}
    return {
        "manifest": _tried(lambda: _manifest(state_dir)),
        "reload": _reload(state_dir),
        "files": {name: _entry(state_dir / name, size) for name, size in listed(state_dir)[0] if name in KINDS},
        "runtime": {
            "is_running": runtime.is_running,
            "is_supervised": runtime.is_supervised,
            "processes": [
                {"part": process.part, "state": process.state, "age_s": round(time.time() - process.started)}
                for process in runtime.processes
            ],
        },
    }


def _manifest(state_dir: Path) -> object:
    try:
        manifest = read_manifest(state_dir)
    except ManifestError as exc:
        return str(exc)
    # No names of columns: in a file without a header these are data.
    return {
        "generation": manifest.generation,
        "snapshots": [
            {
                "dataset": snapshot.dataset,
                "rows": snapshot.rows,
                "size_bytes": snapshot.size_bytes,
                "created_at": snapshot.created_at,
                "has_source_version": snapshot.source_version is not None,
                "column_types": [_type_of(column) for column in snapshot.columns[:1000]],
            }
            for snapshot in manifest.snapshots
        ],
    }


def _type_of(column: Column) -> str:
    """Return the type of *column*; of a nested one or an enumeration only what it is."""
    if _PLAIN_TYPE.fullmatch(column.type):
        return column.type
    return next((f"{kind}(...)" for kind in _KINDS if column.type.startswith(f"{kind}(")), "...")


def _reload(state_dir: Path) -> object:
    report = Report.read(state_dir)
    # The errors may quote SQL.
    return report and {"state": report.state, "step": report.step, "errors": len(report.errors)}


def _entry(path: Path, size: int) -> dict[str, int | bool]:
    if not path.is_dir():
        return {"bytes": size}
    entries, is_whole = listed(path)
    return {"entries": len(entries), "bytes": sum(count for _, count in entries), "is_whole": is_whole}
