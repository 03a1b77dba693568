"""What forwarding, rewriting and recording one more call of a long conversation costs, counted in operations.

A client sends its whole conversation with each call, so each of its messages is looked at once to find the call before,
and none is decoded, hashed or counted again. Forwarding looks at none.
"""

import http.client
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.gateway.test_recorder_memory import TARGETS, make_body, make_recorder, record
from tests.gateway.test_spool import make_messages, write_spool
from tests.gateway.test_spool import make_recorder as make_spool_recorder
from tests.support.operations import OperationCounter, counting_hashed_bytes
from tests.support.served_gateway import TIMEOUT_SECONDS, raw_upstream, serve_gateway

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.recording.spool import open_spool
from holdfast.gateway.recording.spool_recorder import SpoolPass
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sql.events import encode_events

SHORT, LONG = 11, 211
CALLS = 3
SYSTEM = "You read before you write. " * 400
REWRITE_OPERATIONS_MAX = 260
# The recorder asks the same planner what it would have changed: once for each kind of change, if there are several.
# Gemini's clients send no ids, and the parts of their messages are decoded again.
RECORD_OPERATIONS_MAX = {"anthropic": 300, "openai": 260, "openai-chat": 620, "openrouter": 680, "gemini": 1_400}


def body_of_call(format: str, messages: int, call: int) -> bytes:
    texts = [f"Message {number} says this." for number in range(messages + 2 * call)]
    return make_body(format, texts, system=SYSTEM, marked=False)


def count_rewriting(format: str, messages: int) -> int:
    rewriter = ConversationRewriter(shipped_models())

    def rewrite(body: bytes, at: float) -> None:
        rewriter.analyze(format, body, path=TARGETS[format].path, account="a", at=at)

    return count_last_call(rewrite, format, messages)


def count_recording(format: str, messages: int) -> int:
    recorder = make_recorder(MemoryStore())
    return count_last_call(lambda body, at: record(recorder, format, body, id=f"call {at}", at=at), format, messages)


def count_last_call(process: Callable[[bytes, float], object], format: str, messages: int) -> int:
    for call in range(CALLS):
        process(body_of_call(format, messages, call), 1_000.0 + 10 * call)
    with OperationCounter().counting() as operations:
        process(body_of_call(format, messages, CALLS), 1_000.0 + 10 * CALLS)
    return operations.total()


@pytest.mark.parametrize("format", TARGETS)
def test_rewriting_one_more_call_costs_few_operations_for_each_earlier_message(format: str) -> None:
    short, long = (count_rewriting(format, messages) for messages in (SHORT, LONG))
    assert short > 0
    assert (long - short) / (LONG - SHORT) < REWRITE_OPERATIONS_MAX


@pytest.mark.parametrize("format", TARGETS)
def test_recording_one_more_call_costs_few_operations_for_each_earlier_message(format: str) -> None:
    short, long = (count_recording(format, messages) for messages in (SHORT, LONG))
    assert short > 0
    assert (long - short) / (LONG - SHORT) < RECORD_OPERATIONS_MAX[format]


def test_recording_one_more_call_hashes_no_byte_of_it_twice() -> None:
    recorder = make_recorder(MemoryStore())
    for call in range(CALLS):
        body = body_of_call("anthropic", LONG, call)
        with counting_hashed_bytes() as hashed:
            record(recorder, "anthropic", body, id=f"call {call}", at=1_000.0 + 10 * call)
    assert 0 < hashed.count < 2 * len(body)


def count_stored_bytes(store: MemoryStore) -> int:
    logs = (list(store.read(row.id)) for row in store.sessions())
    return sum(len(row.payload) for events in logs for row in encode_events(events))


@pytest.mark.parametrize("format", TARGETS)
def test_one_more_call_stores_as_many_bytes_after_200_messages_as_after_ten(format: str) -> None:
    sizes = []
    for messages in (SHORT, LONG):
        store = MemoryStore()
        recorder = make_recorder(store)
        for call in range(CALLS):
            before = count_stored_bytes(store)
            record(recorder, format, body_of_call(format, messages, call), id=f"call {call}", at=1_000.0 + 10 * call)
        sizes.append(count_stored_bytes(store) - before)
    # Numbers of blocks and bytes have more digits.
    assert 0 < sizes[1] < sizes[0] + 20


class IgnoredExchanges:
    """A watcher that records nothing."""

    def on_request(self, exchange: Exchange) -> None: ...

    def on_end(self, exchange: Exchange) -> None: ...


# The upstream closes each connection, and says so: a call that is sent on one as it is closed gets no response.
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
FORWARD_REPEATS = 5


def test_forwarding_a_call_costs_the_same_after_200_messages_as_after_ten() -> None:
    counts: dict[int, int] = {}
    with (
        OperationCounter().open() as counter,
        raw_upstream() as upstream,
        serve_gateway(upstream.url, watcher=lambda _: IgnoredExchanges()) as gateway,
        closing(http.client.HTTPConnection(*gateway.address, timeout=TIMEOUT_SECONDS)) as connection,
    ):
        upstream.parts = (REPLY,)
        for messages in (SHORT, SHORT, LONG):
            body, repeats = body_of_call("anthropic", messages, 0), list[int]()
            for _ in range(FORWARD_REPEATS):
                with counter.counting() as operations:
                    connection.request("POST", "/anthropic/v1/messages", body, {"x-api-key": "any"})
                    response = connection.getresponse()
                    assert (response.status, response.read()) == (200, b"{}")
                repeats.append(operations.total())
            # The least, because a body may arrive in several parts.
            counts[messages] = min(repeats)
    assert 0 < counts[LONG] < 1.05 * counts[SHORT], counts


def count_spooled(folder: Path, exchanges: int) -> int:
    """The operations of recording so many exchanges of a spool."""
    write_spool(folder, [frame for number in range(exchanges) for frame in make_messages(number)])
    with open_spool(folder) as reader:
        current = SpoolPass(reader, MemoryStore(), make_spool_recorder, clock=ManualClock(2_000.0))
        with OperationCounter().counting() as operations:
            current.record_available()
            current.confirm()
        assert current.recorded == exchanges
        assert reader.checkpoint == reader.position
    return operations.total()


def test_an_exchange_of_a_long_spool_costs_what_one_of_a_short_spool_costs(tmp_path: Path) -> None:
    short, long = (count_spooled(tmp_path / f"{count}", count) / count for count in (20, 200))
    # What is done once for a spool is shared by more.
    assert 0 < long <= short
