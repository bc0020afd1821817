"""Temporary files in a load's scratch directory. They have no name, and disappear with their descriptors."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack

from datasources.errors import SourceError
from datasources.sources.pinned_file import Identity, PinnedFile
from datasources.sources.source import Load


class ScratchSpace:
    """
    The scratch space of one *load*. Its limit applies to all files together. They stay open until *stack* is closed.

    Attributes:
        deadline: The end of the load.
        left_bytes: The remaining bytes.
    """

    def __init__(self, load: Load, stack: ExitStack) -> None:
        self.deadline = load.deadline
        self.left_bytes = load.scratch_bytes
        self._directory = load.scratch
        self._stack = stack

    def save(self, blocks: Iterable[bytes], shown: str) -> PinnedFile:
        """
        Write *blocks* to a new file. *shown* names it in errors.

        Raises:
            SourceError: The file exceeds the space.
            SnapshotError: The deadline has passed.
            OSError: The disk is full.
        """
        file = self._stack.enter_context(tempfile.TemporaryFile(dir=self._directory, buffering=0))  # noqa: SIM115
        for block in blocks:
            self.deadline.check()
            self.left_bytes -= len(block)
            if self.left_bytes < 0:
                raise too_large(shown, "query.temp_directory_limit")
            unwritten = memoryview(block)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
        return PinnedFile(file.fileno(), shown, Identity.of(os.fstat(file.fileno())))


def too_large(shown: str, limit: str) -> SourceError:
    """Return the error for a file that exceeds *limit*, the name of a setting."""
    return SourceError(f"'{shown}' is larger than {limit} allows.")
