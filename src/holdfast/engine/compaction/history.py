"""The messages of a session as logged, independent of what compactions made of its view."""

import threading
from collections.abc import Callable, Iterable, Sequence

from holdfast.compaction.view import group_exchanges
from holdfast.events.log import Event
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.events.payloads.session import ContextInjected, MessageAppended, MessagesWithdrawn
from holdfast.extraction.facts import ConversationFacts, FactsReader
from holdfast.extraction.tool_calls import result_text
from holdfast.types.blocks import Block, Image, Opaque, RedactedThinking, Text, Thinking, ToolResult, ToolUse
from holdfast.types.json_encoding import canonical_json, sha256_hex
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


def messages_digest(entries: Sequence[HistoryEntry]) -> str:
    """The digest by which a compaction identifies the messages that it covers."""
    return sha256_hex(canonical_json([(entry.number, entry.role, entry.content) for entry in entries]))


class LoggedMessages:
    """The messages of one log, each read only once; safe to use from several threads.

    Of messages before the view only the extracted facts are kept, so that a summary costs time for new messages only.
    `damaged` are compactions whose covered messages no longer match their digest, as far as the log was read.
    """

    def __init__(self, read: ReadLog) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.damaged: tuple[ContextCompacted, ...] = ()
        self._last_event_id: str | None = None
        self._number = 0
        self._facts = FactsReader()
        self._recent: list[HistoryEntry] = []
        self._first = 1

    def read_range(self, first: int, last: int) -> tuple[ConversationFacts, list[HistoryEntry]]:
        """The facts of all messages up to `last`, and the messages from `first` to `last`."""
        with self._lock:
            if first < self._first:
                self._reset()
            self._catch_up()
            start = next((at for at, message in enumerate(self._recent) if message.number >= first), len(self._recent))
            for entry in self._recent[:start]:
                self._facts.read(entry)
            del self._recent[:start]
            self._first = first
            in_range = [message for message in self._recent if message.number <= last]
            facts = self._facts.copy()
            for entry in in_range:
                facts.read(entry)
            return facts.facts(), in_range

    def read_all(self) -> tuple[HistoryEntry, ...]:
        return read_logged_messages(self._read(None))

    def _catch_up(self) -> None:
        for event in self._read(self._last_event_id):
            self._last_event_id = event.id
            if isinstance(event.payload, MessagesWithdrawn) and self._first > 1 and not self._has_reply():
                # The withdrawal reaches into messages of which only facts are kept: start over.
                self._reset()
                return self._catch_up()
            if isinstance(event.payload, ContextCompacted):
                self._compare(event.payload)
            self._number += _append_entry(self._recent, event, self._number + 1)
        return None

    def _compare(self, event: ContextCompacted) -> None:
        covered = [entry for entry in self._recent if event.first <= entry.number <= event.last]
        if event.strategy == "checkpoint" and event.first >= self._first and messages_digest(covered) != event.digest:
            self.damaged = (*self.damaged, event)

    def _has_reply(self) -> bool:
        return any(entry.role == "assistant" for entry in self._recent)


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
