"""`holdfast diff`: where one request diverges from the prefix of another, and the cost of that."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.commands import run_command, run_in_process
from tests.support.request_files import ANTHROPIC, CHAT, GEMINI, GEMINI_MODEL, RESPONSES, with_value, write_request

from holdfast.cli.main import command
from holdfast.ledger.cache.prefix_diff import compare_requests
from holdfast.ledger.requests.parse import parse_request

IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


def diff(folder: Path, before: object, after: object, *more: str) -> tuple[int, dict[str, Any]]:
    words = ["diff", write_request(folder, "a.json", before), write_request(folder, "b.json", after), "--json", *more]
    result = CliRunner().invoke(command, words)
    return result.exit_code, json.loads(result.output)


def appended_body(body: dict[str, Any], name: str, *more: object) -> dict[str, Any]:
    return with_value(body, name, to=[*body[name], *more])


@pytest.mark.parametrize(
    ("body", "appended"),
    [
        (ANTHROPIC, appended_body(ANTHROPIC, "messages", {"role": "assistant", "content": "An answer."})),
        (CHAT, appended_body(CHAT, "messages", {"role": "assistant", "content": "An answer."})),
        (RESPONSES, appended_body(RESPONSES, "input", {"role": "user", "content": "More."})),
        (GEMINI, appended_body(GEMINI, "contents", {"role": "model", "parts": [{"text": "An answer."}]})),
    ],
)
def test_an_appended_request_has_no_break_and_ends_with_0(
    tmp_path: Path, body: dict[str, Any], appended: dict[str, Any]
) -> None:
    options = ("--model", GEMINI_MODEL) if body is GEMINI else ()
    for after in (body, appended):
        status, report = diff(tmp_path, body, after, *options)
        assert (status, report["is_prefix_unchanged"], report["difference"], report["tokens_lost"]) == (
            0,
            True,
            None,
            0,
        )
        assert report["tokens_read"] == report["tokens_before"] > 0


@pytest.mark.parametrize(
    ("before", "path", "to", "named"),
    [
        (ANTHROPIC, ("messages", 1, "content", 1, "text"), "What was it?", "messages.1.content.1"),
        (ANTHROPIC, ("messages", 0, "content"), "Hallo.", "messages.0.content"),
        (ANTHROPIC, ("tools", 0, "description"), "Reads.", "tools.0"),
        (ANTHROPIC, ("system", 0, "text"), "Other", "system.0"),
        (CHAT, ("messages", 0, "content"), "Other", "messages.0.content"),
        (CHAT, ("messages", 3, "content", 0, "text"), "Another?", "messages.3.content.0"),
        (RESPONSES, ("instructions",), "Other", "instructions"),
        (RESPONSES, ("input", 1, "content", 0, "text"), "Ho.", "input.1.content.0"),
        (GEMINI, ("systemInstruction", "parts", 0, "text"), "Other", "systemInstruction.parts.0"),
        (GEMINI, ("contents", 1, "parts", 0, "text"), "Ho.", "contents.1.parts.0"),
    ],
)
def test_a_changed_block_is_named_by_its_path_and_ends_with_1(
    tmp_path: Path, before: dict[str, Any], path: tuple[str | int, ...], to: str, named: str
) -> None:
    options = ("--model", GEMINI_MODEL) if before is GEMINI else ()
    status, report = diff(tmp_path, before, with_value(before, *path, to=to), *options)
    assert status == 1
    assert report["difference"]["path"] == named
    assert not report["is_prefix_unchanged"]


def test_the_difference_is_shown_with_its_surroundings(tmp_path: Path) -> None:
    text = f"{'so ' * 3000}It is 10:01.\n{'and ' * 3000}"
    before = with_value(ANTHROPIC, "system", 0, "text", to=text)
    after = with_value(ANTHROPIC, "system", 0, "text", to=text.replace("10:01", "10:02"))
    result = run_command("diff", write_request(tmp_path, "a.json", before), write_request(tmp_path, "b.json", after))
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert any(line.startswith("  -") and line.endswith("It is 10:01.") for line in lines)
    assert any(line.startswith("  +") and line.endswith("It is 10:02.") for line in lines)
    assert len(lines) < 20
    assert max(map(len, lines)) < 200
    assert "system.0 differs: layer system, block 1, byte " in result.stdout
    assert "tools: still cached\nsystem: lost\nmessages: lost\n" in result.stdout


def test_the_byte_is_the_first_cacheable_one_that_differs() -> None:
    request = parse_request(json.dumps(ANTHROPIC).encode())
    two = parse_request(json.dumps(with_value(ANTHROPIC, "messages", 2, "content", 0, "text", to="A query.")).encode())
    moved = compare_requests(request, two, None).difference
    assert moved is not None
    assert request.buffer.cacheable_bytes()[moved.byte :].startswith(b'stion."')
    assert two.buffer.cacheable_bytes()[moved.byte :].startswith(b'ry."')


def test_breakpoints_whitespace_and_short_text_forms_are_no_difference(tmp_path: Path) -> None:
    with_breakpoint = with_value(ANTHROPIC, "system", 0, "cache_control", to={"type": "ephemeral", "ttl": "1h"})
    short = with_value(with_breakpoint, "messages", 2, "content", to="A question.")
    spaced = tmp_path / "b.json"
    spaced.write_text(json.dumps(short, indent=4))
    assert run_in_process("diff", write_request(tmp_path, "a.json", ANTHROPIC), str(spaced)).returncode == 0


@pytest.mark.parametrize(
    ("before", "name", "value", "parameter", "surviving"),
    [
        (ANTHROPIC, "model", "claude-opus-5-5", "model", []),
        (ANTHROPIC, "tool_choice", {"type": "any"}, "tool_choice", ["tools", "system"]),
        (ANTHROPIC, "thinking", {"type": "enabled", "budget_tokens": 1024}, "thinking", ["tools", "system"]),
        (ANTHROPIC, "speed", "fast", "speed", ["tools"]),
        (CHAT, "reasoning_effort", "high", "reasoning_effort", []),
        (RESPONSES, "reasoning", {"effort": "high"}, "reasoning_effort", []),
        (GEMINI, "toolConfig", {"functionCallingConfig": {"mode": "ANY"}}, "tool_config", []),
    ],
)
def test_a_changed_parameter_keeps_the_tiers_before_the_one_it_invalidates(
    tmp_path: Path, before: dict[str, Any], name: str, value: object, parameter: str, surviving: list[str]
) -> None:
    options = ("--model", GEMINI_MODEL) if before is GEMINI else ()
    status, report = diff(tmp_path, before, with_value(before, name, to=value), *options)
    assert status == 1
    assert report["difference"] is None
    assert [entry["name"] for entry in report["parameters"]] == [parameter]
    assert [
        section["section"] for section in report["sections"] if section["blocks_unchanged"] == section["blocks"]
    ] == surviving


def test_a_first_image_invalidates_the_messages_even_if_appended(tmp_path: Path) -> None:
    after = appended_body(ANTHROPIC, "messages", {"role": "user", "content": [IMAGE]})
    status, report = diff(tmp_path, ANTHROPIC, after)
    assert status == 1
    assert report["parameters"] == [{"name": "images", "first_lost_section": "messages"}]


def test_another_output_limit_is_no_difference(tmp_path: Path) -> None:
    status, _ = diff(tmp_path, ANTHROPIC, with_value(ANTHROPIC, "max_tokens", to=7))
    assert status == 0


def test_a_shortened_prompt_breaks_where_it_ends(tmp_path: Path) -> None:
    status, report = diff(tmp_path, ANTHROPIC, with_value(ANTHROPIC, "messages", to=ANTHROPIC["messages"][:1]))
    assert status == 1
    assert (report["difference"]["path"], report["difference"]["path_after"]) == ("messages.1.content.0", None)


def test_the_loss_is_the_tokens_after_the_last_breakpoint_before_the_break(tmp_path: Path) -> None:
    with_breakpoint = with_value(ANTHROPIC, "system", 0, "cache_control", to={"type": "ephemeral"})
    _, report = diff(tmp_path, with_breakpoint, with_value(with_breakpoint, "messages", 0, "content", to="Hallo."))
    request = parse_request(json.dumps(with_breakpoint).encode())
    assert report["tokens_before"] == request.buffer.tokens_total
    assert report["tokens_read"] == sum(request.buffer.tokens[:2])
    # Five-minute writes at 2.50 dollars a million, reads at 0.10.
    assert Decimal(report["lost_usd"]) == report["tokens_lost"] * Decimal("2.40") / 1_000_000


def test_in_gemini_another_system_instruction_invalidates_the_tools_too(tmp_path: Path) -> None:
    tools = [{"functionDeclarations": [{"name": "read", "description": "x", "parametersJsonSchema": {}}]}]
    before = with_value(GEMINI, "tools", to=tools)
    after = with_value(before, "systemInstruction", "parts", 0, "text", to="Other")
    _, report = diff(tmp_path, before, after, "--model", GEMINI_MODEL)
    assert [section["blocks_unchanged"] for section in report["sections"]] == [0, 0, 0]


def test_below_the_floor_nothing_is_lost_and_the_output_says_so(tmp_path: Path) -> None:
    short = with_value(with_value(ANTHROPIC, "system", 0, "text", to="Brief."), "tools", to=[])
    status, report = diff(tmp_path, short, with_value(short, "system", 0, "text", to="Long."))
    assert (status, report["tokens_lost"]) == (1, 0)
    assert "below the floor of 512" in report["notes"][0]


def test_a_request_without_breakpoints_says_which_breakpoints_are_assumed(tmp_path: Path) -> None:
    without_breakpoints = with_value(ANTHROPIC, "messages", 2, "content", to="A question.")
    _, report = diff(tmp_path, without_breakpoints, without_breakpoints)
    assert "has no breakpoint" in report["notes"][0]


def test_an_unknown_model_has_no_price(tmp_path: Path) -> None:
    before = with_value(ANTHROPIC, "model", to="claude-unheard-of")
    status, report = diff(tmp_path, before, with_value(before, "system", 0, "text", to="Other"))
    assert (status, report["lost_usd"]) == (1, None)
    assert "does not know anthropic:claude-unheard-of" in report["notes"][0]


def test_requests_to_two_providers_are_refused(tmp_path: Path) -> None:
    result = run_in_process(
        "diff", write_request(tmp_path, "a.json", ANTHROPIC), write_request(tmp_path, "b.json", CHAT)
    )
    assert result.returncode == 2
    assert result.stderr == (
        "holdfast: the first request is for anthropic, the second for openai-chat; "
        "no cache is shared between providers\n"
    )
