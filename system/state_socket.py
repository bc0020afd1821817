"""Sockets in the state directory, and whether their names still lead to them."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from system.state_directory import file_id


class StateSocket:
    """
    A socket in the state directory at which other processes of the runtime connect.

    Whoever makes it has the lock that goes with its name, so a socket that is there is a dead predecessor's.

    Attributes:
        listener: The listening socket.

    Raises:
        OSError: It cannot be made, or something else has its name.
    """

    def __init__(self, path: Path, backlog: int) -> None:
        self._path = path
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise FileExistsError(f"{path} is no socket: remove it.")
            path.unlink()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self.listener.fileno(), 0o600)  # the mode that its name gets, and so from its first moment
            self.listener.bind(str(path))
            self.listener.listen(backlog)
            self._id = file_id(path)
        except OSError:
            self.listener.close()
            raise

    @property
    def is_there(self) -> bool:
        """Whether its name still leads to it."""
        return file_id(self._path) == self._id

    def close(self) -> None:
        """Close it and remove its name."""
        is_there = self.is_there
        self.listener.close()
        if is_there:
            with suppress(OSError):
                self._path.unlink()
