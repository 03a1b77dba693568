"""`holdfast explain`: the blocks and breakpoints of a request, and the cost of a change to each block."""

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.commands import run_command, run_in_process
from tests.support.request_files import ANTHROPIC, CHAT, GEMINI, GEMINI_MODEL, RESPONSES, with_value, write_request

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.cli.main import command
from holdfast.cli.requests import FILE_BYTES_MAX
from holdfast.clock import system_clock
from holdfast.layers.padding import HEURISTIC_BOUNDS, select_padding
from holdfast.ledger.requests.parse import parse_request
from holdfast.planning.learned import CacheMemory
from holdfast.planning.plan import plan_cache
from holdfast.planning.policy import PlanningMoment
from holdfast.types.json_encoding import sha256_hex


def explain(folder: Path, body: object, *more: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, ["explain", write_request(folder, "request.json", body), "--json", *more])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.output)
    return report


def test_every_block_is_listed_with_its_section_tokens_and_digest(tmp_path: Path) -> None:
    report = explain(tmp_path, ANTHROPIC)
    assert [(block["path"], block["section"], block["stability"]) for block in report["blocks"]] == [
        ("tools.0", "tools", "frozen"),
        ("system.0", "system", "epoch"),
        ("messages.0.content", "messages", "growing"),
        ("messages.1.content.0", "messages", "growing"),
        ("messages.1.content.1", "messages", "growing"),
        ("messages.2.content.0", "messages", "growing"),
    ]
    request = parse_request(json.dumps(ANTHROPIC).encode())
    assert [block["tokens"] for block in report["blocks"]] == request.buffer.tokens
    assert report["blocks"][1]["digest"] == sha256_hex(request.buffer.blocks[1].data)[:12]
    assert report["tokens"] == sum(request.buffer.tokens)


def test_the_table_says_that_counts_are_estimates_and_how_the_provider_was_recognised(tmp_path: Path) -> None:
    result = run_command("explain", write_request(tmp_path, "request.json", ANTHROPIC))
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "anthropic:claude-sonnet-5-5 (the model is one of anthropic's), cache: explicit"
    assert lines[1].endswith("tokens, estimated; the floor is 512")
    assert any(line.startswith("messages.2.content.0") and "yours" in line for line in lines)


def test_the_callers_breakpoints_are_listed_and_ours_have_reasons_and_savings(tmp_path: Path) -> None:
    report = explain(tmp_path, ANTHROPIC)
    assert [(point["path"], point["reason"]) for point in report["breakpoints"]] == [("messages.2.content.0", "yours")]
    planned = {point["path"]: point for point in report["planned_breakpoints"]}
    assert {path: point["reason"] for path, point in planned.items()} == {
        "tools.0": "end of the tools",
        "system.0": "end of the stable system prompt",
    }
    system = planned["system.0"]
    # Input at 2 dollars a million, reads at 0.10.
    assert Decimal(system["saving_usd"]) == system["prefix_tokens"] * Decimal("1.90") / 1_000_000


def test_every_breakpoint_has_its_expected_saving_on_top_of_those_before_it(tmp_path: Path) -> None:
    bare = with_value(ANTHROPIC, "messages", 2, "content", to="A question.")
    report = explain(tmp_path, bare)
    assert not report["breakpoints"]
    request = parse_request(json.dumps(bare).encode())
    assert request.row is not None
    price = price_at(request.row, utc_date(system_clock()), request.buffer.tokens_total)
    planned = plan_cache(
        PlanningMoment(request.buffer, request.row.cache, price, at=0.0), CacheMemory(), keep_small=True
    )
    by_block = {point["block"]: point for point in report["planned_breakpoints"]}
    assert [point["reason"] for point in by_block.values()] == [point.reason for point in planned.breakpoints]
    assert by_block[max(by_block)]["reason"].startswith("end of the conversation so far; ")
    tools, system, end = (Decimal(point["expected_usd"]) for point in by_block.values())
    # The tools alone are below the floor: their saving belongs to the breakpoint after them.
    assert tools == 0
    assert abs(system - planned.breakpoints[0].saving_usd - planned.breakpoints[1].saving_usd) < Decimal("0.0000001")
    assert end == planned.breakpoints[2].saving_usd
    assert 0 < end < system


