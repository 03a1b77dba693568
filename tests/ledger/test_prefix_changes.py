"""The likely cause of a prefix change: with the official client, wrapped, and block by block."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from tests.support.served import SimulatorServer

from holdfast.catalog.lookup import shipped_models
from holdfast.integrations import recorder_of, wrap
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.cache.change_cause import COMPARED_BYTES_MAX, find_prefix_change, mask_diff_line
from holdfast.ledger.cache.verdicts import Verdict
from holdfast.simulator.script import parse_script
from holdfast.types.blocks import Role
from holdfast.types.prompt import PrefixChange, Stability
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest

RULES = "Read a file before you speak of it. " * 600
SECRET = "swordfish"
Arguments = dict[str, Any]


def tool(name: str, **changes: Any) -> Arguments:
    return {"name": name, "description": f"Does {name}.", "input_schema": {"type": "object"}, **changes}


@pytest.fixture
def client() -> Iterator[anthropic.Anthropic]:
    with SimulatorServer(parse_script("")) as running, wrap(running.client()) as opened:
        yield opened


def last_verdict(client: anthropic.Anthropic, first: Arguments, second: Arguments) -> Verdict:
    messages: list[Any] = [{"role": "user", "content": f"{SECRET} " + "So? " * 3_000}]
    request: Arguments = {"model": "claude-sonnet-5-5", "max_tokens": 50, "tools": [READ], "messages": messages}
    reply = client.messages.create(**{**request, **first})
    messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "Go on."}]
    client.messages.create(**{**request, **second})
    recorder = recorder_of(client)
    assert len(recorder.session_ids) == 1
    *_, last = iter_entries(recorder.read_events(), shipped_models())
    assert last.verdict is not None
    return last.verdict


AT_NINE, AT_TEN = (f"{RULES} It is 2026-11-16T{hour}:00:00Z, mind {SECRET}." for hour in ("09", "10"))
READ, LIST = tool("read"), tool("list")
OTHER_SCHEMA = tool("read", input_schema={"type": "object", "properties": {"path": {"type": "string"}}})
OTHER_ORDER = tool("read", input_schema={"properties": {"path": {"type": "string"}}, "type": "object"})


@pytest.mark.parametrize(
    ("first", "second", "cause", "section"),
    [
        ({"system": AT_NINE}, {"system": AT_TEN}, "clock", "system"),
        ({"system": f"{RULES} {'a1' * 16}"}, {"system": f"{RULES} {'b2' * 16}"}, "id", "system"),
        ({"system": f"{RULES} /tmp/run1/x"}, {"system": f"{RULES} /tmp/run2/x"}, "path", "system"),
        ({"system": f"{RULES} red green"}, {"system": f"{RULES} green red"}, "order", "system"),
        ({"system": f"{RULES} milk"}, {"system": f"{RULES} bread"}, "text", "system"),
        ({"system": RULES, "tools": [READ]}, {"system": RULES, "tools": [OTHER_SCHEMA]}, "tool schema", "tools"),
        ({"system": RULES, "tools": [OTHER_SCHEMA]}, {"system": RULES, "tools": [OTHER_ORDER]}, "order", "tools"),
        ({"system": RULES, "tools": [READ]}, {"system": RULES, "tools": [READ, LIST]}, "tool list", "system"),
        ({"system": RULES, "tools": [READ, LIST]}, {"system": RULES, "tools": [READ]}, "tool list", "system"),
    ],
)
def test_the_cause_of_a_plain_clients_prefix_change_is_named_and_never_quoted(
    client: anthropic.Anthropic, first: Arguments, second: Arguments, cause: str, section: str
) -> None:
    verdict = last_verdict(client, first, second)
    assert (verdict.kind, verdict.cause, verdict.is_unexpected) == ("prefix_changed", cause, True)
    assert verdict.first_lost_section in (section, "tools")
    assert verdict.byte is not None
    assert verdict.lost_usd > 0
    assert not [line for line in verdict.diff if any(word in line for word in (SECRET, "milk", "Read", "2026"))]


def test_byte_and_masked_lines_show_the_position_of_the_change(client: anthropic.Anthropic) -> None:
    verdict = last_verdict(client, {"system": AT_NINE, "tools": []}, {"system": AT_TEN, "tools": []})
    assert verdict.byte is not None
    # Before it there is only the start of the system array and of its one block.
    assert verdict.byte - AT_TEN.index("T10") - 1 in range(20, 60)
    assert verdict.diff[0].startswith("-")
    assert verdict.diff[0].endswith("Xx xx 0000-00-00X00:00:00X, xxxx xxxxxxxxx.")
    assert verdict.evidence is not None
    assert (verdict.evidence.bytes, verdict.evidence.usage, verdict.evidence.diagnosis) == (
        "changed",
        "partly read",
        None,
    )


def test_a_changed_parameter_of_a_plain_client_is_named_too(client: anthropic.Anthropic) -> None:
    first: Arguments = {"system": RULES, "tools": [READ]}
    verdict = last_verdict(client, first, {**first, "tool_choice": {"type": "none"}})
    assert (verdict.kind, verdict.component, verdict.first_lost_section) == (
        "parameter_changed",
        "tool_choice",
        "messages",
    )
    assert verdict.evidence is not None
    assert verdict.evidence.bytes == "parameters changed"


def test_another_model_of_a_plain_client_has_another_cache(client: anthropic.Anthropic) -> None:
    verdict = last_verdict(client, {"system": RULES}, {"system": RULES, "model": "claude-haiku-4-5"})
    assert (verdict.kind, verdict.component, verdict.first_lost_section) == ("model_switched", "model", "tools")


def test_a_wrapped_client_may_load_a_deferred_tool_in_mid_conversation(client: anthropic.Anthropic) -> None:
    late = tool("late", defer_loading=True)
    verdict = last_verdict(client, {"system": RULES, "tools": [READ]}, {"system": RULES, "tools": [late, READ]})
    assert verdict.kind == "held"
    assert verdict.evidence is not None
    assert verdict.evidence.bytes == "unchanged"
    recorder = recorder_of(client)
    plans = [entry.plan for entry in iter_entries(recorder.read_events(), shipped_models())]
    # Block 0 is the tool, block 1 the system text; the deferred tool before them is no block.
    assert all(1 in {point.block_index for point in plan.breakpoints} for plan in plans)


def test_tools_that_a_plain_client_lists_in_another_order_are_sent_in_the_first_one(
    client: anthropic.Anthropic,
) -> None:
    verdict = last_verdict(client, {"system": RULES, "tools": [READ, LIST]}, {"system": RULES, "tools": [LIST, READ]})
    assert verdict.kind == "held"


def text_block(text: str, role: Role = "user") -> EncodedBlock:
    data = f'{{"type":"text","text":"{text}"}}'.encode()
    return EncodedBlock("history", "messages", Stability.GROWING, data, accepts_breakpoint=True, role=role)


def digest_of(last: EncodedBlock, start: int = 100) -> PrefixDigest:
    return PrefixDigest("history", start, start + 5 + len(last.data), "")


def test_removed_history_is_distinguished_from_changed_history() -> None:
    one, two, three = text_block("one"), text_block("two"), text_block("three")
    assert find_prefix_change((one, two), (two,), digest_of(two)).cause == "removed"
    assert find_prefix_change((one, two), (three, two), digest_of(three)).cause == "text"
    assistant = text_block("two", role="assistant")
    assert find_prefix_change((one, assistant), (assistant,), digest_of(assistant)) == PrefixChange(
        100, "messages", "removed", "the block was removed, and the one after it took its place"
    )
    assert find_prefix_change((one,), (assistant,), digest_of(assistant)).detail == (
        "a block of the assistant replaced a block of the user"
    )
    assert find_prefix_change((one,), (), digest_of(one)) == PrefixChange(
        105 + len(one.data), "messages", "removed", "the prompt ends earlier than before"
    )


def test_without_the_old_blocks_the_cause_is_unknown() -> None:
    assert find_prefix_change((), (text_block("one"),), digest_of(text_block("one"))) == PrefixChange(
        100, "messages", "unknown"
    )
    assert find_prefix_change((), (), PrefixDigest("", 0, 0, "")).cause == "removed"


def test_very_long_blocks_are_compared_by_their_bytes_alone() -> None:
    long = "so " * COMPARED_BYTES_MAX
    old, new = text_block(long + "red green"), text_block(long + "green red")
    verdict = find_prefix_change((old,), (new,), digest_of(new))
    assert (verdict.cause, verdict.diff, verdict.byte) == ("text", (), 105 + new.data.index(b"green"))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("-Émile paid 12 €", "-Xxxxx xxxx 00 €"),
        ('+{"a": 1}', '+{"x": 0}'),
        ("漢字", "xx"),
        ("", ""),
        ("-X9_z", "-X0_x"),
    ],
)
def test_a_masked_line_keeps_its_shape_and_no_word(line: str, shown: str) -> None:
    assert mask_diff_line(line) == shown
