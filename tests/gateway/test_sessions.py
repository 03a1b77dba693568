"""Which calls are one session: told by what clients send, and by what was said before."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.served_gateway import ServedGateway, serve_gateway

from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.events.payloads.session import SessionStarted
from holdfast.gateway.recording.conversation_match import (
    ConversationMatcher,
    RequestFingerprint,
    SessionHints,
    find_session_hints,
)
from holdfast.ledger.calls import iter_calls
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider


def said(
    *passages: str, head: str = "h", session: str | None = None, because: str = "session_id", **more: Any
) -> RequestFingerprint:
    return RequestFingerprint("scope", head, passages, SessionHints(session, because if session else "", **more))


def entered(known: "ConversationMatcher[str]", *requests: RequestFingerprint) -> list[str]:
    """The names of the conversations that requests were taken for, one after another, each answered at once."""
    names = iter("abcdefgh")
    told: list[str] = []
    for request in requests:
        found, kept = known.match_request(request, lambda above: next(names) + (f"<{above}" if above else ""))
        known.end_request(found.key, f"reply {len(told)}")
        told.append(kept)
    return told


def test_a_request_that_says_more_goes_on_with_the_same_conversation() -> None:
    requests = said("u1"), said("u1", "a1", "u2"), said("u1", "a1", "u2", "a2", "u3")
    assert entered(ConversationMatcher(), *requests) == ["a", "a", "a"]


def test_conversations_that_begin_alike_are_told_apart_where_they_part() -> None:
    requests = said("u1"), said("u1", "a1", "u2"), said("u1", "a1", "v2"), said("u1", "a1", "u2", "a2", "u3")
    assert entered(ConversationMatcher(), *requests) == ["a", "a", "b", "a"]


def test_a_first_message_that_is_written_anew_each_time_hides_nothing() -> None:
    requests = (
        said("u1", "a0", "v1"),
        said("U1", "a0", "v1", "a1", "u2"),
        said("W1", "a0", "v1", "a1", "u2", "a2", "u3"),
    )
    assert entered(ConversationMatcher(), *requests) == ["a", "a", "a"]


def test_a_last_block_that_is_gone_the_next_time_hides_nothing() -> None:
    requests = said("u1", "now"), said("u1", "a1", "u2", "now2"), said("u1", "a1", "u2", "a2", "u3", "now3")
    assert entered(ConversationMatcher(), *requests) == ["a", "a", "a"]


def test_a_head_that_moves_hides_nothing() -> None:
    assert entered(ConversationMatcher(), said("u1", head="x"), said("u1", "a1", "u2", head="y")) == ["a", "a"]


def test_the_same_words_in_two_named_sessions_are_two() -> None:
    requests = said("u1", session="s"), said("u1", session="t"), said("u1", "a1", "u2", session="s")
    assert entered(ConversationMatcher(), *requests) == ["a", "b", "a"]


def test_a_named_session_goes_on_after_its_history_was_rewritten() -> None:
    requests = said("u1", "a1", "u2", session="s"), said("summary", session="s")
    assert entered(ConversationMatcher(), *requests) == ["a", "a"]


def test_a_sub_agent_is_a_conversation_of_its_own_below_the_first() -> None:
    requests = said("u1", session="s"), said("task", head="sub", session="s"), said("u1", "a1", "u2", session="s")
    assert entered(ConversationMatcher(), *requests) == ["a", "b<a", "a"]


def test_sub_agents_of_one_kind_are_told_apart() -> None:
    requests = (
        said("u1", session="s"),
        said("one", head="sub", session="s"),
        said("two", head="sub", session="s"),
        said("one", "a", "u", head="sub", session="s"),
    )
    assert entered(ConversationMatcher(), *requests) == ["a", "b<a", "c<a", "b<a"]


def test_while_the_first_waits_for_its_reply_another_goes_on_beside_it() -> None:
    known: ConversationMatcher[str] = ConversationMatcher()
    first, _ = known.match_request(said("u1", session="s"), lambda above: "a")
    second, _ = known.match_request(said("v1", session="s"), lambda above: "b")
    assert first.key != second.key
    assert second.parent == first.key


def test_a_key_of_a_cache_names_no_session() -> None:
    weak = {"session": "app", "because": "prompt_cache_key"}
    assert entered(ConversationMatcher(), said("u1", **weak), said("v1", **weak)) == ["a", "b<a"]


def test_a_reply_that_is_named_leads_back_to_its_conversation() -> None:
    assert entered(ConversationMatcher(), said("u1"), said("other", previous_response_id="reply 0")) == ["a", "a"]


def test_accounts_are_kept_apart() -> None:
    other = RequestFingerprint("another", "h", ("u1", "a1", "u2"), SessionHints())
    assert entered(ConversationMatcher(), said("u1"), other) == ["a", "b"]


def test_what_was_silent_longest_is_forgotten_and_nothing_of_it_is_left() -> None:
    known: ConversationMatcher[str] = ConversationMatcher(conversations_max=2)
    for number in range(100):
        found, _ = known.match_request(said(f"u{number}", session=f"s{number % 7}"), lambda above: "x")
        known.end_request(found.key, "")
    assert len(known._by_key) == 2
    assert len(known._tails) == 2
    assert sum(map(len, known._by_session.values())) == 2


def test_confidence_grows_with_what_speaks_for_it() -> None:
    known: ConversationMatcher[str] = ConversationMatcher()
    found = [
        known.match_request(said(*words), lambda above: "a")[0] for words in (("hi",), ("hi", "a"), ("hi", "a", "u"))
    ]
    assert [one.confidence for one in found] == [0.7, 0.6, 0.95]


@pytest.mark.parametrize(
    ("body", "headers", "session", "because"),
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
    body: dict[str, Any], headers: list[tuple[bytes, bytes]], session: str | None, because: str
) -> None:
    clues = find_session_hints(body, headers)
    assert (clues.session, clues.source) == (session, because)


def ask(gateway: ServedGateway, body: dict[str, Any]) -> None:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=10)
    connection.request("POST", "/anthropic/v1/messages", json.dumps(body), {"x-api-key": "any"})
    assert connection.getresponse().read()
    connection.close()


def test_a_session_and_its_sub_agent_stand_in_the_log_with_why_and_how_sure() -> None:
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

    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway:
        ask(gateway, body("Main.", "one"))
        ask(gateway, body("Explore.", "look"))
        ask(gateway, body("Main.", "one", "yes", "two"))
        gateway.recorded_sessions()
        sessions = {row.id: list(gateway.store.read(row.id)) for row in gateway.store.sessions()}
    main = next(events for events in sessions.values() if len(list(iter_calls(events))) == 2)
    sub = next(events for events in sessions.values() if len(list(iter_calls(events))) == 1)
    started = sub[0].payload
    assert isinstance(started, SessionStarted)
    assert started.parent is not None
    assert started.parent.session_id == main[0].session_id
    why = [event.payload for event in main if isinstance(event.payload, GatewayForwarded)]
    assert [one.confidence for one in why] == [1.0, 1.0]
    assert "metadata.user_id" in why[0].reason