def test_notes_of_the_plan_are_printed(tmp_path: Path) -> None:
    empty = {"model": "claude-sonnet-5-5", "max_tokens": 1, "messages": []}
    assert any(note.startswith("no breakpoints: ") for note in explain(tmp_path, empty)["notes"])


def test_layers_are_listed_with_the_cost_of_a_change(tmp_path: Path) -> None:
    report = explain(tmp_path, ANTHROPIC)
    assert [(layer["name"], layer["stability"], layer["blocks"]) for layer in report["layers"]] == [
        ("tools", "frozen", 1),
        ("system", "epoch", 1),
        ("history", "growing", 4),
    ]
    history, first = report["layers"][2], report["blocks"][2]
    assert history["tokens"] == sum(block["tokens"] for block in report["blocks"][2:])
    assert (history["rewritten_tokens"], history["rewritten_usd"]) == (
        first["rewritten_tokens"],
        first["rewritten_usd"],
    )
    lines = run_in_process("explain", write_request(tmp_path, "request.json", ANTHROPIC)).stdout.splitlines()
    assert lines[3].split()[:2] == ["layer", "expected"]
    assert lines[6].split()[:4] == ["history", "growing", "4", str(history["tokens"])]


HAIKU = "anthropic:claude-haiku-4-5"
SONNET = "anthropic:claude-sonnet-5-5"


@pytest.mark.parametrize(
    ("model", "repeated", "tool", "place", "decided"),
    [
        (SONNET, 1, "read_file", "below the floor of 512", "not padded: to reach the floor of 512 tokens"),
        (HAIKU, 300, "read_file", "below the floor of 4096", "padded from about "),
        (HAIKU, 300, "weather", "below the floor of 4096", "not padded: no text fits this agent: "),
        (HAIKU, 900, "read_file", "not below the floor of 4096", "not padded: about "),
    ],
)
def test_the_padding_decision_is_explained(
    tmp_path: Path, model: str, repeated: int, tool: str, place: str, decided: str
) -> None:
    words = "Answer in the words of the person who asks. " * repeated
    tools = [{"name": tool, "description": "Look it up.", "input_schema": {"type": "object"}}]
    body = with_value(with_value(ANTHROPIC, "tools", to=tools), "system", to=words)
    report = explain(tmp_path, body, "--model", model)
    tokens = sum(layer["tokens"] for layer in report["layers"] if layer["name"] in ("tools", "system"))
    assert report["padding"].startswith(
        f'tools and stable system prompt have about {tokens} tokens, {place}; padding="auto" decides: {decided}'
    )
    output = run_in_process("explain", write_request(tmp_path, "request.json", body), "--model", model).stdout
    assert f"padding: {report['padding']}" in output.splitlines()


def test_our_padding_in_a_request_is_recognised(tmp_path: Path) -> None:
    filling = select_padding(10, HEURISTIC_BOUNDS, [("mend-nets", "Mend nets.\n" * 50)])
    text = f"Be brief.\n\n{filling.text}"
    body = with_value(with_value(ANTHROPIC, "tools", to=[]), "system", to=text)
    padding = explain(tmp_path, body, "--model", HAIKU)["padding"]
    assert "; the skill mend-nets and the operating guide is padding, without it they have about " in padding
    natural = explain(tmp_path, with_value(body, "system", to="Be brief."), "--model", HAIKU)["padding"]
    assert padding.partition("decides: ")[2] == natural.partition("decides: ")[2]


def test_padding_is_not_mentioned_without_a_known_price(tmp_path: Path) -> None:
    body = with_value(ANTHROPIC, "model", to="mine")
    assert explain(tmp_path, body)["padding"] is None
    assert "padding" not in run_in_process("explain", write_request(tmp_path, "request.json", body)).stdout


def test_a_breakpoint_below_the_floor_saves_nothing_and_says_so(tmp_path: Path) -> None:
    short = with_value(ANTHROPIC, "tools", 0, "description", to="Reads.")
    tools = next(point for point in explain(tmp_path, short)["planned_breakpoints"] if point["path"] == "tools.0")
    assert tools["is_below_floor"]
    assert Decimal(tools["saving_usd"]) == 0
    assert (
        "nothing: below the floor" in run_in_process("explain", write_request(tmp_path, "request.json", short)).stdout
    )


