"""Hides this process's memory and environment, API keys included, from other processes of the same user."""

import contextlib
import ctypes
import sys

_PR_SET_DUMPABLE = 4  # From <linux/prctl.h>.


def hide_from_other_processes() -> bool:
    """Returns whether other processes of the same user can no longer read this one's environment or memory.

    Linux only, and no protection from root. It also disables core dumps and debuggers.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
    return False
