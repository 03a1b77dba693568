"""Text formatting of the parts of a chat."""

from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from holdfast.cachemodel.values import CacheEntry, CacheScope
from holdfast.cli.chat.app import COUNT_MAX, load_simulated_cache, save_simulated_cache, simulate_chat_reply
from holdfast.cli.chat.format import (
    clean_streamed_text,
    format_cache_lines,
    format_clock_time,
    format_context_lines,
    format_file_diff,
    format_status_line,
    format_tool_call,
    format_tool_outcome,
    format_usd_4,
    split_visible_lines,
    subtract_usage,
    truncate_lines,
)
from holdfast.cli.chat.session import format_confirmation, parse_confirmation
from holdfast.economics.keep_alive import plan_wake
from holdfast.engine.tools.permissions import ConfirmationRequest
from holdfast.ledger.cache.verdicts import Verdict
from holdfast.runtime.context_report import ContextUse, LayerUse
from holdfast.runtime.session_cache import SessionCacheState
from holdfast.simulator.faults import DeliveryFault
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse, make_user_message
from holdfast.types.prompt import Breakpoint, Plan
from holdfast.types.usage import Usage

NO_WAKE = plan_wake(prompt_tokens=0, cached_tokens=0, warm_seconds=0, read_usd=Decimal(1), write_usd=Decimal(2))


def request_for(tool: str, **arguments: object) -> ConfirmationRequest:
    arguments_json = msgspec.json.encode(arguments).decode()
    return ConfirmationRequest("id", tool, "write", f"{tool} {arguments_json}", arguments_json, 0.0)


def test_the_status_line_shows_the_usage_of_a_turn_and_the_remaining_ttl() -> None:
    usage = Usage(input=345, cache_read=12_000, output=210)
    line = format_status_line(usage, Decimal("0.00412"), session_usd=Decimal("0.0932"), warm_seconds=298.9)
    assert line == "in 12,345 (97 % read) · out 210 · $0.0041 · session $0.0932 · cache 4:58"
    assert format_status_line(usage, Decimal(0), session_usd=Decimal(0), warm_seconds=0).endswith("cache empty")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-3, "0:00"), (0.9, "0:00"), (61, "1:01"), (3599, "59:59"), (3_905, "1:05:05")]
)
def test_a_duration_is_shown_as_on_a_stop_watch(seconds: float, expected: str) -> None:
    assert format_clock_time(seconds) == expected


def test_negative_amounts_have_their_sign_in_front() -> None:
    assert (format_usd_4(Decimal("-0.5")), format_usd_4(Decimal("0.5"))) == ("-$0.5000", "$0.5000")


def test_usage_since_a_point_is_counted_by_bucket() -> None:
    assert subtract_usage(Usage(1, 2, 3, output=4), Usage(2, 4, 6, 1, output=8)) == Usage(1, 2, 3, 1, output=4)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"path": "a.txt"}', "read a.txt"),
        ('{"limit": 3, "path": "a.txt"}', "read a.txt limit=3"),
        ('{"command": "ls\\n -l"}', "read ls -l"),
        ('{"deep": {"a": [1]}}', 'read deep={"a":[1]}'),
        ('{"text": "%s"}' % ("x" * 100), f"read text={'x' * 59}…"),
        ("[1]", "read [1]"),
        ("{", "read {"),
    ],
)
def test_a_call_is_one_line_with_its_main_argument(arguments: str, expected: str) -> None:
    assert format_tool_call("read", arguments, 80) == expected


def test_a_long_call_is_cut_to_the_width() -> None:
    assert format_tool_call("read", '{"path": "abcdefghij"}', 10) == "read abcd…"


def test_the_outcome_of_a_call_is_its_size_and_time() -> None:
    assert format_tool_outcome(1, 8) == "1 byte, 8 ms"
    assert format_tool_outcome(999, 999) == "999 bytes, 999 ms"
    assert format_tool_outcome(12_345, 1_000) == "12.3 kB, 1.0 s"


def test_a_models_line_breaks_and_tabs_are_preserved() -> None:
    assert clean_streamed_text("a\r\n\tb\x1b[0m") == "a\n    b [0m"
    assert split_visible_lines("a\n\tb\x1b\u202e") == ["a", "    b\ufffd\ufffd"]


