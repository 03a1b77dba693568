"""How this process keeps what it was given, keys among it, from the other processes of its user."""

import contextlib
import ctypes
import sys

_PR_SET_DUMPABLE = 4


def hide_from_other_processes() -> bool:
    """No process of the same user reads this one's environment or memory from now on; whether that is so.

    On Linux alone, and not from root, who may read everything. It ends core dumps and keeps debuggers out.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
    return False
