"""Who goes first: of several requests that would write the same prefix, one; the others wait until they can read it.

A provider lets others read what a request writes once its reply begins, and not before. A gate is for one process;
sessions in any thread and any event loop can share it.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from holdfast.clock import Clock
from holdfast.errors import UserError

WAIT_SECONDS_MAX = 20.0
KEYS_MAX = 10_000

SHARED_BYTES_MIN = 2_000
"""What is less, some 500 tokens, is written twice for less than anybody's time is worth."""

_Key = tuple[str, str]
_Turn = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class MarkedPrefix(msgspec.Struct, frozen=True):
    """A prefix that ends with a mark: its digest, its length, and for how long it is kept."""

    digest: str
    length_bytes: int
    ttl_seconds: float


class Claim(msgspec.Struct, frozen=True):
    """The prefixes that a request reads or writes, shortest first; two requests share none unless in one scope."""

    scope: str
    prefixes: tuple[MarkedPrefix, ...] = ()

    @property
    def keys(self) -> tuple[_Key, ...]:
        return tuple((self.scope, prefix.digest) for prefix in self.prefixes)


class Crossing:
    """A request that was let through. `writes`: something of it is not known to be cached."""

    def __init__(self, claim: Claim, started_at: float, on_begun: "Callable[[Crossing], None] | None" = None) -> None:
        self.claim = claim
        self.started_at = started_at
        self.waited_seconds = 0.0
        self.writes = True
        self._on_begun = on_begun
        self._turns: list[_Turn] = []

    def begun(self) -> None:
        """The reply begins: from now on others read what this request has written."""
        told, self._on_begun = self._on_begun, None
        if told is not None:
            told(self)

    def wait_for(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._turns.append((loop, turn))
        return turn

    def take_turns(self) -> list[_Turn]:
        taken, self._turns = self._turns, []
        return taken


class Gate:
    """At most one request at a time writes a prefix that nobody has seen written.

    The others wait, `wait_seconds_max` at most and in the order in which they came; where the first one fails, the
    next takes its place. At most `keys_max` written prefixes are remembered, and those that lapsed are forgotten.
    """

    def __init__(self, *, wait_seconds_max: float = WAIT_SECONDS_MAX, keys_max: int = KEYS_MAX) -> None:
        if not wait_seconds_max >= 0 or keys_max < 1:
            raise UserError("a gate takes wait_seconds_max of at least 0 and keys_max of at least 1")
        self._wait_seconds_max = wait_seconds_max
        self._keys_max = keys_max
        self._lock = threading.Lock()
        self._writing: dict[_Key, Crossing] = {}
        self._written: OrderedDict[_Key, float] = OrderedDict()

    @property
    def keys_held(self) -> int:
        """How many prefixes are being written, or remembered as written."""
        return len(self._writing) + len(self._written)

    @asynccontextmanager
    async def crossing(self, claim: Claim, clock: Clock) -> AsyncIterator[Crossing]:
        """Held while a request is under way; one that is left before its reply has begun counts as failed."""
        one = Crossing(claim, clock(), partial(self._settle, written=True))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds_max
        while (turn := self._enter(one, clock(), patient=loop.time() < deadline)) is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await turn
            except TimeoutError:
                pass
            now = clock()
            one.waited_seconds += max(0.0, now - one.started_at)
            one.started_at = now
        try:
            yield one
        finally:
            self._settle(one, written=False)

    def _enter(self, one: Crossing, at: float, *, patient: bool) -> asyncio.Future[None] | None:
        """What to wait for before trying again; None where the request may go."""
        with self._lock:
            keys, prefixes = one.claim.keys, one.claim.prefixes
            known = self._known(keys, at)
            start = prefixes[known - 1].length_bytes if known else 0
            worthwhile = (
                key
                for key, prefix in zip(keys[known:], prefixes[known:], strict=True)
                if prefix.length_bytes - start >= SHARED_BYTES_MIN
            )
            first = next((self._writing[key] for key in worthwhile if key in self._writing), None)
            if first is not None and patient:
                return first.wait_for()
            one.writes = known < len(keys)
            for key in keys[known:]:
                self._writing.setdefault(key, one)
            return None

    def _known(self, keys: tuple[_Key, ...], at: float) -> int:
        """How many prefixes there are up to the longest that was written: none of them has to be written again."""
        written = (count for count in range(len(keys), 0, -1) if at < self._written.get(keys[count - 1], at))
        return next(written, 0)

    def _settle(self, one: Crossing, *, written: bool) -> None:
        """Its reply has begun, or nothing came of it: whoever waits for it looks again."""
        with self._lock:
            turns = one.take_turns()
            for key, prefix in zip(one.claim.keys, one.claim.prefixes, strict=True):
                writer = self._writing.get(key)
                if writer is one:
                    del self._writing[key]
                if written:
                    self._remember(key, one.started_at, prefix.ttl_seconds)
                    turns += writer.take_turns() if writer is not None else []
        for loop, turn in turns:
            _wake(loop, turn)

    def _remember(self, key: _Key, at: float, ttl_seconds: float) -> None:
        self._written[key] = max(at + ttl_seconds, self._written.pop(key, at))
        while len(self._written) > self._keys_max or next(iter(self._written.values())) <= at:
            self._written.popitem(last=False)


@asynccontextmanager
async def cross(gate: Gate | None, claim: Claim, clock: Clock) -> AsyncIterator[Crossing]:
    """Through the gate, if there is one and the request has something to share."""
    if gate is None or not claim.prefixes:
        yield Crossing(claim, clock())
        return
    async with gate.crossing(claim, clock) as slot:
        yield slot


def _wake(loop: asyncio.AbstractEventLoop, turn: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_let_go, turn)
    except RuntimeError:
        # Its loop is closed: nobody waits there any longer.
        return


def _let_go(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
