"""Run a command line: `querykeep ...`, and the client commands of `manage.py`."""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from runtimeclient import COMMANDS, SERVER_COMMANDS
from runtimeclient.argv import prepare_process
from runtimeclient.commands.base import PROG, Invocation, command_parser, load_command, program_parser
from runtimeclient.connection import KEY_FILE, KEY_FILE_HINT
from runtimeclient.distribution import install_command
from runtimeclient.errors import ClientError, NotAuthorisedError, UsageError
from runtimeclient.output.terminal import Console, Streams

INTERRUPTED_STATUS = 130


def main() -> None:
    """Run `querykeep` with the arguments of this process, and exit."""
    prepare_process()
    sys.exit(run(PROG, sys.argv[1:]))


def run(prog: str, arguments: Sequence[str]) -> int:
    """Run the command at the start of *arguments* on this process's streams, and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # UTF-8 in every locale.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        return run_on(Streams(sys.stdin, sys.stdout, sys.stderr), os.environ, prog, arguments)
    except SystemExit as exc:  # --help and --version
        return exc.code if isinstance(exc.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    finally:
        _flush_or_discard(sys.stdout)


def run_on(streams: Streams, environ: Mapping[str, str], prog: str, arguments: Sequence[str]) -> int:
    """
    Run the command at the start of *arguments*, and return its exit status.

    Raises:
        SystemExit: For `--help` and `--version`, which write to the standard output of the process.
    """
    if arguments and arguments[0] == "help":
        arguments = [*arguments[1:2], "--help"]
    name = arguments[0] if arguments else "--help"
    console = Console(streams, environ)
    try:
        if name not in COMMANDS:
            if name in SERVER_COMMANDS:
                raise UsageError(f"{prog} {name} needs the server extra: {install_command('server')}")
            parser = program_parser(prog)
            parser.parse_args([name])
            parser.error("name a command")
        command = load_command(name)
        options = command_parser(command, prog).parse_args(arguments[1:])
        console = Console(streams, environ, options)
        command.call(Invocation(options, console, environ, prog))
    except ClientError as exc:
        if isinstance(exc, NotAuthorisedError) and console.api_key is None and Path(KEY_FILE).is_file():
            exc = NotAuthorisedError(f"{exc} The file {KEY_FILE} here may have it: {KEY_FILE_HINT}")
        console.error(exc)
        return exc.exit_status
    except BrokenPipeError:
        pass  # The reader has closed the pipe, which is not an error.
    return 0


def _flush_or_discard(stream: TextIO) -> None:
    """
    Flush a stream, and discard its buffer if that fails.

    Otherwise Python would retry at exit and change the exit status.
    """
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
