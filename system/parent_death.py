"""End this process together with its parent."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """
    Have the kernel kill this process when *parent*, which forked it, ends; kill it now if *parent* has ended.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have ended before the call.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
