"""Run `manage.py doctor` in this process, and prove that it changes nothing."""

import io
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.core.management import call_command

from doctor.findings import Finding
from tests.system.harness import K1, free_port

#: A YAML must have little, so that nothing is found that a machine may lack.
SMALL = "  query: {workers: 1, memory_limit: 64MiB}\n"
KEYED = f"  auth: {{api-key: {{enabled: true, keys: [{K1}]}}}}\n"


def write(directory: Path, text: str = "", runtime: str = SMALL + KEYED) -> Path:
    """Write a YAML whose addresses are free."""
    binds = f"  http: {{bind: '127.0.0.1:{free_port()}'}}\n  flight: {{bind: '127.0.0.1:{free_port()}'}}\n"
    file = directory / "runtime.yaml"
    file.write_text(f"runtime:\n{'' if 'bind:' in runtime else binds}{runtime}{text}")
    file.chmod(0o600)
    return file


def examine(config: Path, **options: Any) -> tuple[int, list[Finding]]:
    """Return the exit code and the findings. Everything in the directory of the YAML is as it was."""
    before = tree(config.parent)
    said, code = io.StringIO(), 0
    try:
        call_command("doctor", config=config, json=True, stdout=said, **options)
    except SystemExit as exit_:
        code = int(str(exit_.code))
    assert tree(config.parent) == before
    answer = json.loads(said.getvalue())
    found = [Finding(**fields) for fields in answer["findings"]]
    assert {level: sum(one.level == level for one in found) for level in answer["counts"]} == answer["counts"]
    return code, found


def shown(found: Iterable[Finding], about: str = "", level: str = "") -> list[str]:
    """Return `level about: text remedy` of the findings about one thing, or of one level."""
    return [
        f"{one.level} {one.about}: {one.text} {one.remedy}".rstrip()
        for one in found
        if about in {"", one.about} and level in {"", one.level}
    ]


def tree(directory: Path) -> list[tuple[str, int, int, bytes]]:
    """Return what is below *directory*: names, modes, times of change and contents."""
    paths = (Path(root, name) for root, directories, files in os.walk(directory) for name in (*directories, *files))
    found = [(path, path.lstat()) for path in paths]
    return sorted(
        (str(path), status.st_mode, status.st_mtime_ns, path.read_bytes() if stat.S_ISREG(status.st_mode) else b"")
        for path, status in found
    )
