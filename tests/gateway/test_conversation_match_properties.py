"""What holds for the requests of a test, whatever is said in them and in whichever order they come."""

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
    said: str = reply["content"][0]["text"]
    return said


@given(st.lists(st.tuples(st.integers(0, 2), words), min_size=1, max_size=8))
def test_conversations_that_only_grow_move_nothing_however_they_take_turns(turns: list[tuple[int, str]]) -> None:
    provider = ServedProvider()
    histories: list[list[Any]] = [[], [], []]
    for who, said in turns:
        history = histories[who]
        history.append(user(said))
        # Two of the three are the same agent.
        history.append(assistant(ask(provider, history, f"Agent {who // 2}. {LONG}")))
    assert len(provider.calls) == len(turns)
    assert find_prefix_breaks(provider.calls, provider.models) == ()


@given(st.lists(words, min_size=2, max_size=5), st.integers(0, len(LONG) - 1))
def test_a_changed_head_is_found_at_the_byte_where_it_changed(said: list[str], at: int) -> None:
    provider = ServedProvider()
    history: list[Any] = []
    for number, word in enumerate(said):
        last = number == len(said) - 1
        history.append(user(word))
        history.append(assistant(ask(provider, history, f"{LONG[:at]}{'#' if last else '+'}{LONG[at:]}")))
    (found,) = find_prefix_breaks(provider.calls, provider.models)
    assert (found.call, found.call_before) == (len(said), len(said) - 1)
    moved = found.comparison.difference
    assert moved is not None
    assert moved.path == "system.0"
    spelled = parse_request(provider.calls[-1].body).buffer.cacheable_bytes()
    assert moved.byte == spelled.index(b"#")
