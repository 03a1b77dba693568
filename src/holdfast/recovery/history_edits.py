"""Rewrite the view of a conversation during recovery: drop or repair history entries. The log never changes."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.events.payloads.recovery import ContextRepaired, Splice, ThinkingDropped, ViewRepair
from holdfast.types.blocks import get_result_call_id
from holdfast.types.prompt import HistoryEntry, drop_thinking

HistoryEntries = tuple[HistoryEntry, ...]


class RepairedView(msgspec.Struct, frozen=True):
    """The entries, how many of them were sent, and whether an entry changed that a model has already replied to."""

    entries: HistoryEntries
    sent_count: int
    has_prefix_changed: bool


def filter_entries(
    entries: HistoryEntries, sent: int, choose: Callable[[HistoryEntry], HistoryEntry | None]
) -> tuple[HistoryEntries, int]:
    """Keep, replace or drop each entry as `choose` returns; `sent` is adjusted to the same split point."""
    sent_entries = tuple(replacement for entry in entries[:sent] if (replacement := choose(entry)))
    unsent = tuple(replacement for entry in entries[sent:] if (replacement := choose(entry)))
    return sent_entries + unsent, len(sent_entries)


def drop_ephemeral(entries: HistoryEntries, sent: int, first: int) -> tuple[HistoryEntries, int]:
    """Drop ephemeral entries from index `first` on, and the thinking that depended on them."""
    later, later_sent = filter_entries(
        entries[first:], max(0, sent - first), lambda entry: None if entry.ephemeral else drop_thinking(entry)
    )
    return entries[:first] + later, first + later_sent if sent >= first else sent


def apply_repair(entries: HistoryEntries, sent: int, repair: ViewRepair) -> RepairedView:
    replied = count_answered_entries(entries)
    match repair:
        case ContextRepaired(splices=splices):
            repaired, repaired_sent = _apply_splices(entries, sent, splices)
        case ThinkingDropped(entry_count=count):
            kept, kept_sent = filter_entries(entries[:count], min(sent, count), drop_thinking)
            repaired, repaired_sent = kept + entries[count:], kept_sent + max(0, sent - count)
        case _:
            repaired, repaired_sent = entries, sent
    # Only a change before the last reply touches bytes that a provider has cached.
    return RepairedView(repaired, repaired_sent, repaired[:replied] != entries[:replied])


def count_answered_entries(entries: Sequence[HistoryEntry]) -> int:
    """How many leading entries a model has replied to, including the reply."""
    return next((index + 1 for index in range(len(entries) - 1, -1, -1) if entries[index].role == "assistant"), 0)


def find_last_user_message(entries: Sequence[HistoryEntry]) -> int:
    """The index of the last user message, not counting tool results and injected context; 0 if there is none."""
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        has_own_content = any(get_result_call_id(block) is None for block in entry.content)
        if entry.role == "user" and not entry.is_injected and has_own_content:
            return index
    return 0


def _apply_splices(entries: HistoryEntries, sent: int, splices: Sequence[Splice]) -> tuple[HistoryEntries, int]:
    result: list[HistoryEntry] = []
    done = 0
    for splice in splices:
        # A damaged log may have splices out of order; clamping makes sure that no entry is repeated.
        start = min(max(splice.at, done), len(entries))
        result += (*entries[done:start], *splice.entries)
        done = min(start + max(0, splice.removed), len(entries))
    result += entries[done:]
    growth = sum(len(splice.entries) - splice.removed for splice in splices if splice.at < sent)
    return tuple(result), min(max(0, sent + growth), len(result))
