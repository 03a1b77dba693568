"""How the view of a conversation changes where something leaves it or is mended; the log is never changed."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.prompt import Passage, without_thinking
from holdfast.canonical.transcript import result_id
from holdfast.events.payloads_recovery import Mending, PassagesMended, Splice, ThinkingDropped

Passages = tuple[Passage, ...]


class Mended(msgspec.Struct, frozen=True):
    """The passages, how many of them were sent, and whether any changed that a model has answered to."""

    passages: Passages
    sent: int
    moved: bool


def chosen(passages: Passages, sent: int, choose: Callable[[Passage], Passage | None]) -> tuple[Passages, int]:
    """Every passage kept, changed or dropped as told; the split at `sent` stays where it was."""
    before = tuple(kept for passage in passages[:sent] if (kept := choose(passage)))
    newer = tuple(kept for passage in passages[sent:] if (kept := choose(passage)))
    return before + newer, len(before)


def without_ephemeral(passages: Passages, sent: int, first: int) -> tuple[Passages, int]:
    """Without ephemeral text, from `first` on, and without the thinking that was bound to it."""
    later, later_sent = chosen(
        passages[first:],
        max(0, sent - first),
        lambda passage: None if passage.ephemeral else without_thinking(passage),
    )
    return passages[:first] + later, first + later_sent if sent >= first else sent


def mended(passages: Passages, sent: int, mending: Mending) -> Mended:
    answered = answered_passages(passages)
    match mending:
        case PassagesMended(splices=splices):
            made, made_sent = _spliced(passages, sent, splices)
        case ThinkingDropped(passages=count):
            kept, kept_sent = chosen(passages[:count], min(sent, count), without_thinking)
            made, made_sent = kept + passages[count:], kept_sent + max(0, sent - count)
        case _:
            made, made_sent = passages, sent
    return Mended(made, made_sent, made[:answered] != passages[:answered])


def answered_passages(passages: Sequence[Passage]) -> int:
    """How many leading passages a model has answered to, its answer included."""
    return next((at + 1 for at in range(len(passages) - 1, -1, -1) if passages[at].role == "assistant"), 0)


def newest_question(passages: Sequence[Passage]) -> int:
    """Where the user spoke last; what a tool or a layer said does not count. 0 where nobody has."""
    for at in range(len(passages) - 1, -1, -1):
        one = passages[at]
        if one.role == "user" and not one.injected and any(result_id(block) is None for block in one.content):
            return at
    return 0


def _spliced(passages: Passages, sent: int, splices: Sequence[Splice]) -> tuple[Passages, int]:
    made: list[Passage] = []
    done = 0
    for splice in splices:
        # What a log says is not trusted to be in order: no passage is repeated for it.
        at = min(max(splice.at, done), len(passages))
        made += (*passages[done:at], *splice.passages)
        done = min(at + max(0, splice.removed), len(passages))
    made += passages[done:]
    longer = sum(len(splice.passages) - splice.removed for splice in splices if splice.at < sent)
    return tuple(made), min(max(0, sent + longer), len(made))
