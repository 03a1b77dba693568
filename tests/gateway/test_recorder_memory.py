"""What the recorder keeps of conversations: reused by the next call, bounded in bytes, and read from the log again."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallStarted, RequestPrepared
from holdfast.gateway.exchange import Exchange, GatewayCaller
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.recording.request_start import RequestStart, RequestStarts, SplitRequest
from holdfast.gateway.recording.worker_process import SynchronousQueue
from holdfast.gateway.routes import Target
from holdfast.stores.memory import MemoryStore

Message = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}
TARGETS = {
    "anthropic": Target("anthropic", "/v1/messages", "anthropic", provider="anthropic", format="anthropic"),
    "openai-chat": Target("openai", "/v1/chat/completions", "openai-chat", provider="openai", format="openai-chat"),
    "openai": Target("openai", "/v1/responses", "openai", provider="openai", format="openai"),
    "openrouter": Target(
        "openrouter", "/v1/chat/completions", "openrouter", provider="openrouter", format="openrouter"
    ),
    "gemini": Target(
        "gemini", "/v1beta/models/gemini-3.8-flash:generateContent", "gemini", provider="gemini", format="gemini"
    ),
}


class NoStarts(RequestStarts):
    """Decodes every request as a whole."""

    def find(self, split: SplitRequest) -> RequestStart | None:
        return None


class CountedStarts(RequestStarts):
    found = 0

    def find(self, split: SplitRequest) -> RequestStart | None:
        start = super().find(split)
        self.found += start is not None
        return start


def make_recorder(log: MemoryStore, **options: Any) -> GatewayRecorder:
    return GatewayRecorder(log, models=shipped_models(), new_id=CountingIds(), make_queue=SynchronousQueue, **options)


def make_body(format: str, texts: Sequence[str], *, system: str, marked: bool) -> bytes:
    """A conversation in the provider's format; Anthropic clients have a breakpoint on its last message."""
    roles = [("user", "assistant")[number % 2] for number in range(len(texts))]
    spoken: list[Message] = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    match format:
        case "anthropic":
            if marked:
                spoken[-1]["content"] = [{"type": "text", "text": texts[-1], **MARK}]
            tool = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}
            body: Message = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": spoken, "tools": [tool]}
            body["system"] = [{"type": "text", "text": system, **MARK}]
        case "openai":
            body = {"model": "gpt-6.1-sol", "instructions": system, "input": spoken}
        case "gemini":
            names = {"user": "user", "assistant": "model"}
            contents = [{"role": names[m["role"]], "parts": [{"text": m["content"]}]} for m in spoken]
            body = {"systemInstruction": {"parts": [{"text": system}]}, "contents": contents}
        case _:
            model = "gpt-6.1-sol" if format == "openai-chat" else "anthropic/claude-sonnet-5.5"
            body = {"model": model, "messages": [{"role": "system", "content": system}, *spoken]}
    return msgspec.json.encode(body)


def record(recorder: GatewayRecorder, format: str, body: bytes, *, id: str, at: float) -> str | None:
    """The session of the call, whose response is lost."""
    exchange = Exchange(TARGETS[format], [], GatewayCaller("account"), at, id=id)
    exchange.add_request_bytes(body)
    recorder.on_request(exchange)
    session_id = exchange.session_id
    exchange.ended_at, exchange.status, exchange.end = at + 1.0, 200, "cut"
    recorder.on_end(exchange)
    return session_id


def list_requests(log: MemoryStore) -> list[object]:
    kinds = (RequestPrepared, GatewayForwarded, LlmCallStarted)
    return [
        (row.id, event.payload)
        for row in log.sessions()
        for event in log.read(row.id)
        if isinstance(event.payload, kinds)
    ]


TEXTS = st.lists(st.sampled_from(["Why?", "Because it was so.", "Look at 2026-10-01 12:30", "é\n\n"]), min_size=1)


@pytest.mark.parametrize("format", TARGETS)
@settings(max_examples=25, deadline=None)
@given(
    texts=TEXTS.map(lambda texts: texts[:9]),
    edits=st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(["append", "edit", "drop", "head"]), st.booleans()), max_size=6
    ),
)
def test_a_call_is_recorded_alike_whether_or_not_its_start_was_decoded_before(
    format: str, texts: list[str], edits: list[tuple[int, str, bool]]
) -> None:
    """Clients append, move their breakpoints, edit what they sent, leave out its end, and change the system text."""
    logs = MemoryStore(), MemoryStore()
    recorders = [make_recorder(log) for log in logs]
    recorders[1]._conversations.starts = NoStarts()
    system, requests = "Be brief.", [(list(texts), "Be brief.", True)]
    for place, edit, marked in edits:
        texts = list(requests[-1][0])
        match edit:
            case "append":
                texts += [f"Answer {place}", f"Question {place}"]
            case "edit":
                texts[place % len(texts)] += " Really."
            case "drop":
                texts = texts[: max(1, len(texts) - 1 - place % 3)]
            case _:
                system = f"Be brief. It is {place} o'clock."
        requests.append((texts, system, marked))
    for number, (sent, head, marked) in enumerate(requests):
        body = make_body(format, sent, system=head, marked=marked)
        for recorder in recorders:
            record(recorder, format, body, id=f"call-{number}", at=1_000.0 + 10 * number)
    assert list_requests(logs[0]) == list_requests(logs[1])


@pytest.mark.parametrize("format", [name for name in TARGETS if name != "gemini"])
def test_messages_of_the_call_before_are_not_decoded_again(format: str) -> None:
    recorder = make_recorder(MemoryStore())
    recorder._conversations.starts = starts = CountedStarts()
    texts = [f"Message {number}" for number in range(5)]
    for number in range(6):
        body = make_body(format, texts, system="Be brief.", marked=True)
        record(recorder, format, body, id=f"call-{number}", at=1_000.0 + number)
        texts += [f"Answer {number}", f"Question {number}"]
    assert starts.found == 5


def test_conversations_beyond_the_bytes_are_evicted_and_continue_from_the_log() -> None:
    bounded, unbounded = MemoryStore(), MemoryStore()
    limit = 100_000
    recorders = [make_recorder(bounded, conversation_bytes_max=limit), make_recorder(unbounded)]
    sessions: dict[int, set[str | None]] = {}
    for call in range(3):
        for conversation in range(40):
            texts = [f"{conversation}: message {number}" for number in range(9 + 2 * call)]
            body = make_body("anthropic", texts, system="Be brief.", marked=True)
            for recorder in recorders:
                at = 1_000.0 + 100 * call + conversation
                session = record(recorder, "anthropic", body, id=f"{conversation}-{call}", at=at)
                if recorder is recorders[0]:
                    sessions.setdefault(conversation, set()).add(session)
                    assert recorder._conversations.size_bytes <= limit
    assert len(recorders[0]._conversations.matcher._by_key) < 12
    assert len(recorders[0]._conversations.matcher._evicted) > 28
    assert len(sessions) == len(set().union(*sessions.values())) == 40
    assert list_requests(bounded) == list_requests(unbounded)


def test_a_long_conversation_takes_a_fraction_of_its_text() -> None:
    recorder = make_recorder(MemoryStore())
    text = " ".join(f"word{number}" for number in range(2_000))
    body = make_body("anthropic", [f"{number} {text}" for number in range(51)], system="", marked=False)
    record(recorder, "anthropic", body, id="call", at=1_000.0)
    assert 0 < recorder._conversations.size_bytes < len(body) / 2
