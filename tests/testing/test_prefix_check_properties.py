"""Properties of the requests of a test, whatever they contain and in whichever order they arrive."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.simulated import LONG, assistant, post, request, text, user

from holdfast.ledger.requests.parse import parse_request
from holdfast.testing.prefix_guard import find_prefix_breaks
from holdfast.testing.simulated_provider import ServedProvider

words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12).filter(
    lambda word: "#" not in word
)


def ask(provider: ServedProvider, messages: list[Any], system: str) -> str:
    status, reply = post(provider, request(*messages, system=[text(system)]))
    assert status == 200, reply
    reply_text: str = reply["content"][0]["text"]
    return reply_text


@given(st.lists(st.tuples(st.integers(0, 2), words), min_size=1, max_size=8))
def test_append_only_conversations_have_no_prefix_break_however_they_interleave(turns: list[tuple[int, str]]) -> None:
    provider = ServedProvider()
    histories: list[list[Any]] = [[], [], []]
    for who, message in turns:
        history = histories[who]
        history.append(user(message))
        # Two of the three are the same agent.
        history.append(assistant(ask(provider, history, f"Agent {who // 2}. {LONG}")))
    assert len(provider.calls) == len(turns)
    assert find_prefix_breaks(provider.calls, provider.models) == ()


@given(st.lists(words, min_size=2, max_size=5), st.integers(0, len(LONG) - 1))
def test_a_changed_prefix_is_found_at_the_byte_of_the_change(texts: list[str], at: int) -> None:
    provider = ServedProvider()
    history: list[Any] = []
    for number, word in enumerate(texts):
        last = number == len(texts) - 1
        history.append(user(word))
        history.append(assistant(ask(provider, history, f"{LONG[:at]}{'#' if last else '+'}{LONG[at:]}")))
    (prefix_break,) = find_prefix_breaks(provider.calls, provider.models)
    assert (prefix_break.call, prefix_break.call_before) == (len(texts), len(texts) - 1)
    moved = prefix_break.comparison.difference
    assert moved is not None
    assert moved.path == "system.0"
    cacheable = parse_request(provider.calls[-1].body).buffer.cacheable_bytes()
    assert moved.byte == cacheable.index(b"#")
