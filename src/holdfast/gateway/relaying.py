"""The record in a process of its own: what is told of exchanges goes there through a pipe, and costs no call any time.

What is too much for the pipe waits, up to a size, and is then dropped and counted.
"""

import contextlib
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, Thread
from typing import IO

import msgspec

from holdfast.events.payloads_gateway import Change
from holdfast.gateway.exchange import Caller, End, Exchange
from holdfast.gateway.letters import Letter
from holdfast.gateway.notes import Notes
from holdfast.gateway.routing import Target

CLOSING_SECONDS_MAX = 10.0
REMEMBERED_MAX = 1_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
_SIZE_BYTES = 4

Pairs = list[tuple[bytes, bytes]]


class Setup(msgspec.Struct, frozen=True, tag=True):
    """What the other process has to know: the store, whether the provider is simulated, rules by name."""

    db: str | None
    simulated: bool
    volatile: tuple[tuple[str, str], ...] = ()


class Asked(msgspec.Struct, frozen=True, tag=True):
    number: int
    target: Target
    headers: Pairs
    caller: Caller
    at: float
    body: bytes
    original: bytes | None
    changes: tuple[Change, ...]
    waiting: int = 0


class Ended(msgspec.Struct, frozen=True, tag=True):
    number: int
    at: float
    status: int
    headers: Pairs
    end: End
    body: bytes | None


class Pinged(msgspec.Struct, frozen=True, tag=True):
    number: int
    letter: Letter
    answer: bytes
    at: float


class Spent(msgspec.Struct, frozen=True, tag=True):
    """Told back: what a call of a key's holder cost."""

    key_id: str
    at: float
    dollars: float


Told = Setup | Asked | Ended | Pinged | Spent

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Told).decode


def write_frame(pipe: IO[bytes], told: bytes) -> None:
    pipe.write(len(told).to_bytes(_SIZE_BYTES))
    pipe.write(told)
    pipe.flush()


def frames(pipe: IO[bytes]) -> Iterator[Told]:
    """Until the other end is closed; what was cut there is left out."""
    while len(size := pipe.read(_SIZE_BYTES)) == _SIZE_BYTES:
        length = int.from_bytes(size)
        told = pipe.read(length)
        if len(told) < length:
            return
        yield _decode(told)


class Relay:
    """A watcher that tells another process. Nothing in here raises or waits."""

    def __init__(self, words: Sequence[str], setup: Setup, *, spent: Callable[[str, float, float], None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._spent = spent
        self._lock = Lock()
        self._numbers = 0
        self._notes: Notes[bytes] = Notes(self._write, bytes_max=WAITING_BYTES_MAX)
        self._hearing = Thread(target=self._hear, name="holdfast-gateway-heard", daemon=True)
        self._hearing.start()
        self._put(setup)

    @property
    def dropped(self) -> int:
        return self._notes.dropped

    def asked(self, exchange: Exchange) -> None:
        body = exchange.request_body
        if exchange.target.speaks is None or body is None:
            return
        with self._lock:
            self._numbers += 1
            exchange.record = self._numbers
        self._put(
            Asked(
                number=self._numbers,
                target=exchange.target,
                headers=exchange.headers,
                caller=exchange.caller,
                at=exchange.asked_at,
                body=body,
                original=exchange.original,
                changes=exchange.changes,
                waiting=self._notes.waiting,
            )
        )
        exchange.request_was_read()

    def ended(self, exchange: Exchange) -> None:
        if isinstance(exchange.record, int):
            headers, body = exchange.reply_headers, exchange.reply_body
            self._put(Ended(exchange.record, exchange.ended_at, exchange.status, headers, exchange.end, body))
            exchange.reply_was_read()

    def pinged(self, exchange: Exchange, letter: Letter, answer: bytes, at: float) -> None:
        if isinstance(exchange.record, int):
            self._put(Pinged(exchange.record, msgspec.structs.replace(letter, body=b""), answer, at))

    def close(self) -> None:
        """What was told is recorded, as long as that does not take too long."""
        self._notes.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(CLOSING_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._hearing.join(1.0)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _put(self, told: Told) -> None:
        spelled = _encode(told)
        self._notes.put(spelled, len(spelled))

    def _write(self, spelled: bytes) -> None:
        pipe = self._process.stdin
        try:
            if pipe is not None:
                write_frame(pipe, spelled)
        except (OSError, ValueError):
            self._notes.dropped += 1

    def _hear(self) -> None:
        if self._process.stdout is not None:
            for told in frames(self._process.stdout):
                if isinstance(told, Spent):
                    self._spent(told.key_id, told.at, told.dollars)


class Retold:
    """Exchanges as another process was told of them, for a watcher that looks on there."""

    def __init__(
        self,
        asked: Callable[[Exchange], None],
        ended: Callable[[Exchange], None],
        pinged: Callable[[Exchange, Letter, bytes, float], None],
    ) -> None:
        self._asked, self._ended, self._pinged = asked, ended, pinged
        self._known: OrderedDict[int, Exchange] = OrderedDict()

    def hear(self, told: Told) -> None:
        match told:
            case Asked():
                exchange = Exchange(told.target, told.headers, told.caller, told.at)
                exchange.asked(told.body)
                exchange.original, exchange.changes, exchange.waiting = told.original, told.changes, told.waiting
                self._known[told.number] = exchange
                while len(self._known) > REMEMBERED_MAX:
                    self._known.popitem(last=False)
                self._asked(exchange)
            case Ended():
                known = self._known.get(told.number)
                if known is not None:
                    known.ended_at, known.status, known.end = told.at, told.status, told.end
                    known.reply_headers = told.headers
                    if told.body is not None:
                        known.answered(told.body)
                    self._ended(known)
            case Pinged():
                known = self._known.get(told.number)
                if known is not None:
                    self._pinged(known, told.letter, told.answer, told.at)
            case Setup() | Spent():
                pass
