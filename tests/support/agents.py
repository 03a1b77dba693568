"""Agents for tests: sessions on a memory store with replayed replies, and the prefix check of their requests."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Unpack

import msgspec

from holdfast.clock import CountingIds, ManualClock
from holdfast.errors import ProviderError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, ModelSwitched, RequestPrepared
from holdfast.events.payloads.compaction import CompactionUndone, ContextCompacted
from holdfast.events.payloads.recovery import ViewRepair
from holdfast.events.payloads.session import MessagesWithdrawn
from holdfast.events.payloads.union import AnyPayload
from holdfast.providers.adapter import Adapter, Endpoint
from holdfast.providers.registry import get_adapter
from holdfast.providers.wire_request import OnRetry
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Block, Text, ToolUse
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage


class Pause(msgspec.Struct, frozen=True):
    """A reply that stops after some server-sent events and then waits until it is cancelled."""

    reply: Reply
    events: int


Step = Reply | ProviderError | Pause


class ReplayTransport:
    """A transport that replays one step per request in a provider's own bytes and records every body sent."""

    def __init__(self, steps: Sequence[Step], adapter: Adapter | None = None) -> None:
        self._steps = list(steps)
        self._adapter = adapter or get_adapter("anthropic")
        self.bodies: list[bytes] = []
        self.endpoints: list[Endpoint] = []
        self.paused = asyncio.Event()
        self.closed = False

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        self.endpoints.append(endpoint)
        self.bodies.append(body)
        step = self._steps.pop(0)
        if isinstance(step, ProviderError):
            if on_retry is not None and step.retry_after_seconds is not None:
                on_retry(2, step)
            raise step
        reply = step.reply if isinstance(step, Pause) else step
        for number, chunk in enumerate(self._adapter.encode_stream(reply)):
            if isinstance(step, Pause) and number == step.events:
                self.paused.set()
                await asyncio.Event().wait()
            yield chunk

    async def aclose(self) -> None:
        self.closed = True


SMALL = Usage(input=10, output=5)


def says(*content: Block | str, usage: Usage = SMALL) -> Reply:
    """A reply; its stop reason is `tool_use` if it contains a tool call."""
    blocks = tuple(Text(part) if isinstance(part, str) else part for part in content)
    calls = any(isinstance(block, ToolUse) for block in blocks)
    return Reply(blocks, "tool_use" if calls else "end_turn", usage, model="claude-sonnet-5-5", id="msg_1")


class Agent:
    """A session with its clock, store and transport."""

    def __init__(self, steps: Sequence[Step], options: Options) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.transport = ReplayTransport(steps)
        defaults: Options = {
            "model": "anthropic:claude-sonnet-5-5",
            "store": self.store,
            "transport": self.transport,
            "simulated": False,  # Stands for a session that is billed.
            "clock": self.clock,
            "new_id": CountingIds(),
        }
        self.options: Options = defaults | options
        self.session = Session.create(**self.options)

    @property
    def events(self) -> list[Event]:
        rows = self.store.sessions()
        return list(self.store.read(rows[0].id)) if rows else []

    @property
    def payloads(self) -> list[AnyPayload]:
        return [event.payload for event in self.events]

    @property
    def bodies(self) -> list[Any]:
        return [msgspec.json.decode(body) for body in self.transport.bodies]


MakeAgent = Callable[..., Agent]


def make_agent(*steps: Step, **options: Unpack[Options]) -> Agent:
    return Agent(steps, options)


def changed_prefixes(events: Sequence[Event]) -> list[str]:
    """Every request that did not extend the previous one, by layer and byte."""
    changes: list[str] = []
    length = completed_length = 0
    for event in events:
        if isinstance(event.payload, LlmCallCompleted):
            completed_length = length
        if isinstance(event.payload, MessagesWithdrawn | ViewRepair):
            # The provider cached nothing of a refused request.
            length = completed_length
        if isinstance(event.payload, ContextCompacted | CompactionUndone):
            # A compaction and its undo replace everything after the cut on purpose.
            length, completed_length = (
                event.payload.unchanged_blocks,
                min(completed_length, event.payload.unchanged_blocks),
            )
        if isinstance(event.payload, ModelSwitched):
            # Another model has another cache: there is no prefix to keep.
            length = 0
        if not isinstance(event.payload, RequestPrepared):
            continue
        prepared = event.payload
        if prepared.shared_blocks < length:
            first_changed = prepared.digests[0] if prepared.digests else None
            where = f"layer {first_changed.layer!r} at byte {first_changed.start}" if first_changed else "the end"
            changes.append(f"the prefix changed: {where} (block {prepared.shared_blocks} of {length})")
        length = prepared.shared_blocks + len(prepared.digests)
    return changes
