"""
Downloads that the engine reads afterwards.

Each goes into an unnamed file in the scratch directory of the load, which disappears with its descriptor, however the
load ends.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass

from datasources.errors import SourceError
from datasources.sources.formats import Identity, PinnedFile
from datasources.sources.origin import Answer
from datasources.sources.source import Load

#: The default of `client_timeout`: the seconds for which a server may be silent.
DEFAULT_SILENCE_S = 30.0


@dataclass(slots=True)
class Downloads:
    """
    The downloads of one *load*: at most *limit* bytes in all, a limit that *reason* names.

    The files are open until *stack* is closed.
    """

    load: Load
    stack: ExitStack
    limit: int
    reason: str

    @classmethod
    def of(cls, load: Load, stack: ExitStack, max_size: str | None) -> Downloads:
        """Return the downloads of *load*; *max_size* is the parameter `max_download_size`, in bytes."""
        if max_size is not None and int(max_size) < load.scratch_bytes:
            return cls(load, stack, int(max_size), "params.max_download_size")
        return cls(load, stack, load.scratch_bytes, "query.temp_directory_limit")

    def save(self, answer: Answer, shown: str) -> PinnedFile:
        """
        Save the body of *answer*; *shown* names it in errors.

        Raises:
            SourceError: It is empty, cut short, or exceeds the limit.
            SnapshotError: The deadline passed.
            OSError: The disk is full.
        """
        if answer.length is not None and answer.length > self.limit:
            raise self._too_large(shown)
        file = self.stack.enter_context(tempfile.TemporaryFile(dir=self.load.scratch, buffering=0))  # noqa: SIM115
        for block in answer.blocks():
            self.load.deadline.check()
            if len(block) > self.limit:
                raise self._too_large(shown)
            self.limit -= len(block)
            unwritten = memoryview(block)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
        identity = Identity.of(os.fstat(file.fileno()))
        if identity.size == 0:
            raise SourceError(f"'{shown}' is empty (0 bytes).")
        return PinnedFile(file.fileno(), shown, identity)

    def _too_large(self, shown: str) -> SourceError:
        return SourceError(f"'{shown}' has more bytes than {self.reason} allows.")
