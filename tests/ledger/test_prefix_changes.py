"""What most likely moved a prefix: played with the official client, wrapped, and block by block."""

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
Given = dict[str, Any]


def tool(name: str, **changes: Any) -> Given:
    return {"name": name, "description": f"Does {name}.", "input_schema": {"type": "object"}, **changes}


@pytest.fixture
def client() -> Iterator[anthropic.Anthropic]:
    with SimulatorServer(parse_script("")) as running, wrap(running.client()) as opened:
        yield opened


def last_verdict(client: anthropic.Anthropic, first: Given, second: Given) -> Verdict:
    said = [{"role": "user", "content": f"{SECRET} " + "So? " * 3_000}]
    for given in (first, second):
        client.messages.create(**{"model": "claude-sonnet-5-5", "max_tokens": 50, "messages": said, **given})
    recorder = recorder_of(client)
    *_, last = iter_entries(recorder.log.read(recorder.session_id), shipped_models())
    assert last.verdict is not None
    return last.verdict


AT_NINE, AT_TEN = (f"{RULES} It is 2026-11-16T{hour}:00:00Z, mind {SECRET}." for hour in ("09", "10"))
READ, LIST = tool("read"), tool("list")
OTHER_SCHEMA = tool("read", input_schema={"type": "object", "properties": {"path": {"type": "string"}}})
OTHER_ORDER = tool("read", input_schema={"properties": {"path": {"type": "string"}}, "type": "object"})


@pytest.mark.parametrize(
    ("first", "second", "cause", "place"),
    [
        ({"system": AT_NINE}, {"system": AT_TEN}, "clock", "system"),
        ({"system": f"{RULES} {'a1' * 16}"}, {"system": f"{RULES} {'b2' * 16}"}, "id", "system"),
        ({"system": f"{RULES} /tmp/run1/x"}, {"system": f"{RULES} /tmp/run2/x"}, "path", "system"),
        ({"system": f"{RULES} red green"}, {"system": f"{RULES} green red"}, "order", "system"),
        ({"system": f"{RULES} milk"}, {"system": f"{RULES} bread"}, "text", "system"),
        ({"system": RULES, "tools": [READ, LIST]}, {"system": RULES, "tools": [LIST, READ]}, "order", "tools"),
        ({"system": RULES, "tools": [READ]}, {"system": RULES, "tools": [OTHER_SCHEMA]}, "tool schema", "tools"),
        ({"system": RULES, "tools": [OTHER_SCHEMA]}, {"system": RULES, "tools": [OTHER_ORDER]}, "order", "tools"),
        ({"system": RULES, "tools": [READ]}, {"system": RULES, "tools": [READ, LIST]}, "tool list", "system"),
        ({"system": RULES, "tools": [READ, LIST]}, {"system": RULES, "tools": [READ]}, "tool list", "system"),
    ],
)
def test_what_moved_the_prefix_of_a_plain_client_is_named_and_never_quoted(
    client: anthropic.Anthropic, first: Given, second: Given, cause: str, place: str
) -> None:
    found = last_verdict(client, first, second)
    assert (found.kind, found.cause, found.is_unexpected) == ("prefix_changed", cause, True)
    assert found.first_lost_section in (place, "tools")
    assert found.byte is not None
    assert found.lost_usd > 0
    assert not [line for line in found.diff if any(word in line for word in (SECRET, "milk", "Read", "2026"))]


def test_the_byte_and_the_masked_lines_show_where_it_is(client: anthropic.Anthropic) -> None:
    found = last_verdict(client, {"system": AT_NINE}, {"system": AT_TEN})
    assert found.byte is not None
    # In front of it stands nothing but the opening of the system's array and of its one block.
    assert found.byte - AT_TEN.index("T10") - 1 in range(20, 60)
    assert found.diff[0].startswith("-")
    assert found.diff[0].endswith("Xx xx 0000-00-00X00:00:00X, xxxx xxxxxxxxx.")
    assert found.evidence is not None
    assert (found.evidence.bytes, found.evidence.usage, found.evidence.diagnosis) == ("changed", "partly read", None)


def test_a_parameter_of_a_plain_client_is_named_too(client: anthropic.Anthropic) -> None:
    first: Given = {"system": RULES, "tools": [READ]}
    found = last_verdict(client, first, {**first, "tool_choice": {"type": "none"}})
    assert (found.kind, found.component, found.first_lost_section) == ("parameter_changed", "tool_choice", "messages")
    assert found.evidence is not None
    assert found.evidence.bytes == "parameters changed"


def test_another_model_of_a_plain_client_has_another_cache(client: anthropic.Anthropic) -> None:
    found = last_verdict(client, {"system": RULES}, {"system": RULES, "model": "claude-haiku-4-5"})
    assert (found.kind, found.component, found.first_lost_section) == ("parameter_changed", "model", "tools")


def piece(said: str, role: Role = "user") -> EncodedBlock:
    data = f'{{"type":"text","text":"{said}"}}'.encode()
    return EncodedBlock("history", "messages", Stability.GROWING, data, accepts_breakpoint=True, role=role)


def link_to(last: EncodedBlock, start: int = 100) -> PrefixDigest:
    return PrefixDigest("history", start, start + 5 + len(last.data), "")


def test_history_that_is_gone_is_told_from_history_that_is_another() -> None:
    one, two, three = piece("one"), piece("two"), piece("three")
    assert find_prefix_change((one, two), (two,), link_to(two)).cause == "removed"
    assert find_prefix_change((one, two), (three, two), link_to(three)).cause == "text"
    assistant = piece("two", role="assistant")
    assert find_prefix_change((one, assistant), (assistant,), link_to(assistant)) == PrefixChange(
        100, "messages", "removed", "the block was removed, and the one after it took its place"
    )
    assert find_prefix_change((one,), (assistant,), link_to(assistant)).detail == (
        "a block of the assistant replaced a block of the user"
    )
    assert find_prefix_change((one,), (), link_to(one)) == PrefixChange(
        105 + len(one.data), "messages", "removed", "the prompt ends earlier than before"
    )


def test_what_nobody_knows_any_more_is_not_guessed_at() -> None:
    assert find_prefix_change((), (piece("one"),), link_to(piece("one"))) == PrefixChange(100, "messages", "unknown")
    assert find_prefix_change((), (), PrefixDigest("", 0, 0, "")).cause == "removed"


def test_blocks_that_are_very_long_are_compared_by_their_bytes_alone() -> None:
    long = "so " * COMPARED_BYTES_MAX
    old, new = piece(long + "red green"), piece(long + "green red")
    found = find_prefix_change((old,), (new,), link_to(new))
    assert (found.cause, found.diff, found.byte) == ("text", (), 105 + new.data.index(b"green"))


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
