"""
Files that are brought from elsewhere before the engine reads them.

Each goes into a file of the load's scratch directory that has no name from the start: it is gone with its descriptor,
however the load ends.
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

#: How long a server may be silent, unless `client_timeout` says otherwise, in seconds.
DEFAULT_SILENCE_S = 30.0


@dataclass(slots=True)
class Downloads:
    """
    The downloads of one *load*, which together have at most *limit* bytes; *reason* says what limits them.

    They are open until *stack* is closed.
    """

    load: Load
    stack: ExitStack
    limit: int
    reason: str

    @classmethod
    def of(cls, load: Load, stack: ExitStack, max_size: str | None) -> Downloads:
        """Begin the downloads of *load*; *max_size* is the parameter `max_download_size`, in bytes."""
        if max_size is not None and int(max_size) < load.scratch_bytes:
            return cls(load, stack, int(max_size), "params.max_download_size")
        return cls(load, stack, load.scratch_bytes, "query.temp_directory_limit")

    def save(self, answer: Answer, shown: str) -> PinnedFile:
        """
        Bring the body of *answer*; *shown* names it.

        Raises:
            SourceError: It is empty, cut short, or more than the limit.
            SnapshotError: The deadline passed.
            OSError: There is no room for it.
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
