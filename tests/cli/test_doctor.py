"""`holdfast doctor`: what makes a prompt differ between runs, in a function and in a request file."""

import contextlib
import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.commands import run_command, run_in_process
from tests.support.request_files import ANTHROPIC, CHAT, with_value, write_request

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.ledger.cache.change_cause import find_volatile_strings
from holdfast.ledger.requests.parse import parse_request
from holdfast.runtime.doctor.probe import TargetRunner, diagnose_target, difference_path, first_difference, word_start

PROMPTS = """
    # Each function loads what it needs: this is loaded some thousand times.
    import datetime, os, time
    from datetime import date, datetime as moment

    FRUIT = {"apple", "pear", "plum", "cherry", "quince"}

    class Thing:
        pass

    def stable():
        return {"system": "Be brief.", "messages": [{"role": "user", "content": "Hi."}]}

    def as_bytes():
        return b"\\xff\\x00 any bytes"

    async def awaited():
        return ("system", [{"role": "user", "content": "Hi."}])

    def sorted_well():
        import json
        return json.dumps({name: 1 for name in FRUIT}, sort_keys=True) + " ".join(sorted(os.listdir(".")))

    def same_day():
        return str(isinstance(moment.now(), datetime.datetime) and isinstance(date.today(), datetime.date))

    def own_kind_of_moment():
        class Mine(datetime.datetime):
            pass
        real = datetime.datetime.fromtimestamp(0)
        return f"{isinstance(real, Mine)} {issubclass(Mine, datetime.date)} {isinstance(real, date)}"

    def now():
        return f"Be brief. It is {moment.now()}."

    def utc():
        return f"Be brief. {datetime.datetime.now(datetime.UTC):%H:%M} {date.today()}"

    def today():
        return f"Be brief. {date.today()}"

    def naive_utc():
        return f"Be brief. {moment.utcnow()}"

    def epoch():
        return {"system": "Be brief.", "messages": [{"role": "user", "content": f"at {time.time()}"}]}

    def in_nanoseconds():
        return f"at {time.time_ns()}"

    def struct_time():
        return time.strftime("%Y") + str(time.gmtime().tm_year) + time.ctime()[-4:] + time.asctime()[-4:]

    def unique():
        import uuid
        return f"Be brief. Session {uuid.uuid4()}."

    def lucky():
        import random
        return f"Number {random.random()}"

    def token():
        import secrets
        return secrets.token_hex(8)

    def unsorted_set():
        return "Fruit: " + ", ".join(FRUIT)

    def unsorted_keys():
        return {"system": "Be brief.", "prices": {name: 1 for name in FRUIT}}

    def listing():
        return " ".join(os.listdir("."))

    def scanned():
        with os.scandir(".") as entries:
            return " ".join(entry.name for entry in entries)

    def walked():
        return " ".join(name for _, _, names in os.walk(".") for name in names if name.endswith(".md"))

    def globbed():
        import glob
        return " ".join(glob.glob("*.md"))

    def pathlib_globbed():
        import pathlib
        return " ".join(path.name for path in pathlib.Path(".").glob("*.md"))

    def who():
        return f"You work for {os.environ.get('WORKER', 'nobody')} at {os.environ['SECRET_PLACE']}."

    def key_beside_something_unique():
        import uuid
        return f"key={os.environ['SECRET_PLACE']} {uuid.uuid4()}"

    def raises_with_a_key():
        raise ValueError(os.environ["SECRET_PLACE"])

    def numbered():
        return f"Build {int(os.environ['BUILD'])}"

    def unneeded():
        return "Be brief." if os.environ.get("SECRET_PLACE") else "no"

    def folder():
        return f"You are in {os.getcwd()}."

    def relative_file():
        import pathlib
        return pathlib.Path("one.md").read_text()

    def zone():
        return str(datetime.datetime(2026, 1, 1).astimezone())

    def language():
        return os.environ["LANG"]

    def address():
        return f"Use {Thing()} well."

    def process():
        return f"Be brief. {os.getpid()}"

    def stopwatch_then_nothing():
        return f"{time.perf_counter()} {moment.now()}"

    def clock_then_stopwatch():
        return f"{moment.now()} {time.perf_counter()}"

    def unique_then_clock():
        import uuid
        return f"{uuid.uuid4()} {moment.now()}"

    def raises():
        raise ValueError("first line\\nsk-abcdefghijklmnop")

    def raises_on_another_day():
        if moment.now().year != 2026:
            raise RuntimeError("too late")
        return "fine"

    def bears_no_other_clock():
        if datetime.datetime.__base__ is not datetime.date:
            raise TypeError("unknown kind of datetime")
        return "fine"

    def ends():
        os._exit(7)

    def exits():
        raise SystemExit(3)

    def hangs():
        import threading
        threading.Event().wait()

    def returns_a_set():
        return {"system": {1, 2}}

    def prints():
        print("x" * 1_000_000)
        return "Be brief."

    def big():
        return "x" * (33 * 1024 * 1024)

    not_a_function = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts.py").write_text(textwrap.dedent(PROMPTS))
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    for name in ("one.md", "two.md", "three.md"):
        (tmp_path / name).write_text(f"file {name}")
    return tmp_path


def doctor(folder: Path, function: str, *, runs: int = 2, **environ: str) -> tuple[int, dict[str, Any]]:
    """The findings with few runs: each run is a process, and their number determines the set orders that are tried."""
    words = ["doctor", f"prompts:{function}", "--json", "--runs", str(runs)]
    with contextlib.chdir(folder):
        result = CliRunner().invoke(command, words, env=environ)
    assert result.stderr == ""
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize(
    "function",
    ["stable", "as_bytes", "awaited", "sorted_well", "same_day", "own_kind_of_moment", "relative_file", "prints"],
)
def test_a_function_without_dependencies_is_stable(folder: Path, function: str) -> None:
    status, report = doctor(folder, function)
    assert (status, report["findings"]) == (0, [])
    assert report["runs"] > 8


@pytest.mark.parametrize(
    ("function", "cause", "byte"),
    [
        ("utc", "clock", 10),
        ("today", "clock", 13),
        ("naive_utc", "clock", 13),
        ("in_nanoseconds", "clock", 3),
        ("struct_time", "clock", 3),
        ("unique", "random", 18),
        ("lucky", "random", 9),
        ("token", "random", 0),
        ("unsorted_set", "set order", 7),
        ("listing", "directory order", 0),
        ("scanned", "directory order", 0),
        ("walked", "directory order", 0),
        ("globbed", "directory order", 0),
        ("pathlib_globbed", "directory order", 0),
        ("folder", "working folder", 11),
        ("zone", "time zone", 21),
        ("language", "locale", 0),
        ("address", "object address", 29),
        ("process", "something else", 10),
    ],
)
def test_the_first_unstable_position_and_its_cause_are_named(
    folder: Path, function: str, cause: str, byte: int
) -> None:
    status, report = doctor(folder, function)
    assert status == 1
    assert [finding["cause"] for finding in report["findings"]] == [cause]
    assert byte <= report["findings"][0]["byte"] <= byte + 20


def test_local_time_depends_on_the_clock_and_then_on_the_time_zone(folder: Path) -> None:
    _, report = doctor(folder, "now")
    assert [finding["cause"] for finding in report["findings"]] == ["clock", "time zone"]


def test_a_position_in_a_body_is_named_by_its_path(folder: Path) -> None:
    _, report = doctor(folder, "epoch")
    assert report["findings"][0]["path"] == "messages.0.content"


def test_members_in_set_order_are_distinguished_from_other_sets(folder: Path) -> None:
    _, report = doctor(folder, "unsorted_keys")
    assert [(finding["cause"], finding["path"]) for finding in report["findings"]] == [("unsorted JSON keys", "prices")]


def test_the_variable_is_named_and_its_value_is_not_shown(folder: Path) -> None:
    result = run_command("doctor", "prompts:who", cwd=folder, SECRET_PLACE="hunter2 street")
    assert result.returncode == 1
    assert "environment: it contains an environment variable\n  SECRET_PLACE\n" in result.stdout
    assert "hunter2" not in result.stdout + result.stderr


@pytest.mark.parametrize("function", ["key_beside_something_unique", "raises_with_a_key"])
def test_a_value_near_an_unstable_one_or_in_an_error_is_hidden(folder: Path, function: str) -> None:
    result = run_in_process("doctor", f"prompts:{function}", cwd=folder, SECRET_PLACE="hunter2-street")
    assert "**************" in result.stdout + result.stderr
    assert "hunter2" not in result.stdout + result.stderr


def test_a_numeric_variable_is_changed_into_another_number(folder: Path) -> None:
    _, report = doctor(folder, "numbered", BUILD="41")
    assert [(finding["cause"], finding["detail"]) for finding in report["findings"]] == [("environment", "BUILD")]


def test_a_variable_that_is_read_but_not_rendered_is_no_cause(folder: Path) -> None:
    status, _ = doctor(folder, "unneeded", SECRET_PLACE="here")
    assert status == 0


@pytest.mark.parametrize(
    ("function", "causes"),
    [
        ("stopwatch_then_nothing", ["something else"]),
        ("clock_then_stopwatch", ["clock", "time zone", "something else"]),
        ("unique_then_clock", ["random", "clock", "time zone"]),
    ],
)
def test_inherent_differences_have_no_cause_and_hide_only_what_follows(
    folder: Path, function: str, causes: list[str]
) -> None:
    _, report = doctor(folder, function)
    assert [finding["cause"] for finding in report["findings"]] == causes


def test_a_function_that_fails_under_a_perturbation_is_unstable(folder: Path) -> None:
    status, report = doctor(folder, "raises_on_another_day")
    assert status == 1
    assert report["findings"][0]["cause"] == "clock"
    assert report["findings"][0]["detail"] == "it fails when this is changed: RuntimeError: too late"


def test_a_function_that_fails_with_a_changed_clock_is_tested_without_one(folder: Path) -> None:
    status, report = doctor(folder, "bears_no_other_clock")
    assert status == 0
    assert "fails under a changed clock" in report["notes"][0]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("prompts:raises", "prompts:raises: ValueError: first line [redacted]"),
        ("prompts:ends", "prompts:ends: the process ended with status 7"),
        ("prompts:exits", "prompts:exits: SystemExit: 3"),
        ("prompts:missing", "prompts:missing: module 'prompts' has no attribute 'missing'"),
        ("prompts:not_a_function", "prompts:not_a_function: not_a_function is not a function"),
        ("prompts:returns_a_set", "prompts:returns_a_set: TypeError: what it returns is neither text nor JSON (Object"),
        ("prompts:big", "prompts:big: what it returns has more than 33554432 bytes"),
        ("no_such_module:f", "no_such_module:f: there is no module no_such_module"),
        ("needs_more:f", "needs_more:f: there is no module not_installed_anywhere"),
        ("broken:f", "broken:f: SyntaxError: "),
        ("prompts:a:b", "'prompts:a:b' is neither a file nor a function; name a function as module:function"),
        ("-x:y", "'-x:y' is neither a file nor a function; name a function as module:function"),
        ("no_such_file.json", "no_such_file.json: No such file or directory"),
    ],
)
def test_a_function_that_cannot_run_is_one_line_and_ends_with_2(folder: Path, target: str, reason: str) -> None:
    result = run_in_process("doctor", "--", target, cwd=folder)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"holdfast: {reason}")
    assert result.stderr.count("\n") == 1


def test_a_function_that_takes_too_long_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"prompts:hangs: it took more than 0\.5 seconds"):
        diagnose_target(TargetRunner("prompts:hangs", os.environ, seconds_max=0.5), runs=2)


def test_more_runs_try_more_orders(folder: Path) -> None:
    few, many = (doctor(folder, "stable", runs=runs)[1]["runs"] for runs in (2, 6))
    assert many == few + 2 * 4


def test_the_table_shows_both_readings_and_says_what_to_do(folder: Path) -> None:
    output = run_in_process("doctor", "prompts:unique", cwd=folder).stdout
    assert output.startswith("prompts:unique is unstable: ")
    assert "random: it contains a uuid or another random value; create it once per session" in output
    assert output.count("Be brief. Session ") == 2


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("Today is a good day.", "words for now", "Today is"),
        ("Since 2026-11-16 we", "a date", "2026-11-16"),
        ("at 2026-11-16T10:11:12.5+01:00 it", "a date and time", "2026-11-16T10:11:12.5+01:00"),
        ("at 10:01.", "a time of day", "10:01"),
        ("since 1790000000 seconds", "seconds since the epoch", "1790000000"),
        ("since 1790000000.25, at", "seconds since the epoch", "1790000000.25"),
        ("id 0b5a1c0e-8f3e-4b43-9a53-5b1d0a6f7c11.", "a UUID", "0b5a1c0e-8f3e-4b43-9a53-5b1d0a6f7c11"),
        ("run 9f86d081884c7d65", "a hexadecimal id", "9f86d081884c7d65"),
        ("commit 1a2b3c4", "a git hash", "1a2b3c4"),
        ("at 21c630488b0e4b7db02c1f0a6a3c5f0e9d8c7b6a", "a git hash", "21c630488b0e4b7db02c1f0a6a3c5f0e9d8c7b6a"),
        ("see /tmp/run-17/notes", "a path of a temporary folder", "/tmp/run-17/notes"),
        ("<Thing at 0x7f3a5c1d2e30>", "an object's address", "at 0x7f3a5c1d2e30"),
    ],
)
def test_a_volatile_looking_string_in_a_file_is_named_with_its_path(
    tmp_path: Path, text: str, kind: str, expected: str
) -> None:
    body = with_value(ANTHROPIC, "system", 0, "text", to=f"{ANTHROPIC['system'][0]['text']} {text}")
    result = run_in_process("doctor", write_request(tmp_path, "request.json", body), "--json")
    assert result.returncode == 1
    (report,) = json.loads(result.stdout)["volatile"]
    assert (report["kind"], report["excerpt"], report["path"]) == (kind, expected, "system.0")
    request = parse_request(json.dumps(body).encode())
    assert request.buffer.cacheable_bytes()[report["byte"] :].startswith(expected.encode())
    assert report["rewritten_tokens"] == request.buffer.tokens_total


@pytest.mark.parametrize(
    "text", ["version 1.2.3 and 12345678901", "the year 2026", "deadbeefdeadbeef", "a ratio of 1:30", "v1700000000.5"]
)
def test_text_that_only_resembles_volatile_text_is_ignored(text: str) -> None:
    body = with_value(ANTHROPIC, "system", 0, "text", to=text)
    assert find_volatile_strings(parse_request(json.dumps(body).encode()), None) == ()


def test_tools_and_the_first_message_are_checked_and_later_messages_are_not() -> None:
    body = with_value(CHAT, "messages", 1, "content", to="On 2026-11-16?")
    body = with_value(body, "messages", 3, "content", 0, "text", to="On 2026-11-17?")
    tool = {"type": "function", "function": {"name": "f", "description": "of 2026-11-15", "parameters": {}}}
    report = find_volatile_strings(parse_request(json.dumps(with_value(body, "tools", to=[tool])).encode()), None)
    assert [finding.path for finding in report] == ["tools.0", "messages.1.content"]


def test_images_and_signed_thinking_are_not_checked() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "9f86d081884c7d659f86d081884c7d65"}
    body = with_value(ANTHROPIC, "messages", 0, "content", to=[{"type": "image", "source": source}])
    assert find_volatile_strings(parse_request(json.dumps(body).encode()), None) == ()


def test_a_file_without_volatile_text_ends_with_0_and_says_so(tmp_path: Path) -> None:
    result = run_command("doctor", write_request(tmp_path, "request.json", ANTHROPIC))
    assert (result.returncode, result.stdout.count("\n")) == (0, 1)
    assert "looks likely to change" in result.stdout


def test_a_file_with_volatile_text_shows_its_cost(tmp_path: Path) -> None:
    body = with_value(ANTHROPIC, "system", 0, "text", to=f"Today is Monday. {ANTHROPIC['system'][0]['text']}")
    output = run_in_process("doctor", write_request(tmp_path, "request.json", body)).stdout
    assert "system.0, byte " in output
    assert "words for now: Today is\n  if it differs in the next request, " in output
    assert "tokens (estimated) must be written again, for $0." in output


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ({"a": 1}, {"a": 2}, "a"),
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "y"}]}, "a.1.b"),
        ({"a": 1, "b": 1}, {"b": 1, "a": 1}, ""),
        ([1], [1, 2], ""),
        ({"a": {"x": 1, "y": 1}}, {"a": {"y": 1, "x": 1}}, "a"),
    ],
)
def test_the_path_leads_to_the_innermost_difference(old: object, new: object, path: str) -> None:
    assert difference_path(old, new) == path


def test_text_that_is_json_has_a_path_and_other_text_has_none() -> None:
    in_text = first_difference("text", b'{"a":[1]}', b'{"a":[2]}')
    plain = first_difference("text", b"one", b"two")
    assert in_text is not None
    assert plain is not None
    assert (in_text.path, plain.path) == ("a.0", None)
    assert first_difference("text", b"one", b"one") is None


def test_a_difference_starts_at_the_beginning_of_a_number_or_address() -> None:
    assert word_start(b"at 0x7f12 ", 8) == 3
    assert word_start(b"at 12:30", 3) == 3
