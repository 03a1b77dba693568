"""Alerts: when each appears, and how they reach a webhook over real HTTP, once among several processes."""

import asyncio
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
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
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallFailed, LlmCallStarted
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.records import KeyRow
from holdfast.ledger.analytics.queries import ReadShare
from holdfast.service.alerts import (
    ATTEMPTS_MAX,
    QUIET_SECONDS,
    REPEAT_SECONDS,
    AlertWebhook,
    find_alerts,
    find_low_shares,
    sign_message,
)
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


def add_limited_key(store: MemoryStore | SqliteStore, *, day: float | None = None, month: float | None = None) -> None:
    """The key that `record_calls` charges: each of its calls costs a cent."""
    store.records.add_key(
        KeyRow("key1", "digest", "gateway", NOON - DAY, "ci", budget_usd_a_day=day, budget_usd_a_month=month)
    )


@pytest.mark.parametrize(
    ("day", "month", "messages"),
    [
        (0.25, None, ["key ci has spent $0.2000, 80% of $0.2500 a day"]),
        (0.26, 0.2, ["key ci has spent $0.2000, 100% of $0.2000 a month"]),
        (0.26, 0.26, []),
        (0.0, None, ["key ci has spent $0.2000, 100% of $0.0000 a day"]),
    ],
    ids=["day", "month", "below", "nothing allowed"],
)
def test_a_budget_of_which_four_fifths_are_spent_is_an_alert(
    day: float | None, month: float | None, messages: list[str]
) -> None:
    store = MemoryStore()
    add_limited_key(store, day=day, month=month)
    record_calls(store, NOON, read_share=0.5, calls=20)
    with serve_store(store, clock=lambda: NOON + 3_600) as client:
        alerts = find_alerts(client.service, NOON + 3_600)
        assert [alert.message for alert in alerts if alert.kind == "budget"] == messages
        tomorrow = find_alerts(client.service, NOON + DAY)
        assert [alert for alert in tomorrow if alert.kind == "budget" and alert.subject == "key1 day" and day] == []


def test_calls_that_could_not_be_read_are_an_alert_for_a_day() -> None:
    store = MemoryStore()
    failed = LlmCallFailed(MODEL, "anthropic", "unreadable", "it is no JSON", 0, 5, "r1")
    store.append(
        [Event("e1", NOON, "s", "agent", SessionStarted(MODEL)), Event("e2", NOON, "s", "agent", failed)]
    ).result(10)
    with serve_store(store, clock=lambda: NOON + 3_600) as client:
        (alert,) = find_alerts(client.service, NOON + 3_600)
        assert (alert.kind, alert.message.partition(" could")[0]) == ("unreadable", "1 call of the last 24 hours")
        assert find_alerts(client.service, NOON + DAY + 1) == ()
        assert 'holdfast_alerts{kind="unreadable"} 1' in client.request("GET", "/metrics").body.decode()


def test_a_started_service_sends_its_alerts_to_the_webhook_of_its_command(tmp_path: Path) -> None:
    store_file = tmp_path / "log.db"
    with SqliteStore(store_file) as store:
        key = KeyRow("key1", "digest", "gateway", time.time() - DAY, "ci", budget_usd_a_day=0.0)
        store.records.add_key(key)
    with receive() as receiver:
        words = [sys.executable, "-m", "holdfast", "serve", "--db", str(store_file), "--port", "0"]
        environment = {**os.environ, "HOLDFAST_ALERT_SECRET": SECRET, "HOME": str(tmp_path)}
        with subprocess.Popen(
            [*words, "--alert-webhook", receiver.url], env=environment, stdout=subprocess.PIPE, cwd=tmp_path
        ) as process:
            try:
                deadline = time.monotonic() + 30
                while not receiver.messages and time.monotonic() < deadline:
                    time.sleep(0.05)
            finally:
                process.kill()
    ((headers, body),) = receiver.messages
    assert [alert["subject"] for alert in json.loads(body)["alerts"]] == ["key1 day"]
    sent_at, _, _ = headers["holdfast-signature"].partition(",")
    assert headers["holdfast-signature"] == sign_message(SECRET, int(sent_at[2:]), body)


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
    sent_at, digest = (part.partition("=")[2] for part in headers["holdfast-signature"].split(","))
    assert hmac.new(SECRET.encode(), f"{sent_at}.".encode() + body, hashlib.sha256).hexdigest() == digest
    assert int(sent_at) == int(NOON)


def test_alert_that_ended_is_sent_again_when_it_returns_but_not_every_minute() -> None:
    clock = ManualClock(NOON)
    reasons = ["the recorder cannot write its spool"]
    with serve_store(MemoryStore(), clock=clock) as client, receive() as receiver:
        client.service.warnings.append(lambda: reasons[0])
        webhook = AlertWebhook(receiver.url, SECRET, owner="a", clock=clock)

        def count_sent(reason: str, *, after: float) -> int:
            clock.advance(after)
            reasons[0] = reason
            return len(asyncio.run(webhook.check(client.service)))

        assert count_sent("degraded", after=0) == 1
        assert count_sent("", after=60) == 0
        assert count_sent("degraded", after=60) == 0, "it comes and goes"
        assert count_sent("", after=QUIET_SECONDS) == 0
        assert count_sent("degraded", after=60) == 1, "it had ended"
    assert len(receiver.messages) == 2


@pytest.mark.parametrize(
    ("statuses", "attempts", "is_sent"),
    [((500, 503, 429), 4, True), ((500,) * 9, ATTEMPTS_MAX, False), ((401,), 1, False)],
    ids=["comes back", "stays away", "refuses"],
)
def test_a_webhook_that_fails_is_tried_again_with_growing_pauses(
    statuses: tuple[int, ...], attempts: int, is_sent: bool
) -> None:
    clock, pauses = ManualClock(NOON), list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    with serve_store(MemoryStore(), clock=clock) as client, receive(*statuses) as receiver:
        client.service.warnings.append(lambda: "degraded")
        webhook = AlertWebhook(receiver.url, SECRET, owner="a", clock=clock, pause=pause)
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
