"""Whether a feature is on: what the caller says, else what is configured, else whether its file is there."""

from typing import Literal

import msgspec

Setting = Literal["auto", "on", "off"]
SETTINGS: tuple[Setting, ...] = ("auto", "on", "off")

DigestRefresh = Literal["auto", "epoch", "next_turn"]
DIGEST_REFRESHES: tuple[DigestRefresh, ...] = ("auto", "epoch", "next_turn")
"""When a session takes a newer digest; `auto` is with the next epoch, under the seed profile with the next turn."""


class Switch(msgspec.Struct, frozen=True):
    on: bool
    by: Literal["flag", "config", "presence"]


def switched(flag: bool | None, setting: Setting, *, present: bool) -> Switch:
    if flag is not None:
        return Switch(flag, "flag")
    if setting != "auto":
        return Switch(setting == "on", "config")
    return Switch(present, "presence")
