"""Feature flags: the caller's flag, else the configuration, else whether the feature's file is present."""

from typing import Literal

import msgspec

Setting = Literal["auto", "on", "off"]
SETTINGS: tuple[Setting, ...] = ("auto", "on", "off")

DigestRefresh = Literal["auto", "epoch", "next_turn"]
DIGEST_REFRESHES: tuple[DigestRefresh, ...] = ("auto", "epoch", "next_turn")
"""When a session adopts a newer digest; `auto` is with the next epoch, in the seed profile with the next turn."""


class FeatureFlag(msgspec.Struct, frozen=True):
    is_on: bool
    decided_by: Literal["flag", "config", "presence"]


def resolve_flag(flag: bool | None, setting: Setting, *, present: bool) -> FeatureFlag:
    if flag is not None:
        return FeatureFlag(flag, "flag")
    if setting != "auto":
        return FeatureFlag(setting == "on", "config")
    return FeatureFlag(present, "presence")
