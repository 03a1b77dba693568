"""Describes where an agent runs: model, folder, date, platform, shell and system version."""

import datetime
import os
import platform as machine
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.sources.files import format_path, to_one_line

UNKNOWN = "unknown"
OS_VERSION = f"{machine.system()} {machine.release()}".strip()
VALUE_CHARS_MAX = 1_000  # Values enter the prompt, so each is bounded.


class Environment(msgspec.Struct, frozen=True):
    model: str = UNKNOWN
    cwd: str = UNKNOWN
    date: str = UNKNOWN
    platform: str = UNKNOWN
    shell: str = UNKNOWN
    os_version: str = UNKNOWN


def read_environment(
    model: str,
    cwd: Path,
    at: float,
    environ: Mapping[str, str],
    *,
    zone: datetime.tzinfo = datetime.UTC,
    platform: str = sys.platform,
    os_version: str = OS_VERSION,
) -> Environment:
    """The date has no time of day, because that would change the prompt on every call."""
    return Environment(
        model=_value(model),
        cwd=_value(format_path(os.path.abspath(cwd))),
        date=_date(at, zone),
        platform=_value(platform),
        shell=_value(_shell(environ)),
        os_version=_value(os_version),
    )


def _value(text: str) -> str:
    shown = to_one_line(text.encode("utf-8", "surrogatepass")).strip()
    return shown[:VALUE_CHARS_MAX] or UNKNOWN


def _date(at: float, zone: datetime.tzinfo) -> str:
    try:
        return datetime.datetime.fromtimestamp(at, zone).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def _shell(environ: Mapping[str, str]) -> str:
    path = environ.get("SHELL") or environ.get("COMSPEC") or ""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]
