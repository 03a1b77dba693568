"""Request rewriting: what the gateway fixes on request, what it leaves unchanged, and the saving."""

import http.client
import json
import random
from collections.abc import Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.served_gateway import ServedGateway, serve_gateway

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.errors import UserError
from holdfast.events.payloads.calls import GatewayForwarded, RequestChange
from holdfast.gateway.auth import is_subscription
from holdfast.gateway.key_limits import KeyLimits
from holdfast.gateway.rewrite import findings
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileExtractor, VolatileRule
from holdfast.ledger.calls import iter_calls
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.testing.server_thread import serve_provider

GUIDE = "You read before you write, and you say what you did. " * 400
MEMORY = VolatileRule("memory", r"<memory>[^<]*</memory>")
TOOLS = [
    {"name": name, "description": f"{name} a file. " * 30, "input_schema": {"type": "object", "properties": {}}}
    for name in ("delete", "edit", "list", "read", "search", "write")
]
BREAKPOINT = {"cache_control": {"type": "ephemeral"}}
TURNS = 8


def volatile_text(turn: int) -> tuple[str, str]:
    return f"Today's date is 2026-11-16, 08:{turn:02}.", f"<memory>The user asked {turn} things so far.</memory>"


def history(turn: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for place in range(turn):
        messages.append({"role": "user", "content": f"Question {place}: " + "what does this line do? " * 40})
        messages.append({"role": "assistant", "content": f"Answer {place}: " + "it adds two numbers. " * 40})
    return [*messages, {"role": "user", "content": f"Question {turn}: " + "what does this line do? " * 40}]


def badly_written(turn: int) -> dict[str, Any]:
    """The date and the memory in the system prompt, the tools in another order each time, no breakpoints."""
    date, memory = volatile_text(turn)
    tools = random.Random(turn).sample(TOOLS, len(TOOLS))
    system = f"{date}\n{GUIDE}\n{memory}\nBe brief."
    return {"model": "claude-sonnet-5-5", "max_tokens": 50, "system": system, "tools": tools, "messages": history(turn)}


def well_written(turn: int) -> dict[str, Any]:
    """The same, with the volatile text at the end, and breakpoints before it."""
    *before, last = history(turn)
    content = [
        {"type": "text", "text": last["content"], **BREAKPOINT},
        {"type": "text", "text": "\n".join(volatile_text(turn))},
    ]
    system = [{"type": "text", "text": f"{GUIDE}\n\nBe brief.", **BREAKPOINT}]
    messages = [*before, {"role": "user", "content": content}]
    return {"model": "claude-sonnet-5-5", "max_tokens": 50, "system": system, "tools": TOOLS, "messages": messages}


def ask(gateway: ServedGateway, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=10)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", "/anthropic/v1/messages", raw, {"x-api-key": "any", **(headers or {})})
    reply = connection.getresponse()
    reply.read()
    connection.close()
    return reply.status


def cost_of(gateway: ServedGateway) -> Decimal:
    (session,) = gateway.recorded_sessions()
    records = list(iter_calls(gateway.store.read(session)))
    assert len(records) == TURNS
    return sum((record.cost_usd for record in records), Decimal(0))


def play_session(write_request: Any, *, improve: bool) -> tuple[Decimal, ServedGateway, SimulatedProvider]:
    clock = ManualClock()
    provider = SimulatedProvider(clock=clock, script='{"content": "Yes."}')
    with (
        serve_provider(provider) as url,
        serve_gateway(url, improve=improve, rules=(DATE_RULE, MEMORY), clock=clock) as gateway,
    ):
        for turn in range(TURNS):
            assert ask(gateway, write_request(turn)) == 200
            clock.advance(20)
        return cost_of(gateway), gateway, provider


def forwarded_events(gateway: ServedGateway) -> list[GatewayForwarded]:
    (session,) = gateway.recorded_sessions()
    payloads = (event.payload for event in gateway.store.read(session))
    return [payload for payload in payloads if isinstance(payload, GatewayForwarded)]


def test_a_session_with_anti_patterns_costs_as_much_as_a_well_written_one() -> None:
    improved, _, _ = play_session(badly_written, improve=True)
    cost_well_written, _, _ = play_session(well_written, improve=False)
    cost_unchanged, _, _ = play_session(badly_written, improve=False)
    assert improved <= cost_well_written * Decimal("1.1")
    assert cost_unchanged > 2 * improved


def test_applied_changes_are_recorded_and_possible_ones_are_named() -> None:
    anti_patterns = ["volatile date", "volatile memory", "tools out of order", "breakpoints missing"]
    _, improving, _ = play_session(badly_written, improve=True)
    _, observing, _ = play_session(badly_written, improve=False)
    applied = [[change.anti_pattern for change in event.changes] for event in forwarded_events(improving)]
    # The order of the first request stands; that the order changes is known from the second on.
    assert applied[0] == ["volatile date", "volatile memory", "breakpoints missing"]
    assert {name for names in applied[1:] for name in names} == set(anti_patterns)
    assert all(
        event.is_improved and all(change.is_applied for change in event.changes)
        for event in forwarded_events(improving)
    )
    # What could be fixed is what would have been.
    assert [[change.anti_pattern for change in event.changes] for event in forwarded_events(observing)] == applied
    assert not any(
        event.is_improved or any(change.is_applied for change in event.changes) for event in forwarded_events(observing)
    )


def without_breakpoints(value: Any) -> Any:
    """The prompt as the provider caches it: a string is short for one block of text."""
    if isinstance(value, dict):
        members = {name: without_breakpoints(member) for name, member in value.items() if name != "cache_control"}
        content = members.get("content")
        return {**members, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else members
    return [without_breakpoints(member) for member in value] if isinstance(value, list) else value


def test_a_rewritten_request_has_the_same_bytes_again_also_after_a_restart() -> None:
    provider, store = SimulatedProvider(script='{"content": "Yes."}'), MemoryStore()
    with serve_provider(provider) as url:
        for turn in range(4):
            with serve_gateway(url, improve=True, rules=(DATE_RULE, MEMORY), store=store) as gateway:
                ask(gateway, badly_written(turn))
                gateway.recorded_sessions()
    sent = [json.loads(request.body) for request in provider.requests]
    for before, after in pairwise(sent):
        for part in ("tools", "system"):
            assert without_breakpoints({"content": after[part]}) == without_breakpoints({"content": before[part]})
        stable = without_breakpoints(before["messages"])
        assert len(stable[-1]["content"]) == 2
        del stable[-1]["content"][-1]
        assert json.dumps(without_breakpoints(after["messages"])[: len(stable)]) == json.dumps(stable)


def rewrite(body: Mapping[str, Any]) -> dict[str, Any]:
    improver = ConversationRewriter(shipped_models(), VolatileExtractor((DATE_RULE,)))
    analysis = improver.analyze("anthropic", json.dumps(body).encode(), path="/v1/messages", account="a", at=1.79e9)
    assert analysis.body is not None
    sent: dict[str, Any] = json.loads(analysis.body)
    return sent


def test_the_callers_breakpoints_on_the_system_text_remain_and_count() -> None:
    body = well_written(2)
    sent = rewrite(body)
    assert 2 <= json.dumps(sent).count("cache_control") <= 4
    assert sent["system"] == body["system"]


def test_ttls_are_put_in_order() -> None:
    body = well_written(1)
    body["messages"][-1]["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    with (
        serve_provider(SimulatedProvider()) as url,
        serve_gateway(url) as plain,
        serve_gateway(url, improve=True) as improving,
    ):
        assert ask(plain, body) == 400
        assert ask(improving, body) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sk-ant-oat01-abc"},
        {"authorization": "Bearer eyJhbGciOi.x.y"},
        {"anthropic-beta": "oauth-2025-04-20,other"},
    ],
)
def test_subscription_calls_are_never_changed(headers: dict[str, str]) -> None:
    provider = SimulatedProvider()
    raw = json.dumps(badly_written(1), indent=1).encode()
    with serve_provider(provider) as url, serve_gateway(url, improve=True) as gateway:
        ask(gateway, raw, headers)
    assert [request.body for request in provider.requests] == [raw]
    assert is_subscription([(name.encode(), value.encode()) for name, value in headers.items()])


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"model": "nobody-knows", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi."}]}',
        json.dumps({**badly_written(1), "messages": []}).encode(),
        b" " * 10,
    ],
)
def test_a_request_that_cannot_be_fixed_safely_is_forwarded_unchanged(body: bytes) -> None:
    provider = SimulatedProvider()
    with serve_provider(provider) as url, serve_gateway(url, improve=True) as gateway:
        ask(gateway, body)
    assert [request.body for request in provider.requests] == [body]


