"""Ending with the process that started this one, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """
    Have the kernel end this process by SIGKILL when *parent*, which forked it, has ended; end it now if it has.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # It may have ended before the kernel was told.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
