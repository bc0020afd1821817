"""Edit a statement in the user's own editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from runtimeclient.errors import UsageError
from runtimeclient.pager import wait_for_program

#: Variables that name an editor, as psql and the DuckDB shell look for them.
_VARIABLES = ("EDITOR", "VISUAL")
_USUAL_EDITOR = "vi"


def edit(text: str, environ: Mapping[str, str]) -> str | None:
    """
    Let the user edit *text* in EDITOR, else VISUAL, else vi.

    Args:
        text: What to begin with.
        environ: The environment of the editor.

    Returns:
        What was saved, without white space around it; None if the editor failed or changed nothing.

    Raises:
        UsageError: The editor cannot be started, or what it left is no text in UTF-8.
    """
    name = next((environ[variable] for variable in _VARIABLES if environ.get(variable)), _USUAL_EDITOR)
    # Made for this user alone, under a name that was free.
    descriptor, path = tempfile.mkstemp(suffix=".sql", prefix="statement-")
    file = Path(path)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text + "\n")
        status = wait_for_program(subprocess.Popen([*shlex.split(name), path], env=dict(environ), text=True))  # noqa: S603 (the user's own)
        edited = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        raise UsageError(f"The editor {name} cannot be used: name another one in EDITOR.") from exc
    finally:
        file.unlink(missing_ok=True)
    return edited if status == 0 and edited != text else None
