"""Sockets in the state directory."""

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from system.state_directory import file_id


class StateSocket:
    """
    A listening socket, `listener`, in the state directory for the other processes of the runtime.

    The process that creates it holds the matching lock, so an existing socket belongs to a dead predecessor.

    Raises:
        OSError: The socket cannot be created, or its path is a different kind of file.
    """

    def __init__(self, path: Path, backlog: int) -> None:
        self._path = path
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise FileExistsError(f"{path} is not a socket: remove it.")
            path.unlink()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self.listener.fileno(), 0o600)  # before `bind`, so the file has this mode from the start
            self.listener.bind(str(path))
            self.listener.listen(backlog)
            self._id = file_id(path)
        except OSError:
            self.listener.close()
            raise

    @property
    def is_there(self) -> bool:
        """Whether the path still refers to this socket."""
        return file_id(self._path) == self._id

    def close(self) -> None:
        """Close the socket and remove its file."""
        is_there = self.is_there
        self.listener.close()
        if is_there:
            with suppress(OSError):
                self._path.unlink()
