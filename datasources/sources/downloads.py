"""
Downloads that the engine reads afterwards.

Each goes into an unnamed file in the scratch directory of the load, which disappears with its descriptor, however the
load ends.
"""

import os
import tempfile
from contextlib import ExitStack

from datasources.errors import SourceError
from datasources.sources.formats import Identity, PinnedFile
from datasources.sources.origin import Answer
from datasources.sources.source import Load


class Downloads:
    """
    The downloads of one *load*; *max_size* is the parameter `max_download_size`, the most bytes of all together.

    The files are open until *stack* is closed.
    """

    def __init__(self, load: Load, stack: ExitStack, max_size: str | None) -> None:
        self._load = load
        self._stack = stack
        self._left_bytes, self._reason = load.scratch_bytes, "query.temp_directory_limit"
        if max_size is not None and int(max_size) < load.scratch_bytes:
            self._left_bytes, self._reason = int(max_size), "params.max_download_size"

    def save(self, answer: Answer, shown: str) -> PinnedFile:
        """
        Save the body of *answer*; *shown* names it in errors.

        Raises:
            SourceError: It is empty, cut short, or exceeds the limit.
            SnapshotError: The deadline passed.
            OSError: The disk is full.
        """
        if answer.length is not None and answer.length > self._left_bytes:
            raise self._too_large(shown)
        file = self._stack.enter_context(tempfile.TemporaryFile(dir=self._load.scratch, buffering=0))  # noqa: SIM115
        for block in answer.blocks():
            self._load.deadline.check()
            if len(block) > self._left_bytes:
                raise self._too_large(shown)
            self._left_bytes -= len(block)
            unwritten = memoryview(block)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
        identity = Identity.of(os.fstat(file.fileno()))
        if identity.size == 0:
            raise SourceError(f"'{shown}' is empty (0 bytes).")
        return PinnedFile(file.fileno(), shown, identity)

    def _too_large(self, shown: str) -> SourceError:
        return SourceError(f"'{shown}' has more bytes than {self._reason} allows.")
