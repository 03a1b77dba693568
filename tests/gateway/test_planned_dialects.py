"""Conversations in the formats of OpenAI, OpenRouter and Gemini are planned like Anthropic's."""

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.catalog.lookup import shipped_models
from holdfast.engine.cache.conversation_plans import RestoredConversation
from holdfast.engine.request_draft import RequestDraft
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis
from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileExtractor
from holdfast.providers.adapter import PATH_HEADER, WireRequest
from holdfast.providers.registry import get_adapter
from holdfast.types.prompt import Breakpoint

GUIDE = "You read before you write, and you say what you did. " * 200
NAMES = ("delete", "edit", "list", "read", "search", "write")
Wire = dict[str, Any]
MODELS = {
    "openai-chat": "gpt-6.1-sol",
    "openai": "gpt-6.1-sol",
    "openrouter": "anthropic/claude-sonnet-5.5",
    "gemini": "gemini-3.8-flash",
}
DIALECTS = tuple(MODELS)
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def make_tools(dialect: str) -> list[Wire]:
    """Tools as the adapter of the dialect encodes them, so that a request and its record have the same digests."""
    schema: Wire = {"type": "object", "properties": {}}
    functions = [{"name": name, "description": f"{name} a file. " * 60, "parameters": schema} for name in NAMES]
    match dialect:
        case "gemini":
            return [
                {"name": tool["name"], "description": tool["description"], "parametersJsonSchema": schema}
                for tool in functions
            ]
        case "openai":
            return [{"type": "function", **tool, "strict": False} for tool in functions]
        case _:
            return [{"type": "function", "function": tool} for tool in functions]


def make_messages(dialect: str, turns: int, who: str) -> list[Wire]:
    """Each turn asks, calls a tool, gets its result and answers; the last one only asks."""
    messages: list[Wire] = []
    for turn in range(turns + 1):
        question, call_id = f"{who} asks {turn}. " + "What does it do? " * 80, f"{who}-{turn}"
        result, answer = f"line {turn} " * 100, f"Answer {turn}. " * 60
        arguments = {"path": f"{turn}.py"}
        last = turn == turns
        if dialect == "gemini":
            call = {"functionCall": {"id": call_id, "name": "read", "args": arguments}}
            response = {"functionResponse": {"id": call_id, "name": "read", "response": {"result": result}}}
            spoken = [("user", {"text": question}), ("model", call), ("user", response), ("model", {"text": answer})]
            messages += [{"role": role, "parts": [part]} for role, part in spoken[: 1 if last else 4]]
        elif dialect == "openai":
            used = {"type": "function_call", "call_id": call_id, "name": "read", "arguments": json.dumps(arguments)}
            items: list[Wire] = [
                {"role": "user", "content": question},
                used,
                {"type": "function_call_output", "call_id": call_id, "output": result},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": answer, "annotations": []}],
                },
            ]
            messages += items[: 1 if last else 4]
        else:
            function = {"name": "read", "arguments": json.dumps(arguments)}
            items = [
                {"role": "user", "content": question},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": call_id, "content": result},
                {"role": "assistant", "content": answer},
            ]
            messages += items[: 1 if last else 4]
    return messages


def make_request(dialect: str, turns: int, who: str = "a", *, system: str = GUIDE, tools: Any = None) -> Wire:
    messages = make_messages(dialect, turns, who)
    offered = make_tools(dialect) if tools is None else tools
    match dialect:
        case "gemini":
            declared = {"tools": [{"functionDeclarations": offered}]} if offered else {}
            return {"systemInstruction": {"parts": [{"text": system}]}, **declared, "contents": messages}
        case "openai":
            head = [{"role": "developer", "content": system}]
            body: Wire = {"model": MODELS[dialect], "store": False, "input": [*head, *messages]}
        case _:
            body = {"model": MODELS[dialect], "messages": [{"role": "system", "content": system}, *messages]}
    return {**body, "tools": offered} if offered else body


class Caller:
    """A client behind the gateway's rewriter, which can be restarted."""

    def __init__(self, dialect: str, model: str = "") -> None:
        self.dialect = dialect
        self.adapter = get_adapter(dialect)
        self.model = model or MODELS[dialect]
        self.path = f"/v1/models/{self.model}:generateContent" if dialect == "gemini" else "/v1"
        self.restored: dict[str, RestoredConversation] = {}
        self.sent: list[bytes] = []
        self.restart()

    def restart(self) -> None:
        restored = tuple(self.restored.values())
        self.rewriter = ConversationRewriter(
            shipped_models(), VolatileExtractor((DATE_RULE,)), restore=lambda: restored
        )

    def call(self, body: Mapping[str, Any], at: float = 1.79e9, who: str = "a", *, cached: int = 0) -> RequestAnalysis:
        received = json.dumps({**body, "model": self.model} if "model" in body else body).encode()
        analysis = self.rewriter.analyze(self.dialect, received, path=self.path, account="a", at=at)
        self.sent.append(analysis.body or received)
        assert analysis.call is not None
        self.rewriter.record_response(analysis.call, encode_usage(self.dialect, cached))
        state = analysis.call.conversation
        assert state.last_request is not None
        self.restored[who] = RestoredConversation(tuple(analysis.call.digests), state.memory, state.last_request)
        return analysis

    def decode(self, body: bytes | None = None) -> WireRequest:
        return self.adapter.decode_request(body or self.sent[-1], {PATH_HEADER: self.path})

    def chain(self) -> list[str]:
        """The newest request as the provider caches it, block by block."""
        draft = RequestDraft(self.adapter, len)
        draft.update(self.decode().prompt)
        return [digest.digest for digest in draft.buffer.digests]

    @property
    def points(self) -> tuple[Breakpoint, ...]:
        return self.decode().plan.breakpoints

    @property
    def body(self) -> Wire:
        body: Wire = json.loads(self.sent[-1])
        return body


