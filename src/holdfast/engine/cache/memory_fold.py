"""Folds the events of a forwarded conversation into what is known of its cache, as the planner knew it."""

from holdfast.events.payloads.cache import CacheLearned, CachePinged
from holdfast.events.payloads.calls import (
    VOLATILE_PREFIX,
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    RequestPrepared,
)
from holdfast.events.payloads.union import AnyPayload
from holdfast.planning.learned import (
    CacheMemory,
    RequestRecord,
    distrust_anchor,
    forget_cached,
    memory_after_call,
    memory_after_ping,
)
from holdfast.planning.policy import PingResult, WaitedFor

# After a longer idle time, a conversation counts as having waited for a person.
TOOL_SECONDS_MAX = 120.0


class MemoryFold:
    """`memory` after the events so far, the last request, and the newest `cache.learned` among them."""

    def __init__(self) -> None:
        self.memory = CacheMemory()
        self.last_request: RequestRecord | None = None
        self.learned_record: CacheLearned | None = None
        self._moved_blocks = 0

    def add(self, at: float, payload: AnyPayload) -> None:
        match payload:
            case GatewayForwarded():
                # Text that a rewrite has moved to the end is one block, which no later request repeats.
                applied = (change.anti_pattern for change in payload.changes if change.is_applied)
                self._moved_blocks = int(any(name.startswith(VOLATILE_PREFIX) for name in applied))
            case RequestPrepared():
                sent = self.last_request
                if sent is not None and payload.shared_blocks < sent.blocks:
                    self.memory = forget_cached(self.memory)
                points = payload.plan.breakpoints
                blocks = payload.shared_blocks + len(payload.digests) - self._moved_blocks
                if points and points[-1].ttl in ("5m", "1h"):
                    # Where only breakpoints are cached, the conversation is found again by what is cached of it.
                    blocks = points[-1].block_index + 1
                self.last_request = RequestRecord(at, points, blocks, _guess_wait(self.memory, at))
            case LlmCallCompleted():
                if self.last_request is not None:
                    self.memory = memory_after_call(self.memory, self.last_request, payload.usage)
            case LlmCallFailed():
                self.memory = distrust_anchor(self.memory)
            case CachePinged(kind="refresh" | "upgrade", breakpoint_block=int(block)):
                sent_at, blocks, tokens = payload.sent_at or at, payload.block_count, payload.prefix_tokens
                ping = PingResult(sent_at, payload.ttl, payload.usage, block, blocks, tokens)
                self.memory = memory_after_ping(self.memory, ping)
            case CacheLearned():
                self.learned_record = payload
            case _:
                pass


def _guess_wait(memory: CacheMemory, at: float) -> WaitedFor:
    """What the client waited for; it is not recorded, but tools are faster than people."""
    if memory.last_at is None:
        return "start"
    return "tool" if at - memory.last_at < TOOL_SECONDS_MAX else "user"
