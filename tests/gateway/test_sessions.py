"""Grouping of calls into sessions: by the ids that clients send, and by the earlier messages."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.served_gateway import ServedGateway, serve_gateway

from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.events.payloads.session import SessionStarted
from holdfast.gateway.recording.conversation_match import ConversationMatcher
from holdfast.gateway.recording.fingerprint import (
    ReplyFingerprint,
    RequestFingerprint,
    SessionHints,
    find_session_hints,
)
from holdfast.ledger.calls import iter_calls
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider


def fingerprint(
    *texts: str,
    system: str = "h",
    session: str | None = None,
    source: str = "session_id",
    opening: tuple[str, ...] = (),
    **more: Any,
) -> RequestFingerprint:
    hints = SessionHints(session, source if session else "", **more)
    return RequestFingerprint("scope", system, texts, hints, opening=opening)


def match_requests(matcher: "ConversationMatcher[str]", *requests: RequestFingerprint) -> list[str]:
    """The names of the conversations that the requests were assigned to, in order, each answered at once."""
    names = iter("abcdefgh")
    conversations: list[str] = []
    for request in requests:
        conversation, match = matcher.match_request(request, lambda above: next(names) + (f"<{above}" if above else ""))
        matcher.end_request(conversation.key, ReplyFingerprint(f"reply {len(conversations)}"))
        conversations.append(match)
    return conversations


def test_a_longer_request_continues_its_conversation() -> None:
    requests = fingerprint("u1"), fingerprint("u1", "a1", "u2"), fingerprint("u1", "a1", "u2", "a2", "u3")
    assert match_requests(ConversationMatcher(), *requests) == ["a", "a", "a"]


def test_conversations_with_a_common_start_are_distinguished_where_they_diverge() -> None:
    requests = (
        fingerprint("u1"),
        fingerprint("u1", "a1", "u2"),
        fingerprint("u1", "a1", "v2"),
        fingerprint("u1", "a1", "u2", "a2", "u3"),
    )
    assert match_requests(ConversationMatcher(), *requests) == ["a", "a", "b", "a"]


def test_a_first_message_that_changes_every_time_does_not_prevent_a_match() -> None:
    requests = (
        fingerprint("u1", "a0", "v1"),
        fingerprint("U1", "a0", "v1", "a1", "u2"),
        fingerprint("W1", "a0", "v1", "a1", "u2", "a2", "u3"),
    )
    assert match_requests(ConversationMatcher(), *requests) == ["a", "a", "a"]


def test_a_last_block_that_is_missing_the_next_time_does_not_prevent_a_match() -> None:
    requests = (
        fingerprint("u1", "now"),
        fingerprint("u1", "a1", "u2", "now2"),
        fingerprint("u1", "a1", "u2", "a2", "u3", "now3"),
    )
    assert match_requests(ConversationMatcher(), *requests) == ["a", "a", "a"]


def test_a_changing_system_prompt_does_not_prevent_a_match() -> None:
    assert match_requests(
        ConversationMatcher(), fingerprint("u1", system="x"), fingerprint("u1", "a1", "u2", system="y")
    ) == ["a", "a"]


def test_the_same_messages_in_two_named_sessions_are_two_conversations() -> None:
    requests = (
        fingerprint("u1", session="s"),
        fingerprint("u1", session="t"),
        fingerprint("u1", "a1", "u2", session="s"),
    )
    assert match_requests(ConversationMatcher(), *requests) == ["a", "b", "a"]


def test_a_named_session_continues_after_its_history_was_rewritten() -> None:
    requests = fingerprint("u1", "a1", "u2", session="s"), fingerprint("summary", session="s")
    assert match_requests(ConversationMatcher(), *requests) == ["a", "a"]


def test_a_sub_agent_is_a_child_of_the_conversation_whose_tool_call_has_its_first_message() -> None:
    matcher: ConversationMatcher[str] = ConversationMatcher()
    title, _ = matcher.match_request(fingerprint("title", system="titles", session="s"), lambda above: "title")
    matcher.end_request(title.key, ReplyFingerprint("reply 0"))
    main, _ = matcher.match_request(fingerprint("u1", session="s"), lambda above: "main")
    matcher.end_request(main.key, ReplyFingerprint("reply 1", delegated=("task", "other task")))
    children = [
        matcher.match_request(
            fingerprint(first, system="sub", session="s", opening=(first,)), lambda above: f"<{above}"
        )
        for first in ("task", "other task")
    ]
    assert main.parent is None
    assert [(match.is_new, match.parent, state) for match, state in children] == [(True, main.key, "<main")] * 2
    assert children[0][0].key != children[1][0].key


def test_while_the_first_waits_for_its_reply_another_conversation_starts() -> None:
    matcher: ConversationMatcher[str] = ConversationMatcher()
    first, _ = matcher.match_request(fingerprint("u1", session="s"), lambda above: "a")
    second, _ = matcher.match_request(fingerprint("v1", session="s"), lambda above: "b")
    assert (second.is_new, second.parent) == (True, None)
    assert first.key != second.key


def test_a_request_repeated_without_an_id_starts_another_conversation_with_its_own_replies() -> None:
    matcher: ConversationMatcher[str] = ConversationMatcher()
    keys = []
    for reply in ("ra", "rb"):
        match, _ = matcher.match_request(fingerprint("u1"), lambda above: "")
        matcher.end_request(match.key, ReplyFingerprint(reply, (reply,)))
        keys.append(match.key)
    continued = [matcher.match_request(fingerprint("u1", reply, "u2"), lambda above: "")[0] for reply in ("ra", "rb")]
    assert [match.key for match in continued] == keys
    assert len(set(keys)) == 2


def test_hundreds_of_conversations_that_begin_alike_are_distinguished_by_their_replies() -> None:
    matcher: ConversationMatcher[str] = ConversationMatcher()
    keys = []
    for number in range(300):
        match, _ = matcher.match_request(fingerprint("u1"), lambda above: "")
        matcher.end_request(match.key, ReplyFingerprint("", ("Let me look.", f"call {number}")))
        keys.append(match.key)
    continued = [
        matcher.match_request(fingerprint("u1", "Let me look.", f"call {number}", "ok"), lambda above: "")[0].key
        for number in range(300)
    ]
    assert continued == keys
    assert len(set(keys)) == 300


def test_a_cache_key_names_no_session() -> None:
    weak: dict[str, Any] = {"session": "app", "source": "prompt_cache_key"}
    assert match_requests(ConversationMatcher(), fingerprint("u1", **weak), fingerprint("v1", **weak)) == ["a", "b"]


def test_a_referenced_reply_leads_back_to_its_conversation() -> None:
    assert match_requests(
        ConversationMatcher(), fingerprint("u1"), fingerprint("other", previous_response_id="reply 0")
    ) == ["a", "a"]


def test_accounts_are_separate() -> None:
    other = RequestFingerprint("another", "h", ("u1", "a1", "u2"), SessionHints())
    assert match_requests(ConversationMatcher(), fingerprint("u1"), other) == ["a", "b"]


def test_the_longest_idle_conversation_is_forgotten_completely() -> None:
    matcher: ConversationMatcher[str] = ConversationMatcher(conversations_max=2)
    for number in range(100):
        conversation, _ = matcher.match_request(fingerprint(f"u{number}", session=f"s{number % 7}"), lambda above: "x")
        matcher.end_request(conversation.key, ReplyFingerprint("", (f"a{number}",)))
    assert len(matcher._by_key) == 2
    assert len(matcher._tails["scope"]) == len(matcher._reply_blocks["scope"]) == 2
    assert sum(map(len, matcher._by_session.values())) == 2


def test_confidence_grows_with_the_evidence() -> None:
    matcher: ConversationMatcher[str] = ConversationMatcher()
    matches = [
        matcher.match_request(fingerprint(*words), lambda above: "a")[0]
        for words in (("hi",), ("hi", "a"), ("hi", "a", "u"))
    ]
    assert [matched.confidence for matched in matches] == [0.7, 0.6, 0.95]


@pytest.mark.parametrize(
    ("body", "headers", "session", "source"),
    [
        ({"metadata": {"user_id": "user_a_account__session_0123-4567"}}, [], "0123-4567", "metadata.user_id"),
        ({"metadata": {"user_id": '{"session_id": "s-1"}'}}, [], "s-1", "metadata.user_id"),
        ({"metadata": {"user_id": "ann"}}, [], None, ""),
        ({"metadata": {"user_id": "{"}}, [], None, ""),
        ({"prompt_cache_key": "k"}, [], "k", "prompt_cache_key"),
        ({"session_id": "s"}, [(b"x-session-id", b"t")], "s", "session_id"),
        ({"conversation": {"id": "c"}}, [], "c", "conversation"),
        ({}, [(b"x-claude-code-session-id", b"t")], "t", "the header x-claude-code-session-id"),
        ({"metadata": [], "user": 3, "session_id": {}, "conversation": None}, [], None, ""),
    ],
)
def test_ids_are_found_where_clients_put_them(
    body: dict[str, Any], headers: list[tuple[bytes, bytes]], session: str | None, source: str
) -> None:
    hints = find_session_hints(body, headers)
    assert (hints.session, hints.source) == (session, source)


def ask(gateway: ServedGateway, body: dict[str, Any]) -> None:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=10)
    connection.request("POST", "/anthropic/v1/messages", json.dumps(body), {"x-api-key": "any"})
    assert connection.getresponse().read()
    connection.close()


def test_a_session_and_its_sub_agent_are_on_the_log_with_reason_and_confidence() -> None:
    def body(system: str, *texts: str) -> dict[str, Any]:
        roles = ("user", "assistant")
        messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
        return {
            "model": "claude-sonnet-5-5",
            "max_tokens": 9,
            "system": system,
            "messages": messages,
            "metadata": {"user_id": "user_x_session_0123456789"},
        }

    task = "Look for every use of the function and list the lines."
    call = {"type": "tool_use", "name": "Task", "input": {"prompt": task}}
    provider = SimulatedProvider(script=json.dumps({"content": [call]}))
    with serve_provider(provider) as url, serve_gateway(url) as gateway:
        ask(gateway, body("Titles.", "a title for: one"))
        ask(gateway, body("Main.", "one"))
        ask(gateway, body("Explore.", task))
        ask(gateway, body("Main.", "one", "yes", "two"))
        gateway.recorded_sessions()
        sessions = {row.id: list(gateway.store.read(row.id)) for row in gateway.store.sessions()}
    main = next(events for events in sessions.values() if len(list(iter_calls(events))) == 2)
    started = [events[0].payload for events in sessions.values()]
    parents = [payload.parent for payload in started if isinstance(payload, SessionStarted)]
    assert sorted(parent.session_id if parent else "" for parent in parents) == ["", "", main[0].session_id]
    why = [event.payload for event in main if isinstance(event.payload, GatewayForwarded)]
    assert [matched.confidence for matched in why] == [1.0, 1.0]
    assert "metadata.user_id" in why[0].reason
