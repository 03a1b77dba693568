"""Replicas of a gateway on one database: each call of a conversation reaches another one, and replicas are killed.

Each conversation is a client that sends its whole history and asks the next question as soon as it has an answer. What
the log has in the end is compared with what the clients received.
"""

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import psycopg
from tests.support.gateway_faults import RunningGateway
from tests.support.simulated_gemini import FLASH, LONG

from holdfast.catalog.lookup import find_model, shipped_models
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.gateway.recording.restore import iterate_spending
from holdfast.service.auth.keys import NewKey, make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.open import open_store
from holdfast.testing.server_thread import serve_provider

DRAIN_SECONDS_MAX = 240.0
CALLS_PER_SECOND = 16
"""Of all conversations together: more than two cores can record would measure only the machine."""
SYSTEM = "You read before you write, and you say what you did. " * 120
OPTIONS = ("--improve", "--keep-alive", "1")
SPENDERS = 4
BUDGET_USD = 0.02
"""Of one key that several clients use at once, on all replicas: it is spent in the first minute."""


class ReplicaOutcome(msgspec.Struct, frozen=True):
    """Answered calls by what became of them.

    `split` conversations are in more than one session, `mixed` sessions have calls of more than one conversation,
    `forked` sessions are no single chain. `other_prefix` calls have other prefix digests than on a single replica.
    `overshoot` is the number of calls by which a budget was exceeded, `refused` that of calls refused for it.
    `pings_max` is the largest number of pings of a conversation, `connections_max` that of connections to the database.
    `cache_users` are the conversations for which an explicit cache pays, `explicit_caches` those that the provider has.
    """

    replicas: int
    conversations: int
    kills: int
    seconds: float
    answered: int
    lost: int
    double_counted: int
    split: int
    mixed: int
    forked: int
    other_prefix: int
    sessions: int
    overshoot: int
    refused: int
    pings_max: int
    connections_max: int
    cache_users: int = 0
    explicit_caches: int = 0


class Conversation:
    """One client. Numbers in its messages make its history its own; half of the clients send an id, as agents do."""

    def __init__(self, number: int, urls: list[str], stop: Event, *, turns_max: int, think_seconds: float) -> None:
        self.number = number
        self.responses: dict[str, int] = {}
        """The length of the request by the id of its response."""
        self.messages: list[dict[str, str]] = []
        self._urls, self._stop, self._turns_max, self._think_seconds = urls, stop, turns_max, think_seconds
        self.thread = Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        attempt, turn = self.number, 0
        while not self._stop.is_set() and turn < self._turns_max:
            turn += 1
            self.messages.append({"role": "user", "content": f"Conversation {self.number}, question {turn}"})
            while not self._stop.is_set():
                # Another replica with every call, and so also after a failed one.
                attempt += 1
                try:
                    url = self._urls[attempt % len(self._urls)]
                    id, text = self.ask(url, self.messages, key=make_gateway_key(1).key)
                except (OSError, HTTPException):
                    time.sleep(0.05)
                    continue
                self.responses[id] = len(self.messages)
                self.messages.append({"role": "assistant", "content": text})
                self._stop.wait(self._think_seconds)
                break

    def ask(self, url: str, messages: list[dict[str, str]], *, key: str = "") -> tuple[str, str]:
        """The id and text of the answer."""
        return ask(url, self.number, messages, key=key)


class GeminiConversation(Conversation):
    """A client whose long head, which is its own, pays for an explicit cache."""

    def ask(self, url: str, messages: list[dict[str, str]], *, key: str = "") -> tuple[str, str]:
        roles = {"user": "user", "assistant": "model"}
        contents = [{"role": roles[each["role"]], "parts": [{"text": each["content"]}]} for each in messages]
        system = {"parts": [{"text": f"You are helper {self.number}. {LONG}"}]}
        headers = {"content-type": "application/json", "x-goog-api-key": "none"}
        headers |= {"x-holdfast-key": key} if key else {}
        body = json.dumps({"systemInstruction": system, "contents": contents}).encode()
        request = Request(f"{url}/gemini/v1beta/models/{FLASH}:generateContent", body, headers)
        with urlopen(request, timeout=30) as response:
            answer = json.loads(response.read())
        return str(answer["responseId"]), str(answer["candidates"][0]["content"]["parts"][0]["text"])


class Spender:
    """A client without a history, whose key has a budget that others use at the same time."""

    def __init__(self, number: int, urls: list[str], stop: Event) -> None:
        self.refused = 0
        self._number, self._urls, self._stop = number, urls, stop
        self.thread = Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        attempt = self._number
        while not self._stop.wait(1.0):
            attempt += 1
            messages = [{"role": "user", "content": f"Spender {self._number}, question {attempt}"}]
            try:
                ask(self._urls[attempt % len(self._urls)], 2 * self._number, messages, key=make_gateway_key(2).key)
            except HTTPError as error:
                self.refused += error.code in (402, 429)
            except (OSError, HTTPException):
                continue


