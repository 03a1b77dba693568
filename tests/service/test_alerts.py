"""Alerts: when each appears, and how they reach a webhook over real HTTP, once among several processes."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.support.served_service import serve_store

from holdfast.clock import ManualClock
from holdfast.errors import UserError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallStarted
from holdfast.events.payloads.session import SessionStarted
from holdfast.ledger.analytics.queries import ReadShare
from holdfast.service.alerts import ATTEMPTS_MAX, REPEAT_SECONDS, AlertWebhook, find_alerts, find_low_shares
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.usage import Usage

DAY = 86_400.0
NOON = 1_800_000_000.0 // DAY * DAY + DAY / 2
MODEL = "anthropic:claude-sonnet-5-5"
SECRET = "a secret of the team"


class Receiver:
    """A webhook that answers with `statuses` in turn, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.messages = list(statuses), list[tuple[dict[str, str], bytes]]()
        self.url = ""


@contextmanager
def receive(*statuses: int) -> Iterator[Receiver]:
    receiver = Receiver(*statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.messages.append((dict(self.headers), body))
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


def record_calls(store: MemoryStore | SqliteStore, at: float, *, read_share: float, calls: int = 25) -> None:
    """A session of one client and key whose calls read this share of their prompts."""
    session = f"s{at}"
    events: list[Event] = []

    def add(payload: SessionStarted | GatewayForwarded | LlmCallStarted | LlmCallCompleted) -> None:
        events.append(Event(f"{session}-{len(events):04}", at + len(events), session, "agent", payload))

    add(SessionStarted(MODEL))
    add(GatewayForwarded("new", 1.0, "key1", client="claude-cli"))
    for number in range(calls):
        read = int(10_000 * read_share)
        add(LlmCallStarted(MODEL, "anthropic", 10_000, f"r{number}"))
        usage = Usage(input=10_000 - read, cache_read=read, output=10)
        add(LlmCallCompleted(MODEL, "anthropic", usage, Decimal("0.01"), "v", 9, "end_turn", 0, 0, f"r{number}"))
    store.append(events).result(10)


def test_a_read_share_below_every_day_before_is_an_alert_of_its_client_and_key() -> None:
    store = MemoryStore()
    for day in range(1, 5):
        record_calls(store, NOON - day * DAY, read_share=0.9 - day / 100)
    with serve_store(store, clock=lambda: NOON + 3_600) as client:
        record_calls(store, NOON, read_share=0.85)
        assert client.get("/analytics/overview")["data"]["alerts"] == []
        record_calls(store, NOON + 600, read_share=0.1, calls=100)
        alerts = client.get("/analytics/overview")["data"]["alerts"]
        metrics = client.request("GET", "/metrics").body.decode()
    assert [(alert["kind"], alert["subject"]) for alert in alerts] == [
        ("read_share", "key key1"),
        ("read_share", "client claude-cli"),
    ]
    assert "reads 25% of its prompts from the cache today; its lowest day before had 86%" in alerts[0]["message"]
    assert 'holdfast_alerts{kind="read_share"} 2' in metrics
    assert 'holdfast_alerts{kind="budget"} 0' in metrics


@pytest.mark.parametrize(
    ("before", "calls"),
    [((0.9, 0.9), 100), ((0.9, 0.9, 0.9), 19), ((0.9, 0.9, 0.3), 100), ((), 100)],
    ids=["few days", "few calls", "within the range", "no day"],
)
def test_a_low_share_is_no_alert_without_a_usual_range(before: tuple[float, ...], calls: int) -> None:
    shares = [ReadShare("c", f"2027-01-0{day}", 50, 1_000, int(share * 1_000)) for day, share in enumerate(before, 1)]
    assert list(find_low_shares([*shares, ReadShare("c", "2027-01-09", calls, 1_000, 280)], "2027-01-09")) == []


def test_what_is_degraded_is_sent_signed_and_not_again_before_six_hours() -> None:
    clock, store = ManualClock(NOON), MemoryStore()
    with serve_store(store, clock=clock) as client, receive() as receiver:
        client.service.warnings.append(lambda: "the recorder cannot write its spool")
        webhook = AlertWebhook(receiver.url, SECRET, owner="a", clock=clock)
        assert len(asyncio.run(webhook.check(client.service))) == 1
        clock.advance(60)
        assert asyncio.run(webhook.check(client.service)) == ()
        clock.advance(REPEAT_SECONDS)
        assert len(asyncio.run(webhook.check(client.service))) == 1
    headers, body = receiver.messages[0]
    assert len(receiver.messages) == 2
    assert json.loads(body)["alerts"][0]["message"] == "the recorder cannot write its spool"
    time, digest = (part.partition("=")[2] for part in headers["holdfast-signature"].split(","))
    assert hmac.new(SECRET.encode(), f"{time}.".encode() + body, hashlib.sha256).hexdigest() == digest
    assert int(time) == int(NOON)


@pytest.mark.parametrize(
    ("statuses", "attempts", "is_sent"),
    [((500, 503, 429), 4, True), ((500,) * 9, ATTEMPTS_MAX, False), ((401,), 1, False)],
    ids=["comes back", "stays away", "refuses"],
)
def test_a_webhook_that_fails_is_tried_again_with_growing_pauses(
    statuses: tuple[int, ...], attempts: int, is_sent: bool
) -> None:
    clock, pauses = ManualClock(NOON), list[float]()
    with serve_store(MemoryStore(), clock=clock) as client, receive(*statuses) as receiver:
        client.service.warnings.append(lambda: "degraded")
        webhook = AlertWebhook(receiver.url, SECRET, owner="a", clock=clock, pause=pauses.append)
        assert bool(asyncio.run(webhook.check(client.service))) == is_sent
        assert len(receiver.messages) == attempts
        assert pauses == [1.0, 2.0, 4.0, 8.0][: attempts - 1]
        # What could not be sent is tried again at the next check.
        receiver.statuses.clear()
        assert bool(asyncio.run(webhook.check(client.service))) != is_sent


def test_of_several_processes_one_sends_and_another_takes_over_without_repeating(tmp_path: Path) -> None:
    clock = ManualClock(NOON)
    with SqliteStore(tmp_path / "log.db") as store, serve_store(store, clock=clock) as client, receive() as receiver:
        client.service.warnings.append(lambda: "degraded")
        one, two = (AlertWebhook(receiver.url, SECRET, owner=owner, clock=clock) for owner in ("one", "two"))
        assert len(asyncio.run(one.check(client.service))) == 1
        assert asyncio.run(two.check(client.service)) == ()
        # The first process dies: its lease ends, with what it has sent.
        (lease,) = store.records.shared.list_leases("alerts")
        assert store.records.shared.take_lease("alerts", "one", seconds=-1.0, value=lease.value)
        assert len(find_alerts(client.service, NOON)) == 1
        assert asyncio.run(two.check(client.service)) == ()
        assert [lease.owner for lease in store.records.shared.list_leases("alerts")] == ["two"]
        clock.advance(REPEAT_SECONDS)
        assert len(asyncio.run(two.check(client.service))) == 1
        assert len(receiver.messages) == 2


@pytest.mark.parametrize(("url", "secret"), [("ftp://x", SECRET), ("https://x", "")])
def test_a_webhook_without_scheme_or_secret_is_refused(url: str, secret: str) -> None:
    with pytest.raises(UserError):
        AlertWebhook(url, secret, owner="a", clock=ManualClock())