def encode_usage(dialect: str, cached: int) -> bytes:
    total = 5_000
    match dialect:
        case "gemini":
            return json.dumps(
                {"usageMetadata": {"promptTokenCount": total, "cachedContentTokenCount": cached}}
            ).encode()
        case "openai":
            details = {"input_tokens_details": {"cached_tokens": cached}}
            return json.dumps({"usage": {"input_tokens": total, "output_tokens": 9, **details}}).encode()
        case _:
            details = {"prompt_tokens_details": {"cached_tokens": cached}}
            return json.dumps({"usage": {"prompt_tokens": total, "completion_tokens": 9, **details}}).encode()


@settings(deadline=None, max_examples=40)
@given(st.data())
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_longer_conversation_begins_with_the_shorter_one_whatever_happens_between(
    dialect: str, data: st.DataObject
) -> None:
    caller, shuffle = Caller(dialect), random.Random(data.draw(st.integers(0, 2**32)))
    tools, at, chains = make_tools(dialect), 1.79e9, dict[str, list[str]]()
    keys, turns = dict[str, set[str]](), {"a": 0, "b": 0, "c": 0}
    has_date = data.draw(st.booleans())
    for call in range(data.draw(st.integers(2, 8))):
        who = data.draw(st.sampled_from("abc"))
        offered = shuffle.sample(tools, len(tools)) if data.draw(st.booleans()) else tools
        system = f"Today's date is 2026-11-{call + 10}.\n{GUIDE}" if has_date else GUIDE
        if data.draw(st.booleans()):
            caller.restart()
        analysis = caller.call(make_request(dialect, turns[who], who, system=system, tools=offered), at, who)
        chain = caller.chain()
        if has_date:
            # Text that was moved to the end is one block, which the next request does not repeat.
            assert f"2026-11-{call + 10}" in repr(caller.decode().prompt.entries[-1].content[-1])
            chain.pop()
        assert chain == [digest.digest for digest in analysis.call.digests]
        before = chains.get(who, [])
        assert chain[: len(before)] == before
        chains[who] = chain
        keys.setdefault(who, set()).add(caller.body.get("prompt_cache_key") or caller.body.get("session_id", ""))
        assert {(point.block_index, point.ttl) for point in caller.points} == {
            (point.block_index, point.ttl) for point in analysis.call.record.breakpoints
        }
        turns[who] += 1
        at += data.draw(st.sampled_from((1.0, 60.0, 400.0, 4000.0)))
    assert all(len(session) == 1 for session in keys.values())


@every_dialect
def test_bytes_that_carry_no_breakpoint_are_forwarded_as_received(dialect: str) -> None:
    body = make_request(dialect, 2)
    prompt = next(name for name in ("contents", "input", "messages") if name in body)
    odd: Wire = {"text": "snöw ☃", "odd": {"b": 1.50, "a": [1e3, None]}}
    if dialect != "gemini":
        odd["type"] = "input_text" if dialect == "openai" else "text"
    body[prompt].insert(2, {"role": "user", "parts" if dialect == "gemini" else "content": [odd]})
    caller = Caller(dialect)
    first = encode_spaced(make_request(dialect, 0))
    caller.rewriter.analyze(dialect, first, path=caller.path, account="a", at=1.79e9)
    received = encode_spaced({**body, "tools": make_request(dialect, 0, tools=make_tools(dialect)[::-1])["tools"]})
    sent = caller.rewriter.analyze(dialect, received, path=caller.path, account="a", at=1.79e9).body
    assert sent is not None
    assert [tool.name for tool in caller.decode(sent).prompt.tools] == [*NAMES]
    for message in body[prompt][1:-1]:
        assert encode_spaced(message) in sent


def encode_spaced(value: Wire) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(", ", " : ")).encode()


@every_dialect
def test_tools_keep_the_order_in_which_they_were_first_listed(dialect: str) -> None:
    caller, tools = Caller(dialect), make_tools(dialect)[::-1]
    caller.call(make_request(dialect, 0, tools=tools))
    first = list(caller.decode().prompt.tools)
    assert [tool.name for tool in first] == [*NAMES[::-1]]
    caller.call(make_request(dialect, 1, tools=make_tools(dialect)))
    assert list(caller.decode().prompt.tools) == first
    assert "tools out of order" not in [
        change.anti_pattern for change in caller.call(make_request(dialect, 2, tools=tools)).changes
    ]


