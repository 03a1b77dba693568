"""Feature flags: the caller's flag, else the configuration, else whether the feature's file is present."""

from typing import Literal

Setting = Literal["auto", "on", "off"]
DigestRefresh = Literal["auto", "epoch", "next_turn"]
"""When a session adopts a newer digest; `auto` is with the next epoch, in the seed profile with the next turn."""


def resolve_flag(flag: bool | None, setting: Setting, *, present: bool) -> bool:
    if flag is not None:
        return flag
    return present if setting == "auto" else setting == "on"
