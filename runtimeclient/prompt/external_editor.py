"""Edit a statement in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from runtimeclient.errors import UsageError
from runtimeclient.output.pager import wait_for_program


def edit(text: str, environ: Mapping[str, str]) -> str | None:
    """
    Let the user edit *text* in EDITOR, else VISUAL, else vi, which gets this environment.

    Returns:
        The saved text, stripped; None if the editor failed or nothing changed.

    Raises:
        UsageError: The editor cannot be started, or the saved file is not UTF-8.
    """
    # In the order that psql and the DuckDB shell use.
    name = environ.get("EDITOR") or environ.get("VISUAL") or "vi"
    # mkstemp: mode 0600, a new file.
    descriptor, path = tempfile.mkstemp(suffix=".sql", prefix="statement-")
    file = Path(path)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text + "\n")
        status = wait_for_program(subprocess.Popen([*shlex.split(name), path], env=dict(environ), text=True))  # noqa: S603 (the user's own)
        edited = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        raise UsageError(f"The editor {name} cannot be used: name another in EDITOR.") from exc
    finally:
        file.unlink(missing_ok=True)
    return edited if status == 0 and edited != text else None
