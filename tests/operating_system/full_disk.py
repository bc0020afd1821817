"""A file system that has no room for another directory, as far as this process is concerned."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def no_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse each new directory in an open one, as a file system without inodes does."""
    mkdir = os.mkdir

    def refuse(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mkdir(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        yield