def make_gateway_key(number: int) -> NewKey:
    """1 is the key of all conversations, 2 that of the spenders."""
    return make_key("gateway", at=0.0, random_bytes=lambda size: bytes([number]) * size)


def grant_keys(db: str, folder: Path) -> None:
    rows = [make_gateway_key(number).row for number in (1, 2)]
    with closing(open_store(db)) as store:
        for row in rows:
            store.records.add_key(row)
    grants = folder / "grants.toml"
    spender = f"budget_usd_a_day = {BUDGET_USD}"
    granted = [f'[keys.{row.id}]\nanthropic = "sk-any"\n{line}' for row, line in zip(rows, ("", spender), strict=True)]
    grants.write_text("\n".join(granted))
    grants.chmod(0o600)


def ask(url: str, number: int, messages: list[dict[str, str]], *, key: str = "") -> tuple[str, str]:
    """The id and text of the answer."""
    body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "system": SYSTEM, "messages": messages}
    headers = {"x-api-key": "none"} | ({"x-session-id": f"session {number}"} if number % 2 else {})
    headers |= {"x-holdfast-key": key} if key else {}
    request = Request(f"{url}/anthropic/v1/messages", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=30) as response:
        answer = json.loads(response.read())
    return str(answer["id"]), str(answer["content"][0]["text"])


