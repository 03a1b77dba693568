"""Single flight: of several requests that would write the same prefix, one goes first; the others wait to read it.

A cache entry becomes readable only once the response to the writing request begins; parallel identical requests all
miss (Anthropic, "Prompt caching"). One instance serves one process; sessions in any thread and event loop can share it.
With leases, processes on one store wait for each other too, where a process knows nothing of a prompt to be cached.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic

import msgspec

from holdfast.clock import Clock
from holdfast.engine.leases import ProcessLeases
from holdfast.errors import UserError
from holdfast.types.json_encoding import sha256_hex

FLIGHT_WAIT_SECONDS_MAX = 20.0
"""How long a request waits at most: a slow first response must not hold up the others for longer."""

FLIGHT_KEYS_MAX = 10_000
"""How many written prefixes are remembered; bounds the memory of a long-running process."""

SHARED_BYTES_MIN = 2_000
"""Shorter shared prefixes (about 500 tokens) are not worth waiting for: writing them twice costs less than the time."""

OTHER_PROCESS_SECONDS = 0.05
"""How often to ask whether the prefix that another process writes can be read."""

WRITTEN = "written"
"""The value of the lease of a prefix that can be read."""

_Key = tuple[str, str]
_Wake = Callable[[], None]
"""Ends the wait of one request; thread-safe."""


class BreakpointPrefix(msgspec.Struct, frozen=True):
    """A prefix that ends at a breakpoint."""

    digest: str
    length_bytes: int
    ttl_seconds: float


class FlightKey(msgspec.Struct, frozen=True):
    """The prefixes that a request reads or writes, shortest first; requests of different scopes share none."""

    scope: str
    prefixes: tuple[BreakpointPrefix, ...] = ()

    @property
    def keys(self) -> tuple[_Key, ...]:
        return tuple((self.scope, prefix.digest) for prefix in self.prefixes)


class Slot:
    """The slot of a request that may be sent. `writes`: some of its prefixes are not known to be cached."""

    def __init__(
        self, flight_key: FlightKey, started_at: float, on_begun: "Callable[[Slot], None] | None" = None
    ) -> None:
        self.flight_key = flight_key
        self.started_at = started_at
        self.waited_seconds = 0.0
        self.writes = True
        self.knows_no_prefix = False
        self.lease_name = ""
        """The lease under which this request writes its shortest prefix, if it has one."""
        self._on_begun = on_begun
        self._waiters: list[_Wake] = []

    def mark_begun(self) -> None:
        """The response has begun: from now on others can read what this request wrote."""
        on_begun, self._on_begun = self._on_begun, None
        if on_begun is not None:
            on_begun(self)

    def add_wait(self, now: float) -> None:
        self.waited_seconds += max(0.0, now - self.started_at)
        self.started_at = now

    def add_waiter(self, wake: _Wake) -> None:
        self._waiters.append(wake)

    def pop_waiters(self) -> list[_Wake]:
        waiters, self._waiters = self._waiters, []
        return waiters


class SingleFlight:
    """At most one request at a time writes a prefix that is not known to be cached.

    The others wait in order of arrival, for at most `wait_seconds_max`; if the first one fails, the next takes its
    place. At most `keys_max` written prefixes are remembered; expired ones are forgotten. With `leases`, that holds for
    all processes on the store, and one that dies is waited for no longer than another request.
    """

    def __init__(
        self,
        *,
        wait_seconds_max: float = FLIGHT_WAIT_SECONDS_MAX,
        keys_max: int = FLIGHT_KEYS_MAX,
        leases: ProcessLeases | None = None,
    ) -> None:
        if not wait_seconds_max >= 0 or keys_max < 1:
            raise UserError("wait_seconds_max must be at least 0 and keys_max at least 1")
        self._wait_seconds_max = wait_seconds_max
        self._keys_max = keys_max
        self._leases = leases
        self._lock = threading.Lock()
        self._writing: dict[_Key, Slot] = {}
        self._written: OrderedDict[_Key, float] = OrderedDict()

    @property
    def key_count(self) -> int:
        """How many prefixes are being written or remembered as written."""
        return len(self._writing) + len(self._written)

    @asynccontextmanager
    async def acquire(self, flight_key: FlightKey, clock: Clock) -> AsyncIterator[Slot]:
        """A slot, held while the request is in progress; leaving it before the response has begun counts as failure."""
        slot = await self.enter(flight_key, clock)
        try:
            yield slot
        finally:
            self.release(slot)

    async def enter(self, flight_key: FlightKey, clock: Clock) -> Slot:
        """As `acquire`; `release` ends it."""
        slot = Slot(flight_key, clock(), partial(self._finish, written=True))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds_max
        while True:
            waiter = loop.create_future()
            wake = partial(_resolve_in, loop, waiter)
            if self._enter(slot, clock(), wake if loop.time() < deadline else None):
                await self._wait_for_processes(slot, clock, deadline)
                return slot
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await waiter
            slot.add_wait(clock())

    def enter_blocking(self, flight_key: FlightKey, clock: Clock) -> Slot:
        """As `enter`, for a thread without an event loop."""
        slot = Slot(flight_key, clock(), partial(self._finish, written=True))
        deadline = monotonic() + self._wait_seconds_max
        while True:
            woken = threading.Event()
            if self._enter(slot, clock(), woken.set if monotonic() < deadline else None):
                return slot
            woken.wait(max(0.0, deadline - monotonic()))
            slot.add_wait(clock())

    async def _wait_for_processes(self, slot: Slot, clock: Clock, deadline: float) -> None:
        """Takes the lease of the shortest prefix, or waits until the process that has it has written the prefix."""
        first = next((prefix for prefix in slot.flight_key.prefixes if prefix.length_bytes >= SHARED_BYTES_MIN), None)
        if self._leases is None or first is None or not slot.knows_no_prefix:
            return
        name = f"flight {sha256_hex(f'{slot.flight_key.scope} {first.digest}'.encode())[:32]}"
        loop = asyncio.get_running_loop()
        while not await asyncio.to_thread(self._leases.take, name, seconds=self._wait_seconds_max):
            lease = await asyncio.to_thread(self._leases.find, name)
            if lease is not None and lease.value == WRITTEN:
                with self._lock:
                    self._remember((slot.flight_key.scope, first.digest), clock(), lease.seconds_left)
            if lease is None or lease.value == WRITTEN or loop.time() >= deadline:
                return
            await asyncio.sleep(OTHER_PROCESS_SECONDS)
            slot.add_wait(clock())
        slot.lease_name = name

    def _end_lease(self, slot: Slot, *, written: bool) -> None:
        name, slot.lease_name = slot.lease_name, ""
        if self._leases is None or not name:
            return
        if written:
            ttl_seconds = min(prefix.ttl_seconds for prefix in slot.flight_key.prefixes)
            self._leases.take_soon(name, seconds=ttl_seconds, value=WRITTEN)
        else:
            self._leases.release_soon(name)

    def release(self, slot: Slot) -> None:
        """The request has ended; if its response has not begun, it counts as failed."""
        self._finish(slot, written=False)

    def _enter(self, slot: Slot, at: float, wake: _Wake | None) -> bool:
        """Whether the request may be sent; if not, `wake` is called when to try again. Without it, it may."""
        with self._lock:
            keys, prefixes = slot.flight_key.keys, slot.flight_key.prefixes
            cached_count = self._cached_count(keys, at)
            cached_bytes = prefixes[cached_count - 1].length_bytes if cached_count else 0
            worthwhile = (
                key
                for key, prefix in zip(keys[cached_count:], prefixes[cached_count:], strict=True)
                if prefix.length_bytes - cached_bytes >= SHARED_BYTES_MIN
            )
            writer = next((self._writing[key] for key in worthwhile if key in self._writing), None)
            if writer is not None and wake is not None:
                writer.add_waiter(wake)
                return False
            slot.writes, slot.knows_no_prefix = cached_count < len(keys), not cached_count
            for key in keys[cached_count:]:
                self._writing.setdefault(key, slot)
            return True

    def _cached_count(self, keys: tuple[_Key, ...], at: float) -> int:
        """The number of leading prefixes that are cached: all up to the longest one known to be written."""
        counts = (count for count in range(len(keys), 0, -1) if at < self._written.get(keys[count - 1], at))
        return next(counts, 0)

    def _finish(self, slot: Slot, *, written: bool) -> None:
        """The response has begun (`written`) or the request has failed: wake all waiters to try again."""
        with self._lock:
            waiters = slot.pop_waiters()
            for key, prefix in zip(slot.flight_key.keys, slot.flight_key.prefixes, strict=True):
                writer = self._writing.get(key)
                if writer is slot:
                    del self._writing[key]
                if written:
                    self._remember(key, slot.started_at, prefix.ttl_seconds)
                    waiters += writer.pop_waiters() if writer is not None else []
        self._end_lease(slot, written=written)
        for wake in waiters:
            wake()

    def _remember(self, key: _Key, at: float, ttl_seconds: float) -> None:
        self._written[key] = max(at + ttl_seconds, self._written.pop(key, at))
        while len(self._written) > self._keys_max or next(iter(self._written.values())) <= at:
            self._written.popitem(last=False)


@asynccontextmanager
async def acquire_slot(single_flight: SingleFlight | None, flight_key: FlightKey, clock: Clock) -> AsyncIterator[Slot]:
    """Acquire a slot; at once without single flight, or if the request has no prefix to share."""
    if single_flight is None or not flight_key.prefixes:
        yield Slot(flight_key, clock())
        return
    async with single_flight.acquire(flight_key, clock) as slot:
        yield slot


def _resolve_in(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    # RuntimeError: the event loop is closed, so nothing waits there any longer.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
