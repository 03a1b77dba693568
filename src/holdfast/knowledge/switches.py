"""Feature flags: the caller's flag, else the configuration, else whether the feature's file is present."""

from typing import Literal

import msgspec

Setting = Literal["auto", "on", "off"]
SETTINGS: tuple[Setting, ...] = ("auto", "on", "off")

DigestRefresh = Literal["auto", "epoch", "next_turn"]
DIGEST_REFRESHES: tuple[DigestRefresh, ...] = ("auto", "epoch", "next_turn")
"""When a session adopts a newer digest; `auto` is with the next epoch, in the seed profile with the next turn."""


class Switch(msgspec.Struct, frozen=True):
    on: bool
    by: Literal["flag", "config", "presence"]


def switched(flag: bool | None, setting: Setting, *, present: bool) -> Switch:
    if flag is not None:
        return Switch(flag, "flag")
    if setting != "auto":
        return Switch(setting == "on", "config")
    return Switch(present, "presence")
