"""The messages of a session as logged, independent of what compactions made of its view."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence

from holdfast.compaction.view import group_exchanges
from holdfast.events.log import Event
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.events.payloads.session import ContextInjected, MessageAppended, MessagesWithdrawn
from holdfast.extraction.facts import ConversationFacts, FactsReader
from holdfast.extraction.tool_calls import result_text
from holdfast.types.blocks import Block, Image, Opaque, RedactedThinking, Text, Thinking, ToolResult, ToolUse
from holdfast.types.json_encoding import canonical_json
from holdfast.types.prompt import HistoryEntry, Stability

ReadLog = Callable[[str | None], Iterable[Event]]
"""Reads a session's events after the one with the given id, or all of them."""


def read_logged_messages(events: Iterable[Event]) -> tuple[HistoryEntry, ...]:
    """Every message of the log with its number, except withdrawn ones."""
    entries: list[HistoryEntry] = []
    number = 0
    for event in events:
        number += _append_entry(entries, event, number + 1)
    return tuple(entries)


def _append_entry(entries: list[HistoryEntry], event: Event, number: int) -> bool:
    """Append the event's message, if it has one, under this number; returns whether it had."""
    match event.payload:
        case MessageAppended(message=message):
            entries.append(HistoryEntry(message.role, message.content, number=number))
        case ContextInjected(section="messages") as injection:
            entries.append(make_injected_entry(injection, number))
        case MessagesWithdrawn():
            while entries and entries[-1].role != "assistant":
                entries.pop()
            return False
        case _:
            return False
    return True


def make_injected_entry(injected: ContextInjected, number: int) -> HistoryEntry:
    content, stability = (Text(injected.text),), Stability.VOLATILE
    return HistoryEntry("user", content, injected.layer, stability, ephemeral=injected.ephemeral, number=number)


def messages_digest(entries: Iterable[HistoryEntry]) -> str:
    """The digest by which a compaction identifies the messages that it covers."""
    return _MessagesDigest(entries).hexdigest()


class _MessagesDigest:
    """SHA-256 of the canonical JSON of a list of messages, one message at a time."""

    def __init__(self, entries: Iterable[HistoryEntry] = ()) -> None:
        self._sha256, self._separator = hashlib.sha256(b"["), b""
        self.update(entries)

    def update(self, entries: Iterable[HistoryEntry]) -> None:
        for entry in entries:
            self._sha256.update(self._separator + canonical_json((entry.number, entry.role, entry.content)))
            self._separator = b","

    def hexdigest(self, more: Iterable[HistoryEntry] = ()) -> str:
        """The digest of the messages so far and of `more` after them."""
        other = _MessagesDigest()
        other._sha256, other._separator = self._sha256.copy(), self._separator
        other.update(more)
        other._sha256.update(b"]")
        return other._sha256.hexdigest()


