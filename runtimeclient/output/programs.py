"""Programs of the user on this terminal: the pager and the editor. The shell runs them, as psql and git do."""

import subprocess
from collections.abc import Mapping
from typing import Any

#: The exit statuses with which a shell reports a program that it cannot run or find.
NOT_STARTED = (126, 127)


def start_program(command: str, *arguments: str, environ: Mapping[str, str], **options: Any) -> "subprocess.Popen[str]":
    """Start *command*, written in the shell's language, with *arguments* after it."""
    if arguments:
        command += ' "$@"'
    return subprocess.Popen(  # noqa: S603 (the user's own program)
        # The shell outlives Ctrl-C, or it would leave the program behind on this terminal.
        ["/bin/sh", "-c", f"trap : INT; {command}", "sh", *arguments],
        env=dict(environ),
        text=True,
        encoding="utf-8",
        errors="backslashreplace",
        # Python ignores SIGPIPE; the programs should not.
        restore_signals=True,
        **options,
    )


def wait_for_program(program: "subprocess.Popen[str]") -> int:
    """Wait for a program on this terminal; return its exit status. Ctrl-C reaches both and is left to the program."""
    while True:
        try:
            return program.wait()
        except KeyboardInterrupt:
            continue