def test_a_change_is_shown_line_by_line_with_context() -> None:
    before, after = "1\n2\n3\n4\n5\n6\n", "1\n2\n3\n4\nfive\n6\n"
    assert format_file_diff(before, after, "f") == ["f", "@@ -3,4 +3,4 @@", " 3", " 4", "-5", "+five", " 6"]
    assert format_file_diff(None, "a\nb", "f") == ["new file f, 2 lines", "+a", "+b"]
    assert format_file_diff("a\n", "a\n", "f") == ["f: no change"]
    assert format_file_diff("a\n", "a", "f") == ["f: only the newline at the end of the file changes"]


def test_files_that_are_too_long_are_not_compared() -> None:
    first, *rest = format_file_diff("x\n" * 5_001, "y\n", "f")
    assert (first, rest) == ("f: 5,001 lines become 1, too many to compare", ["+y"])


def test_omitted_lines_are_counted() -> None:
    assert list(truncate_lines(["a", "b", "c", "d"], 2)) == ["a", "b", "... 2 more lines"]
    assert list(truncate_lines(["a", "b"], 2)) == ["a", "b"]


def test_a_confirmation_shows_the_command_or_the_change(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\r\ntwo\r\n")
    assert format_confirmation(request_for("run_command", command="a\nb\x1b"), tmp_path) == ["$ a", "  b\ufffd"]
    assert format_confirmation(request_for("write_file", path="new", content="x\n"), tmp_path) == [
        "new file new, 1 line",
        "+x",
    ]
    text = format_confirmation(request_for("write_file", path="f", content="one\n2\n"), tmp_path)
    assert text == ["f", "@@ -1,2 +1,2 @@", " one", "-two", "+2"]
    edited = format_confirmation(request_for("edit_file", path="f", old_text="two", new_text="2"), tmp_path)
    assert edited == text
    missed = format_confirmation(request_for("edit_file", path="f", old_text="x\ny", new_text="z"), tmp_path)
    assert missed == ["f: the old text does not occur exactly once", "-x", "-y", "+z"]


@pytest.mark.parametrize("path", ["binary", "folder", "link"])
def test_a_file_that_cannot_be_compared_is_not_called_new(tmp_path: Path, path: str) -> None:
    (tmp_path / "binary").write_bytes(b"\0")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/hostname")
    lines = format_confirmation(request_for("write_file", path=path, content="x"), tmp_path)
    assert lines == [f"{path}: replaces a file that cannot be compared", "+x"]


def test_a_path_outside_of_the_workspace_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden\n")
    inside = tmp_path / "inside"
    inside.mkdir()
    lines = format_confirmation(request_for("write_file", path="../secret", content="x"), inside)
    assert not any("hidden" in line for line in lines)


def test_an_unknown_tool_is_shown_with_all_its_arguments(tmp_path: Path) -> None:
    lines = format_confirmation(request_for("mail", to="me", text="a\nb"), tmp_path)
    assert lines == ["mail", "to: me", "text:", "a", "b"]


def test_long_arguments_are_shown_to_their_end(tmp_path: Path) -> None:
    lines = format_confirmation(
        request_for("memory_add", file="MEMORY.md", text="nice " + "A" * 1500 + " AND MORE", times=3), tmp_path
    )
    assert lines[-1] == "times: 3"
    assert lines[-2].endswith(" AND MORE")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("y", True),
        (" YES ", True),
        ("a", "session"),
        ("always", "session"),
        ("n", False),
        ("No", False),
        ("", None),
        ("yep", None),
    ],
)
def test_an_answer_is_yes_no_or_not_understood(answer: str, expected: object) -> None:
    assert parse_confirmation(answer) == expected


def test_the_cache_is_warm_expired_or_empty() -> None:
    wake = plan_wake(
        prompt_tokens=2_000, cached_tokens=1_000, warm_seconds=100, read_usd=Decimal(1), write_usd=Decimal(2)
    )
    plan = Plan(breakpoints=(Breakpoint(3, "1h", "end of the tools"), Breakpoint(5)), notes=("too short",))
    broken = Verdict("prefix_changed", 900, 200, Decimal("0.5"), "tools", detail="a tool came")
    warm = format_cache_lines(SessionCacheState(1_000, 300, 1_100), wake, plan, broken, at=1_000)
    assert warm == [
        "cached: 1,000 tokens for another 1:40; each use renews the TTL of 5:00",
        f"next: {wake}",
        "last: prefix changed, 200 tokens read, 700 lost for $0.5000: tools, a tool came",
        "breakpoint: after block 4, TTL 1h: end of the tools",
        "breakpoint: after block 6, TTL 5m",
        "note: too short",
    ]
    assert format_cache_lines(SessionCacheState(1_000, 300, 900), NO_WAKE, None, None, at=961) == [
        "expired: 1,000 tokens, 1:01 ago"
    ]
    assert format_cache_lines(SessionCacheState(0, 300, 1_100), NO_WAKE, None, None, at=1_000) == ["nothing is cached"]