def test_a_conversation_that_ends_with_the_model_keeps_its_system_prompt() -> None:
    body = badly_written(1)
    body["messages"].append({"role": "assistant", "content": "It"})
    assert "2026-11-16" in json.dumps(rewrite(body)["system"])


def test_nothing_is_changed_unless_requested_and_a_key_can_request_it() -> None:
    provider = SimulatedProvider()
    with serve_provider(provider) as url, serve_gateway(url, grants={"*": KeyLimits(improve=True)}) as gateway:
        raw = json.dumps(badly_written(1)).encode()
        ask(gateway, raw)
        new_key = make_key("gateway", at=0.0, random_bytes=lambda size: b"1" * size)
        gateway.service.records.add_key(new_key.row)
        ask(gateway, raw, {"x-holdfast-key": new_key.key})
    first, second = (request.body for request in provider.requests)
    assert first == raw
    assert second != raw


def test_rules_that_could_run_for_ever_are_refused() -> None:
    for pattern in ("(a+)+", "(", "a" * 1_000):
        with pytest.raises(UserError, match="rule"):
            VolatileExtractor((VolatileRule("mine", pattern),))


@pytest.mark.parametrize(
    "line",
    [
        "Today's date is 2026-11-16.",
        "Current time: 2026-11-16 08:00",
        "Now: 2026-11-17T19:55:01.123",
        "Now: 1794944949.96",
        "It is Tue Nov 17 19:50:12 2026.",
        "Date: Tue, 17 Nov 2026 19:50:12 GMT",
        "Tuesday, November 17, 2026 19:50",
    ],
)
def test_a_line_with_the_current_time_is_extracted(line: str) -> None:
    rest, extracted = VolatileExtractor().extract(f"Be kind.\n{line}\nEnd.")
    assert (rest, [text for _, text in extracted]) == ("Be kind.\nEnd.", [line])


