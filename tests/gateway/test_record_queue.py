"""The queue of a recorder in the same process, and the search for anti-patterns while it is behind."""

import threading

import msgspec

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import new_ulid
from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.gateway.exchange import Exchange, GatewayCaller
from holdfast.gateway.recording.recorder import BUSY_QUEUE_LENGTH, GatewayRecorder
from holdfast.gateway.recording.worker_process import RecordQueue, SynchronousQueue
from holdfast.gateway.routes import Target
from holdfast.stores.memory import MemoryStore

WITHOUT_BREAKPOINTS = msgspec.json.encode(
    {
        "model": "claude-sonnet-5-5",
        "max_tokens": 9,
        "system": "You read before you write. " * 900,
        "messages": [{"role": "user", "content": "What does this do?"}],
    }
)


def test_overflow_is_dropped_and_counted_and_no_caller_waits() -> None:
    """The worker is blocked; the callers that add to its queue are not."""
    stuck, go_on = threading.Event(), threading.Event()
    worked: list[int] = []

    def work(note: int) -> None:
        stuck.set()
        go_on.wait(10)
        worked.append(note)

    notes = RecordQueue(work, records_max=3, bytes_max=100)
    assert notes.put(0, 1)
    assert stuck.wait(10)
    assert [notes.put(number, 1) for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert notes.dropped_count == 1
    go_on.set()
    assert notes.wait_until_empty(10)
    assert worked == [0, 1, 2, 3]
    assert not notes.put(5, 101)
    assert notes.put(6, 100)
    notes.close()
    assert worked == [0, 1, 2, 3, 6]
    assert not notes.put(7, 1)


def test_an_unused_queue_closes() -> None:
    notes: RecordQueue[int] = RecordQueue(lambda note: None)
    assert notes.wait_until_empty(1)
    notes.close()
    assert notes.dropped_count == 0


def _record_with_backlog(queue_length: int) -> GatewayForwarded:
    store = MemoryStore()
    recorder = GatewayRecorder(store, models=shipped_models(), new_id=new_ulid, make_queue=SynchronousQueue)
    target = Target("anthropic", "/v1/messages", "anthropic", provider="anthropic", format="anthropic")
    exchange = Exchange(target, [], GatewayCaller("account"), 5.0)
    exchange.add_request_bytes(WITHOUT_BREAKPOINTS)
    exchange.queue_length = queue_length
    recorder.on_request(exchange)
    (session,) = store.sessions()
    (forwarded_event,) = (
        event.payload for event in store.read(session.id) if isinstance(event.payload, GatewayForwarded)
    )
    return forwarded_event


def test_a_recorder_with_a_backlog_looks_for_no_anti_patterns() -> None:
    """Also when the backlog is that of another process."""
    assert [change.anti_pattern for change in _record_with_backlog(BUSY_QUEUE_LENGTH).changes] == [
        "breakpoints missing"
    ]
    assert _record_with_backlog(BUSY_QUEUE_LENGTH + 1).changes == ()
