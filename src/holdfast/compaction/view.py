"""Where to cut a conversation, and its view after a compaction: pure functions of its history entries and the event.

Cuts are only between exchange groups, and the newest group is always kept.
"""

from collections.abc import Sequence

import msgspec

from holdfast.compaction.models import CompactionCut, ExchangeGroup
from holdfast.events.payloads.compaction import ClearedImage, ClearedResult, ContextCompacted
from holdfast.types.blocks import Message, Text, ToolResult
from holdfast.types.prompt import HistoryEntry, drop_thinking
from holdfast.types.transcript import split_into_exchanges

SUMMARY_LAYER = "record"
GROUPS_KEPT = 8
"""An agent reads many files at once and then works on them for some calls: what it has just read is not removed yet."""


def apply_compaction(entries: Sequence[HistoryEntry], event: ContextCompacted) -> tuple[HistoryEntry, ...]:
    """The summary and the kept entries; if the strategy only clears, all entries with some tool results replaced."""
    if event.strategy in ("clear", "lossless"):
        return drop_stale_thinking(clear_batch(entries, event.cleared, event.cleared_images), event)
    in_view = [entry for entry in entries if entry.number > event.last or entry.number in event.kept]
    kept = clear_batch([entry for entry in in_view if not is_summary(entry)], event.cleared, event.cleared_images)
    summary = HistoryEntry(event.role, tuple(Text(part.text) for part in event.segments), layer=SUMMARY_LAYER)
    return (summary, *drop_stale_thinking(kept, event))


def drop_stale_thinking(entries: Sequence[HistoryEntry], event: ContextCompacted) -> tuple[HistoryEntry, ...]:
    """Drop thinking if the event says so; of unsent entries, which are never covered, nothing else changes."""
    # Providers sign thinking together with the prefix it was made for and reject it after another one (decision 0014).
    if not event.thinking_dropped:
        return tuple(entries)
    return tuple(remaining for entry in entries if (remaining := drop_thinking(entry)) is not None)


def summary_as_user_message(entries: tuple[HistoryEntry, ...]) -> tuple[HistoryEntry, ...]:
    """Give the summary the role `user`, for a provider that does not accept system messages in the history."""
    if not entries or not is_summary(entries[0]) or entries[0].role != "system":
        return entries
    return (msgspec.structs.replace(entries[0], role="user"), *entries[1:])


def clear_batch(
    entries: Sequence[HistoryEntry], results: Sequence[ClearedResult], images: Sequence[ClearedImage] = ()
) -> tuple[HistoryEntry, ...]:
    """The entries with these tool results and images replaced by their texts; the others are the same objects."""
    texts = {result.tool_use_id: result.text for result in results}
    by_number: dict[int, list[ClearedImage]] = {}
    for image in images:
        by_number.setdefault(image.number, []).append(image)
    return tuple(_clear_images(clear_results(entry, texts), by_number.get(entry.number, ())) for entry in entries)


def _clear_images(entry: HistoryEntry, images: Sequence[ClearedImage]) -> HistoryEntry:
    texts = {image.index: image.text for image in images}
    if not texts:
        return entry
    content = (Text(texts[index]) if index in texts else block for index, block in enumerate(entry.content))
    return msgspec.structs.replace(entry, content=tuple(content))


def clear_results(entry: HistoryEntry, texts: dict[str, str]) -> HistoryEntry:
    if not any(isinstance(block, ToolResult) and block.tool_use_id in texts for block in entry.content):
        return entry
    content = (
        msgspec.structs.replace(block, content=(Text(texts[block.tool_use_id]),))
        if isinstance(block, ToolResult) and block.tool_use_id in texts
        else block
        for block in entry.content
    )
    return msgspec.structs.replace(entry, content=tuple(content))


def is_summary(entry: HistoryEntry) -> bool:
    return entry.layer == SUMMARY_LAYER


def count_leading_summaries(entries: Sequence[HistoryEntry]) -> int:
    """How many leading entries are summaries from earlier compactions."""
    return next((index for index, entry in enumerate(entries) if not is_summary(entry)), len(entries))