@pytest.mark.parametrize("dialect", ["openai", "openai-chat"])
def test_the_end_of_the_system_messages_gets_a_breakpoint_and_the_rest_stays(dialect: str) -> None:
    caller = Caller(dialect)
    body = make_request(dialect, 1)
    prompt = "input" if dialect == "openai" else "messages"
    body[prompt].insert(1, {"role": "developer", "content": "Be brief."})
    caller.call(body)
    kind = "input_text" if dialect == "openai" else "text"
    marked = {"type": kind, "text": "Be brief.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert caller.body[prompt][1] == {"role": "developer", "content": [marked]}
    assert caller.body[prompt][2:] == body[prompt][2:]
    assert caller.body[prompt][0] == body[prompt][0]


@pytest.mark.parametrize("dialect", ["openai", "openai-chat"])
def test_a_client_that_rewrites_its_end_gets_a_breakpoint_where_it_starts_to_differ(dialect: str) -> None:
    caller = Caller(dialect)
    prompt = "input" if dialect == "openai" else "messages"
    for turn in range(4):
        body = make_request(dialect, turn)
        body[prompt].append({"role": "user", "content": f"The file is now: {turn} " + "line of code " * 500})
        caller.call(body, 1.79e9 + 30 * turn)
    # OpenAI looks up only at breakpoints and at earlier ends of prompts, none of which the next request repeats.
    last = caller.points[-1].block_index
    assert len(caller.chain()) - last > 1
    assert caller.chain()[last] in {digest.digest for digest in caller.restored["a"].digests[:-1]}
    assert last > 7


@pytest.mark.parametrize("dialect", ["openai", "openai-chat"])
def test_the_clients_own_cache_fields_stay(dialect: str) -> None:
    caller = Caller(dialect, "gpt-5.4")
    own = {"prompt_cache_key": "mine", "prompt_cache_retention": "in_memory"}
    analysis = caller.call({**make_request(dialect, 0), **own})
    assert analysis.body is None
    explicit = Caller(dialect)
    analysis = explicit.call(
        {**make_request(dialect, 0), "prompt_cache_key": "k", "prompt_cache_options": {"mode": "explicit"}}
    )
    assert analysis.body is None


@pytest.mark.parametrize("dialect", ["openai", "openai-chat"])
def test_older_models_get_a_key_for_each_conversation_and_the_longest_retention(dialect: str) -> None:
    caller = Caller(dialect, "gpt-5.4")
    for who in "ab":
        caller.call(make_request(dialect, 0, who), who=who)
    first, second = (json.loads(body) for body in caller.sent)
    assert first["prompt_cache_retention"] == second["prompt_cache_retention"] == "24h"
    assert first["prompt_cache_key"] != second["prompt_cache_key"]
    assert caller.points == ()
    newer = Caller(dialect)
    for who in "ab":
        newer.call(make_request(dialect, 0, who), who=who)
    first, second = (json.loads(body) for body in newer.sent)
    # From GPT-5.6 on a key separates caches: these two share their tools and system text.
    assert first["prompt_cache_key"] == second["prompt_cache_key"]
    assert "prompt_cache_retention" not in first


def test_a_conversation_that_the_provider_stores_keeps_one_key() -> None:
    caller = Caller("openai", "gpt-5.4")
    keys = []
    for turn in range(3):
        own: Wire = {
            "instructions": GUIDE,
            "input": f"Question {turn}?",
            "previous_response_id": f"r{turn}" if turn else None,
        }
        caller.call({"model": "", **own})
        keys.append(caller.body["prompt_cache_key"])
        assert caller.body["input"] == own["input"]
    assert len(set(keys)) == 1
    # Without a head nothing that a later request repeats is known.
    caller.call({"model": "", "input": "Hello."})
    assert "prompt_cache_key" not in caller.body


def test_single_questions_through_openrouter_are_not_cached_until_they_share_their_instructions() -> None:
    caller = Caller("openrouter")
    counts = []
    for number in range(3):
        caller.call(make_request("openrouter", 0, f"{number}", tools=[]), 1.79e9 + number, str(number))
        counts.append(len(caller.points))
    assert counts == [0, 1, 1]


def test_the_ttl_through_openrouter_follows_the_pauses_of_the_conversation() -> None:
    def list_ttls(pause_seconds: float) -> set[str]:
        caller, at, ttls = Caller("openrouter"), 1.79e9, set[str]()
        for turn in range(12):
            caller.call(make_request("openrouter", turn), at, cached=4_000 if turn and pause_seconds < 300 else 0)
            ttls |= {str(point.ttl) for point in caller.points}
            at += pause_seconds if turn % 2 else 20
        return ttls

    assert "1h" in list_ttls(900)
    assert list_ttls(20) == {"5m"}
