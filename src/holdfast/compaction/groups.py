"""Where a conversation may be cut, and where it is: only between groups, with the newest of them kept."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Message, Text
from holdfast.canonical.prompt import Passage
from holdfast.canonical.transcript import exchange_groups
from holdfast.compaction.values import Cut, Group

RECORD_LAYER = "record"


def is_record(passage: Passage) -> bool:
    return passage.layer == RECORD_LAYER


def records_in_front(passages: Sequence[Passage]) -> int:
    """How many leading passages are what a compaction put there."""
    return next((at for at, passage in enumerate(passages) if not is_record(passage)), len(passages))


def groups_of(passages: Sequence[Passage], tokens: Sequence[int] = ()) -> tuple[Group, ...]:
    """Together all passages. What a layer has said belongs to the message behind it, or else to what is before."""
    spans = [list(span) for span in exchange_groups([Message(one.role, one.content) for one in passages])]
    joined: list[list[int]] = []
    waiting: int | None = None
    for start, stop in spans:
        if all(passage.injected for passage in passages[start:stop]):
            waiting = start if waiting is None else waiting
        elif waiting is not None and not _is_ask(passages[start:stop]) and joined:
            joined[-1][1] = start
            joined.append([start, stop])
            waiting = None
        else:
            joined.append([start if waiting is None else waiting, stop])
            waiting = None
    if waiting is not None:
        if joined:
            joined[-1][1] = len(passages)
        else:
            joined.append([waiting, len(passages)])
    return tuple(Group(start, stop, sum(tokens[start:stop])) for start, stop in joined)


def _is_ask(passages: Sequence[Passage]) -> bool:
    """Whether a person speaks here; results alone are no words of theirs."""
    spoken = (one for one in passages if one.role == "user" and not one.injected)
    return any(isinstance(block, Text) for one in spoken for block in one.content)


def cut_at(passages: Sequence[Passage], tokens: Sequence[int], *, tail_tokens_max: int, unsent: int) -> Cut | None:
    """The cut that keeps as many of the newest groups as the tail has room for, and the newest one in every case.

    Nothing is covered that was not sent yet, which is what stands from `unsent` on. A real message of the user is
    preferred as the first that is kept, where that costs no more than a quarter of the tail. None where there is
    nothing to cover.
    """
    front = records_in_front(passages)
    groups = [group for group in groups_of(passages, tokens) if group.stop > front]
    if not groups:
        return None
    first = len(groups) - 1
    while first > 0 and groups[first - 1].stop > unsent:
        first -= 1
    room = tail_tokens_max - sum(group.tokens for group in groups[first:])
    while first > 0 and groups[first - 1].tokens <= room:
        first -= 1
        room -= groups[first].tokens
    first = _at_an_ask(passages, groups, first, spare=tail_tokens_max // 4, unsent=unsent)
    start, stop = max(front, groups[0].start), groups[first].start
    if stop <= start:
        return None
    numbers = [passage.number for passage in passages[start:stop] if passage.number]
    if not numbers:
        return None
    kept = sum(group.tokens for group in groups[first:])
    return Cut(start, stop, numbers[0], numbers[-1], sum(tokens[start:stop]), kept)


def _at_an_ask(passages: Sequence[Passage], groups: Sequence[Group], first: int, *, spare: int, unsent: int) -> int:
    """The next group in which a person speaks, if little enough stands in front of it."""
    passed = 0
    for at in range(first, len(groups)):
        group = groups[at]
        if _is_ask(passages[group.start : group.stop]):
            return at
        passed += group.tokens
        if passed > spare or group.stop > unsent:
            break
    return first