def group_exchanges(entries: Sequence[HistoryEntry], tokens: Sequence[int] = ()) -> tuple[ExchangeGroup, ...]:
    """Partition the history. Injected context belongs to the user message after it, or else to the group before."""
    spans = [list(span) for span in split_into_exchanges([Message(entry.role, entry.content) for entry in entries])]
    joined: list[list[int]] = []
    injected_start: int | None = None
    for start, stop in spans:
        if all(entry.is_injected for entry in entries[start:stop]):
            injected_start = start if injected_start is None else injected_start
        elif injected_start is not None and not _has_user_text(entries[start:stop]) and joined:
            joined[-1][1] = start
            joined.append([start, stop])
            injected_start = None
        else:
            joined.append([start if injected_start is None else injected_start, stop])
            injected_start = None
    if injected_start is not None:
        if joined:
            joined[-1][1] = len(entries)
        else:
            joined.append([injected_start, len(entries)])
    return tuple(ExchangeGroup(start, stop, sum(tokens[start:stop])) for start, stop in joined)


def _has_user_text(entries: Sequence[HistoryEntry]) -> bool:
    """Whether these entries contain user text, and not only tool results."""
    user_entries = (entry for entry in entries if entry.role == "user" and not entry.is_injected)
    return any(isinstance(block, Text) for entry in user_entries for block in entry.content)


def choose_cut(
    entries: Sequence[HistoryEntry],
    tokens: Sequence[int],
    *,
    tail_tokens_max: int,
    unsent: int,
    covered_until: int = 0,
    groups_tokens_max: int = 0,
) -> CompactionCut | None:
    """The cut that keeps as many of the newest groups as fit `tail_tokens_max`, and always the newest one.

    The newest GROUPS_KEPT groups are kept even if they take up to `groups_tokens_max` tokens.

    Unsent entries, from index `unsent` on, are never covered. The kept part preferably starts with a user message, if
    that drops no more than a quarter of the tail. None if there is nothing to cover after `covered_until`, the last
    message that an earlier summary covers: messages before it are only kept for the files in them.
    """
    front = count_leading_summaries(entries)
    groups = [group for group in group_exchanges(entries, tokens) if group.stop > front]
    if not groups:
        return None
    first = find_first_kept(groups, tail_tokens_max=tail_tokens_max, unsent=unsent, groups_tokens_max=groups_tokens_max)
    first = _advance_to_request(entries, groups, first, spare=tail_tokens_max // 4, unsent=unsent)
    start, stop = max(front, groups[0].start), groups[first].start
    numbers = [entry.number for entry in entries[start:stop] if entry.number > covered_until]
    if not numbers:
        return None
    return CompactionCut(start, stop, numbers[0], numbers[-1])


def find_first_kept(
    groups: Sequence[ExchangeGroup], *, tail_tokens_max: int, unsent: int, groups_tokens_max: int
) -> int:
    """The index of the first group that is kept, if the kept part may start with any message."""
    first = len(groups) - 1
    # A group that is partly unsent is kept whole: covering a message before it was sent would lose it.
    while first > 0 and groups[first - 1].stop > unsent:
        first -= 1
    kept_tokens = sum(group.tokens for group in groups[first:])
    while first > max(0, len(groups) - GROUPS_KEPT) and kept_tokens + groups[first - 1].tokens <= groups_tokens_max:
        first -= 1
        kept_tokens += groups[first].tokens
    room = tail_tokens_max - kept_tokens
    while first > 0 and groups[first - 1].tokens <= room:
        first -= 1
        room -= groups[first].tokens
    return first


def _advance_to_request(
    entries: Sequence[HistoryEntry], groups: Sequence[ExchangeGroup], first: int, *, spare: int, unsent: int
) -> int:
    """The next group with user text, if at most `spare` tokens come before it."""
    skipped_tokens = 0
    for index in range(first, len(groups)):
        group = groups[index]
        if _has_user_text(entries[group.start : group.stop]):
            return index
        skipped_tokens += group.tokens
        if skipped_tokens > spare or group.stop > unsent:
            break
    return first
