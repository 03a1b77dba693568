"""What was really said in a session, message by message, whatever its view has become."""

import threading
from collections.abc import Callable, Iterable, Sequence

from holdfast.canonical.blocks import Text
from holdfast.canonical.encoding import canonical_json, digest
from holdfast.canonical.prompt import Passage, Stability
from holdfast.compaction.groups import groups_of
from holdfast.events.envelope import Event
from holdfast.events.payloads import ContextInjected, MessageAppended, MessagesWithdrawn
from holdfast.events.payloads_compaction import ContextCompacted
from holdfast.extraction.facts import Facts, FactsReader

ReadLog = Callable[[str | None], Iterable[Event]]
"""A session's events, from the one behind the given one on."""


def logged(events: Iterable[Event]) -> tuple[Passage, ...]:
    """Every message of the log under its number, less those that were withdrawn."""
    entries: list[Passage] = []
    number = 0
    for event in events:
        number += _append_entry(entries, event, number + 1)
    return tuple(entries)


def _append_entry(entries: list[Passage], event: Event, number: int) -> bool:
    """Whether the event has said something; that is the newest of the passages now, under this number."""
    match event.payload:
        case MessageAppended(message=message):
            entries.append(Passage(message.role, message.content, number=number))
        case ContextInjected(place="messages") as injection:
            entries.append(
                Passage(
                    "user",
                    (Text(injection.text),),
                    injection.layer,
                    Stability.VOLATILE,
                    ephemeral=injection.ephemeral,
                    number=number,
                )
            )
        case MessagesWithdrawn():
            while entries and entries[-1].role != "assistant":
                entries.pop()
            return False
        case _:
            return False
    return True


def digest_of(entries: Sequence[Passage]) -> str:
    """By which a compaction names what it covers."""
    return digest(canonical_json([(entry.number, entry.role, entry.content) for entry in entries]))


class Said:
    """The messages of one log, each read once however often they are asked for; safe to use from several threads.

    What is in front of the view is remembered by its facts alone, so that a record takes as long as what is new.
    `damaged` are compactions whose messages are no longer those that they covered, as far as the log was read.
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
        self._recent: list[Passage] = []
        self._first = 1

    def covered(self, first: int, last: int) -> tuple[Facts, list[Passage]]:
        """The facts of everything up to message `last`, and the messages from `first` on that are among it."""
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

    def everything(self) -> tuple[Passage, ...]:
        return logged(self._read(None))

    def _catch_up(self) -> None:
        for event in self._read(self._last_event_id):
            self._last_event_id = event.id
            if isinstance(event.payload, MessagesWithdrawn) and self._first > 1 and not self._has_reply():
                # It reaches behind what is remembered by its facts.
                self._reset()
                return self._catch_up()
            if isinstance(event.payload, ContextCompacted):
                self._compare(event.payload)
            self._number += _append_entry(self._recent, event, self._number + 1)
        return None

    def _compare(self, event: ContextCompacted) -> None:
        covered = [entry for entry in self._recent if event.first <= entry.number <= event.last]
        if event.strategy == "checkpoint" and event.first >= self._first and digest_of(covered) != event.digest:
            self.damaged = (*self.damaged, event)

    def _has_reply(self) -> bool:
        return any(entry.role == "assistant" for entry in self._recent)


def groups_behind(entries: Sequence[Passage], first: int, last: int) -> tuple[tuple[Passage, ...], ...]:
    """The whole groups that messages `first` to `last` stand in, in order."""
    groups = []
    for group in groups_of(entries):
        numbers = [entry.number for entry in entries[group.start : group.stop]]
        if numbers[0] <= last and numbers[-1] >= first:
            groups.append(tuple(entries[group.start : group.stop]))
    return tuple(groups)