def test_the_layers_are_a_bar_and_a_table() -> None:
    use = ContextUse((LayerUse("tools", 600), LayerUse("history", 400)), 10_000)
    assert format_context_lines(use, 10) == [
        "██████▓▓▓▓",
        "█ tools          600   60 %",
        "▓ history        400   40 %",
        "1,000 of 10,000 tokens (10.0 %)",
    ]
    assert format_context_lines(ContextUse((), 10_000), 10) == ["", "0 of 10,000 tokens (0.0 %)"]


@pytest.mark.parametrize(
    ("message", "tool", "arguments"),
    [
        ("read a.txt", "read_file", {"path": "a.txt"}),
        ("list", "list_dir", {"path": "."}),
        ("List src", "list_dir", {"path": "src"}),
        ("search def main", "grep_files", {"pattern": "def main"}),
        ("write a.txt: one\ntwo", "write_file", {"path": "a.txt", "content": "one\ntwo\n"}),
        ("replace a b by c in f", "edit_file", {"path": "f", "old_text": "a b", "new_text": "c"}),
        ("run ls -l", "run_command", {"command": "ls -l"}),
    ],
)
def test_the_simulated_model_calls_tools_on_plain_words(message: str, tool: str, arguments: dict[str, str]) -> None:
    reply = simulate_chat_reply([make_user_message("<context layer='git'>\nread b\n</context>", message)])
    assert reply.content is not None
    call = reply.content[-1]
    assert isinstance(call, ToolUse)
    assert (call.name, msgspec.json.decode(call.arguments_json)) == (tool, arguments)


def test_the_simulated_model_reports_the_result_of_a_tool() -> None:
    results = Message("user", (ToolResult("1", (Text("fine"),)), ToolResult("2", (Text("no"),), is_error=True)))
    reply = simulate_chat_reply([make_user_message("read a"), results])
    assert reply.content == (Text("The tool returned: fine\nThe tool failed: no"),)


def test_the_simulated_model_answers_the_message_after_the_results_of_a_cancelled_turn() -> None:
    results = Message("user", (ToolResult("1", (Text("cancelled"),), is_error=True), Text("count to 2")))
    assert simulate_chat_reply([make_user_message("run x"), results]).content == (Text("1 2"),)


def test_the_simulated_model_counts_slowly_and_stops() -> None:
    reply = simulate_chat_reply([make_user_message("count to 999999")])
    assert isinstance(reply.faults[0], DeliveryFault)
    assert reply.faults[0].problem == "drip"
    assert reply.content is not None
    assert isinstance(reply.content[0], Text)
    assert reply.content[0].text.endswith(f" {COUNT_MAX}")
    assert simulate_chat_reply([make_user_message("count to 0")]).content == (Text("0"),)


def test_chats_that_end_one_after_the_other_keep_what_both_cached(tmp_path: Path) -> None:
    def entry(digest: str, at: float) -> CacheEntry:
        return CacheEntry(CacheScope("key", "model"), digest, 100, "5m", at)

    path = tmp_path / "home" / "cache.json"
    save_simulated_cache(path, [entry("shared", 1.0), entry("first", 2.0)])
    save_simulated_cache(path, [entry("shared", 3.0), entry("second", 4.0)])
    assert load_simulated_cache(path) == (entry("first", 2.0), entry("shared", 3.0), entry("second", 4.0))
    save_simulated_cache(path, [entry("shared", 1.0)])
    assert entry("shared", 3.0) in load_simulated_cache(path), "a chat that ends later may know less"
    path.write_text("{")
    assert load_simulated_cache(path) == ()


def test_the_simulated_model_echoes_messages_it_does_not_understand() -> None:
    reply = simulate_chat_reply([make_user_message("x" * 500)])
    assert reply.content is not None
    assert "x" * 400 + "…" in str(reply.content[0])
    assert "You said: nothing" in str(simulate_chat_reply([]).content)