class LoggedMessages:
    """The messages of one log, in the order of their numbers, each read only once; safe to use from several threads.

    Of a message that was read only the facts are kept, and its part in the digest of the range that a compaction would
    cover. `read_until` is the newest such message, `seen_until` the newest that was taken from the log. `damaged` are
    compactions whose covered messages no longer match their digest, as far as the log was read.
    """

    def __init__(self, read: ReadLog) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.damaged: tuple[ContextCompacted, ...] = ()
        self.read_until = 0
        self.seen_until = 0
        self._last_event_id: str | None = None
        self._facts = FactsReader()
        self._unread: list[HistoryEntry] = []
        self._first = 1
        self._digest = _MessagesDigest()

    def read_range(self, first: int, last: int) -> tuple[ConversationFacts, str]:
        """The facts of all messages up to `last`, and the digest of the messages from `first` to `last`."""
        with self._lock:
            self._take_from_log(first, last)
            self._read_facts(self._count_unread(last))
            return self._facts.facts(), self._digest.hexdigest()

    def read_ahead(self, first: int, last: int, *, messages_max: int) -> None:
        """Read a part of what `read_range` would, from the oldest message on."""
        with self._lock:
            self._take_from_log(first, last, messages_max)
            # A message after the newest reply seen so far may be withdrawn further on in the log.
            replies = [entry.number for entry in self._unread if entry.role == "assistant"]
            last_settled = min(last, replies[-1] if replies else 0)
            self._read_facts(min(messages_max, self._count_unread(last_settled)))

    def read_all(self) -> tuple[HistoryEntry, ...]:
        return read_logged_messages(self._read(None))

    def _take_from_log(self, first: int, last: int, messages_max: int | None = None) -> None:
        """Take new messages from the log, at most `messages_max`, and begin the range unless it was begun before."""
        if last < self.read_until or (first != self._first and first <= self.read_until):
            # Facts were read that the range must not contain, or are part of another digest.
            self._reset()
        self._catch_up(first, messages_max)
        if first != self._first:
            self._first, self._digest = first, _MessagesDigest()

    def _count_unread(self, last: int) -> int:
        return next((at for at, entry in enumerate(self._unread) if entry.number > last), len(self._unread))

    def _read_facts(self, count: int) -> None:
        """Read the facts of the oldest `count` messages that were not read yet."""
        try:
            for entry in self._unread[:count]:
                self._facts.read(entry)
                self.read_until = entry.number
                if entry.number >= self._first:
                    self._digest.update((entry,))
            del self._unread[:count]
        except BaseException:
            # A message that was read in part must not count twice.
            self._reset()
            raise

    def _catch_up(self, first: int, messages_max: int | None = None) -> None:
        seen_max = None if messages_max is None else self.seen_until + messages_max
        for event in self._read(self._last_event_id):
            self._last_event_id = event.id
            if isinstance(event.payload, MessagesWithdrawn) and self.read_until and not self._has_reply():
                # The withdrawal reaches into messages of which only facts are kept: start over.
                self._reset()
                return self._catch_up(first, messages_max)
            if isinstance(event.payload, ContextCompacted):
                self._follow_compaction(event.payload, first)
            self.seen_until += _append_entry(self._unread, event, self.seen_until + 1)
            if seen_max is not None and self.seen_until >= seen_max:
                return None
        return None

    def _follow_compaction(self, event: ContextCompacted, first: int) -> None:
        if event.strategy != "checkpoint":
            return
        covered = [entry for entry in self._unread if event.first <= entry.number <= event.last]
        is_begun = event.first == self._first and event.last >= self.read_until
        if event.first > self.read_until or is_begun:
            digest = messages_digest(covered) if event.first > self.read_until else self._digest.hexdigest(covered)
            self.damaged = self.damaged if digest == event.digest else (*self.damaged, event)
        # No later compaction covers what comes before this one: only the newest one can be undone. Reading it here
        # bounds the memory that the log of a resumed session takes.
        self._read_facts(self._count_unread(min(event.first, first) - 1))

    def _has_reply(self) -> bool:
        return any(entry.role == "assistant" for entry in self._unread)


def groups_containing(entries: Sequence[HistoryEntry], first: int, last: int) -> tuple[tuple[HistoryEntry, ...], ...]:
    """The complete groups that contain messages `first` to `last`, in order."""
    groups = []
    for group in group_exchanges(entries):
        numbers = [entry.number for entry in entries[group.start : group.stop]]
        if numbers[0] <= last and numbers[-1] >= first:
            groups.append(tuple(entries[group.start : group.stop]))
    return tuple(groups)


def render_messages(entries: Iterable[HistoryEntry]) -> str:
    """The messages verbatim; thinking is represented by its length."""
    return "\n\n".join(_message(entry) for entry in entries)


def _message(entry: HistoryEntry) -> str:
    speaker = f"{entry.layer} layer" if entry.is_injected else entry.role
    return f"[m{entry.number}] {speaker}\n" + "\n".join(_block(block) for block in entry.content)


def _block(block: Block) -> str:
    match block:
        case Text():
            return block.text
        case ToolUse():
            return f"calls {block.name} {block.arguments_json}"
        case ToolResult():
            failed = " (error)" if block.is_error else ""
            return f"result{failed}:\n{result_text(block)}"
        case Thinking():
            return f"({len(block.text)} characters of thinking)"
        case RedactedThinking():
            return "(thinking, redacted)"
        case Image():
            return "(an image)"
        case Opaque():
            return f"({block.kind}, {len(block.raw)} bytes)"
