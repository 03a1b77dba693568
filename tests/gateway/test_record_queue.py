"""The queue between forwarded calls and their recording."""

import io
import threading
from pathlib import Path

import msgspec
import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.serve.recorder_process import RECORDER_MODULE
from holdfast.clock import new_ulid
from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.gateway.exchange import Exchange, GatewayCaller
from holdfast.gateway.recording.recorder import BUSY_QUEUE_LENGTH, GatewayRecorder
from holdfast.gateway.recording.worker_process import (
    EndMessage,
    MessageReceiver,
    PingMessage,
    RecorderProcess,
    RecorderSetup,
    RecordQueue,
    RequestMessage,
    SynchronousQueue,
    read_frames,
    write_frame,
)
from holdfast.gateway.rewrite.request_analysis import GatewayPing
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


def test_the_recorder_process_runs_no_code_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("open('was_run', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    RecorderProcess((RECORDER_MODULE,), RecorderSetup("memory:", simulated=True), on_spent=lambda charge: None).close()
    assert [path.name for path in tmp_path.iterdir()] == ["msgspec.py"]


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


def test_calls_continue_and_are_counted_when_the_recorder_process_is_gone() -> None:
    relay = RecorderProcess(("holdfast.errors",), RecorderSetup(None, simulated=True), on_spent=lambda charge: None)
    relay._process.wait()
    for _ in range(3):
        exchange = Exchange(
            Target("anthropic", "/v1/messages", "anthropic", provider="anthropic", format="anthropic"),
            [],
            GatewayCaller("account"),
            1.0,
        )
        exchange.add_request_bytes(b"{}")
        relay.on_request(exchange)
        relay.on_end(exchange)
    relay.close()
    assert relay.dropped_count >= 6


def test_another_process_receives_everything_that_is_recorded() -> None:
    records: list[tuple[str, bytes | None, int, str]] = []
    receiver = MessageReceiver(
        lambda call: records.append(("asked", call.request_body, call.status, call.end)),
        lambda call: records.append(("ended", call.response_body, call.status, call.end)),
        lambda call, ping, answer, at: records.append(("pinged", answer, int(at), ping.ttl)),
    )
    target, caller = (
        Target("anthropic", "/v1/messages", "anthropic", provider="anthropic", format="anthropic"),
        GatewayCaller("account", "key", "name"),
    )
    ping = GatewayPing(b"", "refresh", "1h", "pays", 7, 8)
    sent = (
        RecorderSetup("s.db", simulated=False),
        RequestMessage(1, target, [(b"a", b"b")], caller, 5.0, b"body", 4, b"before", ()),
        EndMessage(1, 6.0, 200, [], "whole", b"reply", 5),
        PingMessage(1, ping, b"answer", 9.0),
        EndMessage(2, 6.0, 200, [], "whole", b"of nobody", 9),
    )
    pipe = io.BytesIO()
    for call in sent:
        write_frame(pipe, msgspec.msgpack.encode(call))
    pipe.write(b"\0\0\0\x09cut")
    pipe.seek(0)
    for received in read_frames(pipe):
        receiver.handle_message(received)
    assert records == [
        ("asked", b"body", 0, "cancelled"),
        ("ended", b"reply", 200, "whole"),
        ("pinged", b"answer", 9, "1h"),
    ]


def _observe_with_backlog(waiting: int) -> GatewayForwarded:
    store = MemoryStore()
    observer = GatewayRecorder(store, models=shipped_models(), new_id=new_ulid, make_queue=SynchronousQueue)
    receiver = MessageReceiver(observer.on_request, observer.on_end, observer.on_ping)
    target = Target("anthropic", "/v1/messages", "anthropic", provider="anthropic", format="anthropic")
    receiver.handle_message(
        RequestMessage(1, target, [], GatewayCaller("account"), 5.0, WITHOUT_BREAKPOINTS, 9, None, (), waiting)
    )
    (session,) = store.sessions()
    (forwarded_event,) = (
        event.payload for event in store.read(session.id) if isinstance(event.payload, GatewayForwarded)
    )
    return forwarded_event


def test_a_recorder_with_a_backlog_looks_for_no_anti_patterns() -> None:
    """Also when the queue is in the forwarding process and the recording happens in another."""
    assert [change.anti_pattern for change in _observe_with_backlog(BUSY_QUEUE_LENGTH).changes] == [
        "breakpoints missing"
    ]
    assert _observe_with_backlog(BUSY_QUEUE_LENGTH + 1).changes == ()
