"""
Prepares a process: hides API keys in its command line, and replaces closed streams.

Every user of a machine can read every command line (`ps`, `/proc/PID/cmdline`). Linux shows the memory to which it
copied the arguments at startup. A process can overwrite that memory without affecting Python's copy, `sys.argv`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_PROC = Path("/proc/self")
# proc(5): the address of the arguments is field 48 of stat. The name, field 2, may contain spaces.
_ARG_START = 48 - 3


def prepare_process() -> None:
    """Hide keys in the command line of this process, and open missing streams."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # Otherwise files would get its number, and child processes would use them as a stream.
            # Standard input stays unreadable.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR if descriptor else os.O_WRONLY), True)
    is_hidden = hide_api_keys()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The process was started with the stream closed.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (stays open)
    if not is_hidden:
        sys.stderr.write(
            "Warning: other users of this machine can see the API key in the process list:"
            " use --api-key-file or RUNTIME_API_KEY.\n"
        )


def hide_api_keys() -> bool:
    """
    Overwrite the value of every `--api-key` of this process, including misspelt forms, with asterisks.

    Returns:
        False if other users of the machine can still see a key on the command line.
    """
    if not _key_spans([os.fsencode(argument) for argument in sys.argv]):
        return True
    try:
        shown = _PROC.joinpath("cmdline").read_bytes()
        start = int(_PROC.joinpath("stat").read_text("latin-1").rpartition(")")[2].split()[_ARG_START])
        arguments = shown.split(b"\0")
        spans = _key_spans(arguments)
        with (_PROC / "mem").open("r+b", buffering=0) as memory:
            # Check that the arguments are really there, because a kernel may report the address as 0.
            if os.pread(memory.fileno(), len(shown), start) != shown:
                return False
            for offset, length in spans:
                os.pwrite(memory.fileno(), b"*" * length, start + offset)
        hidden = _PROC.joinpath("cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False
    return bool(spans) and all(hidden[offset : offset + length] == b"*" * length for offset, length in spans)


def _key_spans(arguments: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the offset and length of each key in *arguments* joined by NUL bytes."""
    spans = []
    offset = 0
    is_value = False
    for argument in arguments:
        option, equals, value = argument.partition(b"=")
        if is_value:
            spans.append((offset, len(argument)))
            is_value = False
        elif _names_a_key(option):
            if equals:
                spans.append((offset + len(option) + 1, len(value)))
            else:
                is_value = True
        offset += len(argument) + 1
    return [span for span in spans if span[1]]


def _names_a_key(option: bytes) -> bool:
    """Recognise `--api-key` and its misspellings: `--api_key`, `-api-key`, `--apikey`, `--api-ke`."""
    if not option.startswith(b"-"):
        return False
    letters = option.lower().translate(None, b"-_")
    return letters.startswith(b"apik") and not letters.startswith(b"apikeyf")