class Replica:
    """A gateway with a spool of its own, at the same address after each restart."""

    def __init__(self, number: int, upstream: str, db: str, folder: Path) -> None:
        self._arguments = upstream, db, folder / f"spool {number}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        self.gateway = RunningGateway(*self._arguments, port=self._port, options=OPTIONS)
        assert self.gateway.url, "the gateway does not start"

    @property
    def url(self) -> str:
        return self.gateway.url

    def kill(self) -> None:
        """Gateway and recorder at once, as when a machine dies."""
        recorder = self.gateway.find_recorder()
        self.gateway.kill()
        with suppress(ProcessLookupError):
            os.kill(recorder, 9)

    def wait_until_drained(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        spool = self._arguments[2]
        while len(list(spool.iterdir())) > 1:
            assert time.monotonic() < deadline, "the spools that were left behind are not recorded"
            time.sleep(0.1)


def run_replicas(
    db: str,
    folder: Path,
    *,
    replicas: int,
    conversations: int,
    seconds: float,
    kill_seconds: float,
    turns_max: int = 10_000,
    direct_db: str = "",
    fault: Callable[[], None] | None = None,
) -> ReplicaOutcome:
    """`direct_db` is the address at which the store is read, if `db` leads through a pooler.

    With `fault`, that happens once in the middle, and no replica is killed.
    """
    grant_keys(direct_db or db, folder)
    with serve_provider(provider := make_provider()) as upstream:
        servers = [Replica(number, upstream, db, folder) for number in range(replicas)]
        stop, kills = Event(), 0
        urls, think_seconds = [server.url for server in servers], conversations / CALLS_PER_SECOND
        clients = [
            (GeminiConversation if has_explicit_cache(number, seconds) else Conversation)(
                number, urls, stop, turns_max=turns_max, think_seconds=think_seconds
            )
            for number in range(conversations)
        ]
        spenders = [Spender(number, urls, stop) for number in range(SPENDERS if seconds else 0)]
        watch = ConnectionWatch(direct_db or db, stop)
        started = time.monotonic()
        try:
            if not seconds:
                for client in clients:
                    client.thread.join()
            if fault is not None:
                time.sleep(seconds / 2)
                fault()
                time.sleep(seconds / 2)
            while fault is None and time.monotonic() < started + seconds:
                time.sleep(kill_seconds)
                victim = servers[kills % replicas]
                victim.kill()
                victim.start()
                kills += 1
        finally:
            stop.set()
            for thread in (*(client.thread for client in clients), *(each.thread for each in spenders), watch.thread):
                thread.join()
            took = time.monotonic() - started
            for server in servers:
                server.wait_until_drained()
            for server in servers:
                server.gateway.stop()
        caches = count_explicit_caches(provider)
        expected = find_expected_digests(upstream, folder, clients)
    with closing(open_store(direct_db or db)) as store:
        outcome = compare(store, clients, expected, replicas=replicas, kills=kills, seconds=took)
        refused = sum(spender.refused for spender in spenders)
        gemini = sum(isinstance(client, GeminiConversation) for client in clients)
        return msgspec.structs.replace(
            outcome, refused=refused, connections_max=watch.most, cache_users=gemini, explicit_caches=caches
        )


def make_provider() -> SimulatedProvider:
    """Gemini's implicit cache takes nothing, so that explicit ones pay at once."""
    row = find_model(f"gemini:{FLASH}")
    uncached = msgspec.structs.replace(row, cache=msgspec.structs.replace(row.cache, tokens_min=10_000_000))
    return SimulatedProvider(script='{"content": "Yes."}', models={**shipped_models(), row.id: uncached})


def has_explicit_cache(number: int, seconds: float) -> bool:
    """Every eighth conversation of a run under load, or the last of a few."""
    return bool(seconds) and number % 8 == 3


def count_explicit_caches(provider: SimulatedProvider) -> int:
    """How many the provider has; none is deleted within the longest run."""
    response = provider.handle("GET", "/v1beta/cachedContents", headers={"x-goog-api-key": "none"}, body=b"")
    return len(json.loads(response.read_body()).get("cachedContents", []))


class ConnectionWatch:
    """Counts the connections of all replicas to the database, again and again."""

    def __init__(self, db: str, stop: Event) -> None:
        self.most = 0
        self._db, self._stop = db, stop
        self.thread = Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        while not self._stop.wait(0.2):
            # A fault may have made the server unreachable.
            with suppress(psycopg.Error), psycopg.connect(self._db, autocommit=True) as connection:
                ((count,),) = connection.execute(query).fetchall()
                self.most = max(self.most, count)


def count_overshoot(store: DatabaseEventLog) -> int:
    """By how many calls the budget was exceeded: so many of the largest ones have to be left out for it to hold."""
    key_id = make_gateway_key(2).row.id
    left = sorted(call.dollars for call in iterate_spending(store) if call.key_id == key_id)
    count = len(left)
    while left and sum(left) > BUDGET_USD:
        left.pop()
    return count - len(left)


def find_expected_digests(upstream: str, folder: Path, clients: list[Conversation]) -> dict[int, tuple[str, ...]]:
    """The prefix digests of each conversation's longest request on a single replica, which contain all others."""
    db = folder / "single.db"
    gateway = RunningGateway(upstream, str(db), folder / "single spool")
    ids: dict[str, int] = {}
    for client in clients:
        if client.responses:
            id, _ = client.ask(gateway.url, client.messages[: max(client.responses.values())])
            ids[id] = client.number
    gateway.stop()
    with closing(open_store(db)) as store:
        found = {ids[id]: digests for _, id, digests in iterate_calls(store) if id in ids}
    assert len(found) == len(ids)
    return found


def iterate_calls(store: DatabaseEventLog) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Session, response and prefix digests of every completed call."""
    for row in store.sessions():
        digests: tuple[str, ...] = ()
        open_digests: dict[str, tuple[str, ...]] = {}
        for event in store.read(row.id):
            match event.payload:
                case RequestPrepared() as payload:
                    added = tuple(digest.digest for digest in payload.digests)
                    digests = (*digests[: payload.shared_blocks], *added)
                case LlmCallCompleted() as payload:
                    yield row.id, payload.response_id, open_digests.pop(payload.request_id, ())
                case _ if hasattr(event.payload, "request_id"):
                    open_digests[event.payload.request_id] = digests
                case _:
                    pass


def compare(
    store: DatabaseEventLog,
    clients: list[Conversation],
    expected: dict[int, tuple[str, ...]],
    *,
    replicas: int,
    kills: int,
    seconds: float,
) -> ReplicaOutcome:
    conversation_of = {id: client.number for client in clients for id in client.responses}
    recorded: Counter[str] = Counter()
    sessions_of: dict[int, set[str]] = {client.number: set() for client in clients}
    conversations_in: dict[str, set[int]] = {}
    other_prefix = 0
    for session, id, digests in iterate_calls(store):
        recorded[id] += 1
        if id in conversation_of:
            number = conversation_of[id]
            sessions_of[number].add(session)
            conversations_in.setdefault(session, set()).add(number)
            other_prefix += not digests or digests != expected[number][: len(digests)]
    rows = store.sessions()
    return ReplicaOutcome(
        replicas=replicas,
        conversations=len(clients),
        kills=kills,
        seconds=round(seconds, 1),
        answered=len(conversation_of),
        lost=len(conversation_of.keys() - recorded.keys()),
        double_counted=sum(count - 1 for count in recorded.values()),
        split=sum(len(sessions) > 1 for sessions in sessions_of.values()),
        mixed=sum(len(numbers) > 1 for numbers in conversations_in.values()),
        forked=sum(not is_one_chain(store, row.id) for row in rows),
        other_prefix=other_prefix,
        sessions=len(rows),
        overshoot=count_overshoot(store),
        refused=0,
        pings_max=max((count_pings(store, row.id) for row in rows), default=0),
        connections_max=0,
    )


def count_pings(store: DatabaseEventLog, session_id: str) -> int:
    return sum(isinstance(event.payload, CachePinged) for event in store.read(session_id))


def is_one_chain(store: DatabaseEventLog, session_id: str) -> bool:
    last: str | None = None
    for event in store.read(session_id):
        if event.parent_event_id != last:
            return False
        last = event.id
    return True