@pytest.mark.parametrize(
    "line",
    [
        "The release of 2026-01-01.",
        "Call 1794944949 in an emergency.",
        "Tuesday is the day of the harbour market.",
        "Answer in real time; 12345678901 is no date.",
    ],
)
def test_other_lines_stay(line: str) -> None:
    assert VolatileExtractor().extract(f"Be kind.\n{line}\nEnd.") == (f"Be kind.\n{line}\nEnd.", ())


@pytest.mark.parametrize("moved", ["", "Today's date is 2026-11-16.\n"])
def test_an_automatic_breakpoint_is_at_the_end_of_the_repeated_prefix(moved: str) -> None:
    body = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 50,
        "system": moved + GUIDE,
        "messages": [{"role": "user", "content": "One. " * 400}],
        "cache_control": {"type": "ephemeral"},
    }
    improver = ConversationRewriter(shipped_models(), VolatileExtractor((DATE_RULE,)))
    received = json.dumps(body).encode()
    analysis = improver.analyze("anthropic", received, path="/v1/messages", account="a", at=1.79e9)
    assert bool(moved) == (b"2026-11-16" in (analysis.body or b"")[-200:])
    assert analysis.call.record.breakpoints[-1].block_index == 1


def test_only_the_lines_that_a_diff_shows_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masking takes longer than comparing: 52 ms instead of 9 for a request of 400 KB."""
    masked = list[str]()

    def mask(line: str) -> str:
        masked.append(line)
        return line

    monkeypatch.setattr(findings, "mask_line", mask)
    before, after = ({"messages": [f"{word} {number}" for number in range(500)]} for word in ("old", "new"))
    (change,) = findings.add_masked_diffs(
        (RequestChange("timestamp", "messages"),), json.dumps(before).encode(), json.dumps(after).encode()
    )
    assert list(change.diff) == masked
    assert len(masked) == findings.LINES_MAX


@pytest.mark.parametrize("kept", [(0, 0), (200, 0), (0, 200), (200, 200)])
def test_a_diff_shows_the_changed_messages_of_a_long_conversation(kept: tuple[int, int]) -> None:
    first, last = (
        [{"role": "user", "content": f"{part} {number}"} for number in range(count)]
        for part, count in zip(("first", "last"), kept, strict=True)
    )
    before, after = ([*first, {"role": "user", "content": text}, *last] for text in ("It is 12:30.", "It is noon."))
    (change,) = findings.add_masked_diffs(
        (RequestChange("timestamp", "messages"),),
        json.dumps({"messages": before}).encode(),
        json.dumps({"messages": after}).encode(),
    )
    assert change.diff == ("-    content: xx xx 00:00.", "+    content: xx xx xxxx.")
