"""A gateway that is killed and restarted: sessions continue, and earlier requests are forwarded with the same bytes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.served_gateway import ServedGateway, serve_gateway

from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.gateway.key_limits import KeyLimits
from holdfast.ledger.calls import iter_calls
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.server_thread import serve_provider

SECONDS_MAX = 30
GUIDE = "You read before you write, and you say what you did. " * 200


@contextmanager
def killed_gateway(url: str, db: Path, *arguments: str) -> Iterator[str]:
    """A gateway that is killed without a signal to stop."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--db", str(db)]
    with subprocess.Popen(
        [*words, "--upstream", f"anthropic={url}", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGKILL)


def body(turn: int, *, who: str = "", session: str | None = None) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for place in range(turn):
        messages.append({"role": "user", "content": f"{who}Question {place}"})
        messages.append({"role": "assistant", "content": f"{who}Answer {place}"})
    payload = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 9,
        "system": f"{who if who.startswith('Sub') else ''}Today's date is 2026-11-16, 08:0{turn}.\n{GUIDE}",
        "messages": [*messages, {"role": "user", "content": f"{who}Question {turn}"}],
    }
    return payload if session is None else {**payload, "metadata": {"user_id": f"user_x_session_{session}"}}


def ask(url: str, payload: dict[str, Any], key: str = "any") -> None:
    request = Request(f"{url}/anthropic/v1/messages", json.dumps(payload).encode(), {"x-api-key": key})
    with urlopen(request, timeout=SECONDS_MAX) as reply:
        reply.read()


def wait_for_calls(path: Path) -> list[int]:
    """The number of calls per session, once the newest is recorded."""
    if not path.exists():
        return []
    with closing(SqliteStore(str(path))) as store:
        return sorted(len(list(iter_calls(store.read(row.id)))) for row in store.sessions())


def test_a_session_continues_byte_for_byte_after_the_gateway_was_killed(tmp_path: Path) -> None:
    provider, db = SimulatedProvider(script='{"content": "Yes."}'), tmp_path / "s.db"
    with serve_provider(provider) as upstream:
        for turn in range(3):
            with killed_gateway(upstream, db, "--improve") as url:
                ask(url, body(turn))
                while wait_for_calls(db) != [turn + 1]:
                    pass
    sent = [json.loads(request.body) for request in provider.requests]
    for before, after in pairwise(sent):
        assert json.dumps(after["system"]) == json.dumps(before["system"])
        stable = len(before["messages"]) - 1
        assert without_breakpoints(after["messages"][:stable]) == without_breakpoints(before["messages"][:stable])
    with closing(SqliteStore(str(db))) as store:
        (row,) = store.sessions()
        assert sum(record.usage.cache_read for record in iter_calls(store.read(row.id))) > 0


def without_breakpoints(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_breakpoints(member) for name, member in value.items() if name != "cache_control"}
    return [without_breakpoints(member) for member in value] if isinstance(value, list) else value


def sessions_of(store: MemoryStore) -> list[list[GatewayForwarded]]:
    """Why each call was assigned to its session, session by session, oldest first."""
    rows = sorted(store.sessions(), key=lambda row: row.id)
    return [
        [event.payload for event in store.read(row.id) if isinstance(event.payload, GatewayForwarded)] for row in rows
    ]


@contextmanager
def started(store: MemoryStore, url: str, **more: Any) -> Iterator[ServedGateway]:
    with serve_gateway(url, store=store, **more) as gateway:
        yield gateway
        gateway.recorded_sessions()


def test_parallel_conversations_and_sub_agents_remain_separate_across_a_restart() -> None:
    store = MemoryStore()
    with serve_provider(SimulatedProvider()) as url:
        for turn in range(3):
            with started(store, url) as gateway:
                for who, session in (("", "0123456789"), ("Sub: ", "0123456789"), ("Other: ", None)):
                    ask(gateway.url, body(turn, who=who, session=session))
    sessions = sessions_of(store)
    assert [len(reasons) for reasons in sessions] == [3, 3, 3]
    assert all(reasons.confidence >= 0.6 for session in sessions for reasons in session[1:])


def test_another_accounts_request_does_not_continue_an_earlier_session() -> None:
    store = MemoryStore()
    with serve_provider(SimulatedProvider()) as url:
        with started(store, url) as gateway:
            ask(gateway.url, body(1))
        with started(store, url) as gateway:
            ask(gateway.url, body(2, who="Another: "), key="other")
            ask(gateway.url, body(2), key="first to go on")
            ask(gateway.url, body(3), key="second, which says the same")
    assert [len(reasons) for reasons in sessions_of(store)] == [2, 1, 1]


def test_a_session_with_rewritten_history_is_found_by_its_id_after_a_restart() -> None:
    store = MemoryStore()
    with serve_provider(SimulatedProvider()) as url:
        for who in ("", "Summed up: "):
            with started(store, url) as gateway:
                ask(gateway.url, body(1, who=who, session="0123456789"))
    assert [len(reasons) for reasons in sessions_of(store)] == [2]


def test_no_client_id_is_on_the_log() -> None:
    store = MemoryStore()
    with serve_provider(SimulatedProvider()) as url, started(store, url) as gateway:
        ask(gateway.url, body(1, session="0123456789"))
    assert "0123456789" not in repr(sessions_of(store))


def test_the_days_spending_is_known_after_a_restart() -> None:
    store = MemoryStore()
    grants = {"*": KeyLimits(provider_keys={"anthropic": "sk-any"}, budget_usd_a_day=0.0001)}
    with serve_provider(SimulatedProvider()) as url:
        with started(store, url, grants=grants) as gateway:
            new_key = gateway_key(gateway)
            ask(gateway.url, body(1), key=new_key)
            gateway.recorded_sessions()
            assert status_of(gateway, new_key) == 429
        with started(store, url, grants=grants) as gateway:
            assert status_of(gateway, new_key) == 429


def gateway_key(gateway: ServedGateway) -> str:
    new_key = make_key("gateway", at=0.0, random_bytes=lambda size: b"1" * size)
    gateway.service.records.add_key(new_key.row)
    return new_key.key


def status_of(gateway: ServedGateway, key: str) -> int:
    try:
        ask(gateway.url, body(1), key=key)
    except HTTPError as error:
        return error.code
    return 200