def test_a_request_below_the_floor_gets_a_warning(tmp_path: Path) -> None:
    short = with_value(with_value(ANTHROPIC, "system", to="Brief."), "tools", to=[])
    assert "below the floor of 512: the provider caches nothing" in explain(tmp_path, short)["notes"][0]


def test_a_change_costs_the_tokens_between_the_previous_breakpoint_and_the_last(tmp_path: Path) -> None:
    with_breakpoint = with_value(ANTHROPIC, "system", 0, "cache_control", to={"type": "ephemeral"})
    report = explain(tmp_path, with_breakpoint)
    rewritten = {block["path"]: block["rewritten_tokens"] for block in report["blocks"]}
    prefix_tokens = sum(block["tokens"] for block in report["blocks"][:2])
    assert rewritten["system.0"] == report["tokens"]
    assert rewritten["messages.0.content"] == rewritten["messages.2.content.0"] == report["tokens"] - prefix_tokens
    assert Decimal(report["blocks"][0]["rewritten_usd"]) == report["tokens"] * Decimal("2.40") / 1_000_000


def test_an_automatic_breakpoint_is_the_callers_and_at_the_end(tmp_path: Path) -> None:
    body = with_value(
        with_value(ANTHROPIC, "messages", 2, "content", to="A question."),
        "cache_control",
        to={"type": "ephemeral", "ttl": "1h"},
    )
    report = explain(tmp_path, body)
    assert [(point["path"], point["ttl"], point["reason"]) for point in report["breakpoints"]] == [
        ("messages.2.content", "1h", "yours, automatic")
    ]


@pytest.mark.parametrize(
    ("body", "provider", "because"),
    [
        (ANTHROPIC, "anthropic", "the model is one of anthropic's"),
        (CHAT, "openai-chat", "the model is one of openai-chat's"),
        (RESPONSES, "openai", "it has `input`"),
        (with_value(ANTHROPIC, "model", to="mine"), "anthropic", "it has `system`"),
        (with_value(CHAT, "model", to="mine"), "openai-chat", "it has messages of the role system"),
        (with_value(CHAT, "model", to="mistral/large"), "openrouter", "the model's name starts with a vendor"),
        ({"model": "claude-9", "messages": []}, "anthropic", "the model is called claude"),
        (
            {"model": "mine", "messages": [], "max_completion_tokens": 9},
            "openai-chat",
            "it has `max_completion_tokens`",
        ),
        ({"model": "mine", "messages": []}, "openai-chat", "it has `messages`, and no field of another provider"),
        ({"model": "mine", "instructions": "Hi."}, "openai", "it has `instructions`"),
        (
            {"model": "mine", "messages": [], "max_tokens": 1},
            "anthropic",
            "it has `max_tokens`, and no field of another provider",
        ),
    ],
)
def test_the_provider_is_recognised_from_the_body(tmp_path: Path, body: object, provider: str, because: str) -> None:
    report = explain(tmp_path, body)
    assert (report["model"].partition(":")[0], report["detected_by"]) == (provider, because)


def test_an_explicit_provider_overrides_the_recognised_one(tmp_path: Path) -> None:
    report = explain(tmp_path, with_value(CHAT, "model", to="mine"), "--model", "openrouter:openai/gpt-5.4")
    named = "openrouter:openai/gpt-5.4"
    assert (report["model"], report["detected_by"], report["cache"]) == (named, "as specified", "implicit")


def test_a_gemini_body_needs_a_model(tmp_path: Path) -> None:
    path = write_request(tmp_path, "request.json", GEMINI)
    refused = run_command("explain", path)
    assert refused.returncode == 2
    assert refused.stderr == f"holdfast: {path}: the request names no model; pass --model gemini:NAME\n"
    report = explain(tmp_path, GEMINI, "--model", GEMINI_MODEL)
    assert [block["path"] for block in report["blocks"]][:2] == ["systemInstruction.parts.0", "contents.0.parts.0"]
    assert "takes no breakpoints" in report["notes"][0]


def test_the_snake_case_form_of_geminis_members_is_accepted(tmp_path: Path) -> None:
    snake = {
        "system_instruction": GEMINI["systemInstruction"],
        "contents": GEMINI["contents"],
        "model": "models/gemini-3.8-flash",
    }
    report = explain(tmp_path, snake)
    assert report["model"] == GEMINI_MODEL
    assert report["blocks"][0]["path"] == "systemInstruction.parts.0"


