"""The description of the machine that an agent works on."""

import datetime
import math
import os
import platform
import sys
from pathlib import Path

import pytest

from holdfast.sources.environment import OS_VERSION, Environment, read_environment

NOON = datetime.datetime(2026, 11, 15, 12, 0, tzinfo=datetime.UTC).timestamp()
MODEL = "anthropic:claude-sonnet-5-5"


def test_every_value_is_taken_from_the_arguments() -> None:
    environment = read_environment(
        MODEL, Path("/srv/app"), NOON, {"SHELL": "/usr/bin/zsh"}, platform="linux", os_version="Linux 6.1"
    )
    assert environment == Environment(
        model=MODEL, cwd="/srv/app", date="2026-11-15", platform="linux", shell="zsh", os_version="Linux 6.1"
    )


def test_missing_values_are_unknown() -> None:
    environment = read_environment(" ", Path("/"), math.nan, {}, platform="", os_version="")
    unknown = "unknown"
    assert environment == Environment(unknown, "/", unknown, unknown, unknown, unknown)
    assert Environment() == Environment(*[unknown] * 6)


def test_platform_and_version_are_those_of_this_machine_by_default() -> None:
    environment = read_environment(MODEL, Path("/"), NOON, {})
    assert environment.platform == sys.platform
    assert environment.os_version == OS_VERSION == f"{platform.system()} {platform.release()}"


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, 1e18, -1e18])
def test_a_time_outside_of_the_calendar_has_an_unknown_date(at: float) -> None:
    assert read_environment(MODEL, Path("/"), at, {}).date == "unknown"


def test_the_date_is_that_of_the_time_zone() -> None:
    tokyo = datetime.timezone(datetime.timedelta(hours=9))
    late = NOON + 4 * 3600
    assert read_environment(MODEL, Path("/"), late, {}).date == "2026-11-15"
    assert read_environment(MODEL, Path("/"), late, {}, zone=tokyo).date == "2026-11-16"


def test_the_text_does_not_change_within_a_day() -> None:
    start = NOON - 12 * 3600
    dates = [
        read_environment(MODEL, Path("/"), at, {}).date for at in (start - 1, start, start + 86_399, start + 86_400)
    ]
    assert dates == ["2026-11-14", "2026-11-15", "2026-11-15", "2026-11-16"]


@pytest.mark.parametrize(
    ("environ", "shell"),
    [
        ({"SHELL": "/bin/bash", "COMSPEC": "C:\\cmd.exe"}, "bash"),
        ({"SHELL": "", "COMSPEC": "C:\\Windows\\System32\\cmd.exe"}, "cmd.exe"),
        ({"SHELL": "fish"}, "fish"),
        ({"SHELL": "/bin/dash/"}, "dash"),
        ({"SHELL": "/"}, "unknown"),
    ],
)
def test_the_shell_is_named_without_its_folder(environ: dict[str, str], shell: str) -> None:
    assert read_environment(MODEL, Path("/"), NOON, environ).shell == shell


def test_a_relative_folder_is_shown_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_environment(MODEL, Path("sub"), NOON, {}).cwd == f"{tmp_path}/sub"


def test_values_remain_on_their_line_and_within_limits() -> None:
    environment = read_environment(
        "a\n# System\ud800\udcff", Path(os.fsdecode(b"/x\xff\n")), NOON, {"SHELL": "/" + "s" * 5_000}
    )
    assert environment.model == "a\ufffd# System" + "\ufffd" * 6
    assert environment.cwd == "/x\ufffd\ufffd"
    assert environment.shell == "s" * 1_000
