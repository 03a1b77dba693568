"""The conversations that a recorder has in memory: bounded in bytes, and read from the log again when they continue."""

from collections.abc import Callable

from holdfast.engine.observed_prompt import BLOCK_BYTES
from holdfast.engine.recorder import CallRecorder, ResumedSession
from holdfast.engine.request_observer import RequestObserver, place_after
from holdfast.events.log import EventLog
from holdfast.gateway.recording.conversation_match import ConversationMatcher
from holdfast.gateway.recording.exchange_decode import DecodedExchange
from holdfast.gateway.recording.fingerprint import RequestFingerprint
from holdfast.gateway.recording.request_start import (
    DescribedRequest,
    RequestStarts,
    count_head_blocks,
    count_wire_ends,
)
from holdfast.gateway.recording.restore import RecordedConversation, read_conversation

CONVERSATION_BYTES_MAX = 96 * 1024 * 1024


class RecordedState:
    """A conversation in memory, with an estimate of what it takes; `described` is its newest request."""

    __slots__ = ("described", "observer", "size_bytes")

    def __init__(self, observer: RequestObserver, size_bytes: int = 0) -> None:
        self.observer = observer
        self.size_bytes = size_bytes
        self.described: DescribedRequest | None = None


class ConversationMemory:
    """Evicts the conversation that was idle for longest, never one that waits for a response."""

    def __init__(self, log: EventLog, resume: Callable[[ResumedSession], RequestObserver], *, bytes_max: int) -> None:
        self._log, self._resume_observer = log, resume
        self._bytes_max = bytes_max
        self.size_bytes = 0
        self.starts = RequestStarts()
        self.matcher: ConversationMatcher[RecordedState] = ConversationMatcher(states=self)

    def add_recorded(self, conversation: RecordedConversation) -> tuple[int, CallRecorder]:
        """A conversation of an earlier process: its key, and its recorder."""
        state = self._resume(conversation.resumed)
        key = self.matcher.restore(
            conversation.request,
            state,
            conversation.reply_id,
            open_requests=conversation.open_requests,
        )
        self._make_room()
        return key, state.observer.recorder

    def remember(self, state: RecordedState, decoded: DecodedExchange, fingerprint: RequestFingerprint) -> None:
        """Keeps what the next request of a conversation can reuse, and the account of its memory."""
        prompt, wire, start = state.observer.newest, decoded.request.wire, decoded.start
        if state.described is not None:
            self.starts.remove(state.described)
            state.described = None
        if prompt is None:
            return
        ends, split = count_wire_ends(wire, start), decoded.split
        # Cut at messages only where each of them is one entry.
        is_regular = split is not None and len(ends) == split.message_count == len(prompt.entry_ends)
        if split is not None and is_regular and not decoded.request.unreadable:
            head_blocks = start.request.head_blocks if start else count_head_blocks(wire)
            breakpoints = place_after(start.known if start else None, wire.plan.breakpoints)
            head, opening, blocks = fingerprint.head, fingerprint.opening, fingerprint.blocks
            described = DescribedRequest(prompt, head, opening, blocks, ends, head_blocks, breakpoints)
            state.described = self.starts.add(described, split)
        self.size_bytes += prompt.size_bytes - state.size_bytes
        state.size_bytes = prompt.size_bytes
        self._make_room()

    def evict(self, state: RecordedState) -> str:
        """Releases a conversation; returns its session, which has what is needed later."""
        if state.described is not None:
            self.starts.remove(state.described)
        self.size_bytes -= state.size_bytes
        state.observer.recorder.wait_until_written()
        return state.observer.recorder.session_id

    def restore(self, name: str) -> tuple[tuple[str, ...], RecordedState] | None:
        """An evicted conversation, from the log."""
        conversation = read_conversation(self._log, name)
        if conversation is None:
            return None
        return conversation.request.blocks, self._resume(conversation.resumed)

    def _resume(self, resumed: ResumedSession) -> RecordedState:
        state = RecordedState(self._resume_observer(resumed), BLOCK_BYTES * len(resumed.digests))
        self.size_bytes += state.size_bytes
        return state

    def _make_room(self) -> None:
        while self.size_bytes > self._bytes_max and self.matcher.evict_oldest():
            pass
