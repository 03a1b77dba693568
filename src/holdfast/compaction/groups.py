"""Choose where to cut a conversation: only between exchange groups, always keeping the newest."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Message, Text
from holdfast.canonical.prompt import Passage
from holdfast.canonical.transcript import exchange_groups
from holdfast.compaction.values import Cut, Group

RECORD_LAYER = "record"


def is_record(entry: Passage) -> bool:
    return entry.layer == RECORD_LAYER


def records_in_front(entries: Sequence[Passage]) -> int:
    """How many leading entries are summaries from earlier compactions."""
    return next((index for index, entry in enumerate(entries) if not is_record(entry)), len(entries))


def groups_of(entries: Sequence[Passage], tokens: Sequence[int] = ()) -> tuple[Group, ...]:
    """Partition the history. Injected context belongs to the user message after it, or else to the group before."""
    spans = [list(span) for span in exchange_groups([Message(entry.role, entry.content) for entry in entries])]
    joined: list[list[int]] = []
    injected_start: int | None = None
    for start, stop in spans:
        if all(entry.injected for entry in entries[start:stop]):
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
    return tuple(Group(start, stop, sum(tokens[start:stop])) for start, stop in joined)


def _has_user_text(entries: Sequence[Passage]) -> bool:
    """Whether these entries contain user text, and not only tool results."""
    user_entries = (entry for entry in entries if entry.role == "user" and not entry.injected)
    return any(isinstance(block, Text) for entry in user_entries for block in entry.content)


def cut_at(entries: Sequence[Passage], tokens: Sequence[int], *, tail_tokens_max: int, unsent: int) -> Cut | None:
    """The cut that keeps as many of the newest groups as fit `tail_tokens_max`, and always the newest one.

    Unsent entries, from index `unsent` on, are never covered. The kept part preferably starts with a user message, if
    that drops no more than a quarter of the tail. None if there is nothing to cover.
    """
    front = records_in_front(entries)
    groups = [group for group in groups_of(entries, tokens) if group.stop > front]
    if not groups:
        return None
    first = len(groups) - 1
    # A group that is partly unsent is kept whole: covering a message before it was sent would lose it.
    while first > 0 and groups[first - 1].stop > unsent:
        first -= 1
    room = tail_tokens_max - sum(group.tokens for group in groups[first:])
    while first > 0 and groups[first - 1].tokens <= room:
        first -= 1
        room -= groups[first].tokens
    first = _advance_to_request(entries, groups, first, spare=tail_tokens_max // 4, unsent=unsent)
    start, stop = max(front, groups[0].start), groups[first].start
    if stop <= start:
        return None
    # Number 0 means that an entry is not a message of the log.
    numbers = [entry.number for entry in entries[start:stop] if entry.number]
    if not numbers:
        return None
    kept_tokens = sum(group.tokens for group in groups[first:])
    return Cut(start, stop, numbers[0], numbers[-1], sum(tokens[start:stop]), kept_tokens)


def _advance_to_request(
    entries: Sequence[Passage], groups: Sequence[Group], first: int, *, spare: int, unsent: int
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