def test_a_long_history_is_shortened_in_the_table_and_complete_in_the_json(tmp_path: Path) -> None:
    messages = [{"role": ("user", "assistant")[index % 2], "content": f"Message {index}."} for index in range(200)]
    long = with_value(ANTHROPIC, "messages", to=messages)
    output = run_in_process("explain", write_request(tmp_path, "request.json", long)).stdout
    assert "142 blocks in the middle are not shown" in output
    assert "messages.199.content" in output
    assert len(explain(tmp_path, long)["blocks"]) == 202


def test_a_model_added_by_configuration_is_known(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('[models."anthropic:mine"]\nlike = "anthropic:claude-sonnet-5-5"\n')
    path = write_request(tmp_path, "request.json", with_value(ANTHROPIC, "model", to="mine"))
    assert "the floor is 512" in run_in_process("explain", path, HOLDFAST_HOME=str(home)).stdout


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the request cannot be read: Input data was truncated, or holds half a surrogate pair"),
        (b"hello", "the request cannot be read: JSON is malformed: invalid character (byte 0)"),
        (b"[1]", "the request cannot be read: Expected `object`, got `array`"),
        (b"\x89PNG\r\n\x1a\n\xff", "the request cannot be read: JSON is malformed: invalid character (byte 0)"),
        (b'{"model": "\xff"}', None),
        (b'{"a":' * 100_000, None),
        (b'{"model":"m","messages":[{"role":"user","content":' + b"[" * 50_000, None),
        (b'{"model": "claude-sonnet-5-5"}', "the body has no prompt: a request has `messages`, `input` or `contents`"),
        (b'{"model": 3, "messages": []}', None),
        (
            b'{"messages": [{"role": "tool", "tool_call_id": "a", "content": "", "\\u001b[31m\\u009b": 1}]}',
            None,
        ),
        (b'{"model": "claude-sonnet-5-5", "max_tokens": 1, "messages": [{"role": "user"}]}', None),
    ],
)
def test_an_invalid_file_is_one_line_with_its_name(tmp_path: Path, content: bytes, reason: str | None) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    for words in (["explain", str(path)], ["doctor", str(path)], ["diff", str(path), str(path)]):
        result = CliRunner().invoke(command, words)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"holdfast: {path}: ")
        assert result.stderr.count("\n") == 1
        assert result.stderr[:-1].isprintable()
        assert reason is None or reason in result.stderr


def test_missing_files_folders_and_huge_files_are_one_line(tmp_path: Path) -> None:
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        os.truncate(file.fileno(), FILE_BYTES_MAX + 1)
    for path, reason in (
        (tmp_path / "none.json", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (huge, f"more than {FILE_BYTES_MAX} bytes; no provider accepts such a request"),
    ):
        result = CliRunner().invoke(command, ["explain", str(path)])
        assert (result.exit_code, result.stderr) == (2, f"holdfast: {path}: {reason}\n")


def test_a_request_explained_for_another_model_is_labelled_with_that_model(tmp_path: Path) -> None:
    other, unknown = "anthropic:claude-opus-4-8", "anthropic:claude-of-tomorrow"
    assert explain(tmp_path, ANTHROPIC)["model"] == "anthropic:claude-sonnet-5-5"
    report = explain(tmp_path, ANTHROPIC, "--model", other)
    assert (report["model"], report["floor_tokens"]) == (other, 1024)
    report = explain(tmp_path, ANTHROPIC, "--model", unknown)
    assert report["notes"][0].startswith(f"the catalog does not know {unknown}:")


def test_a_model_without_a_provider_is_refused(tmp_path: Path) -> None:
    result = run_in_process(
        "explain", write_request(tmp_path, "request.json", ANTHROPIC), "--model", "claude-sonnet-5-5"
    )
    assert result.returncode == 2
    assert "names no provider; write provider:name with one of anthropic, openai, openai-chat" in result.stderr


def test_text_of_the_request_cannot_move_the_cursor(tmp_path: Path) -> None:
    body = with_value(ANTHROPIC, "model", to="claude-\x1b[31mred")
    assert "\x1b" not in run_in_process("explain", write_request(tmp_path, "request.json", body)).stdout
