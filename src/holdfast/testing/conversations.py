"""Which earlier request a request should have extended, and whether it did.

A request belongs to the conversation with which it shares most of what was said, the reply included, wherever that
stands: so a conversation is known again although its first bytes have moved. Requests in which the assistant has not
spoken begin a conversation of their own. Nothing is asked of these, but that a time of day in their tools or system
prompt is not what keeps them from reading what an earlier conversation has written.

A request that leaves another one only in its last turn, with no more turns than that one, is a second branch of the
conversation (a parallel question, another try) and no break.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from holdfast.canonical.blocks import Block, Text, ToolUse
from holdfast.canonical.pieces import shared_links
from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.ledger.breaks import Comparison, compare
from holdfast.ledger.requests import SentRequest, read_sent, start_of
from holdfast.testing.calls import ModelCall, price_of
from holdfast.testing.causes import is_time, likely_cause


class PrefixBreak(msgspec.Struct, frozen=True):
    """`call` should have extended `call_before`, both counted from 1. `opens` says that it began a conversation."""

    call: int
    call_before: int
    comparison: Comparison
    cause: str | None
    opens: bool = False


def prefix_breaks(calls: Iterable[ModelCall], models: Models) -> tuple[PrefixBreak, ...]:
    seen = Seen(models)
    return tuple(found for call in calls if (found := seen.add(call)) is not None)


class Seen:
    """The requests so far; `tips` are those that no other has extended."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._said: dict[str, list[_Said]] = {}
        self._tips: dict[str, list[_Said]] = {}

    def add(self, call: ModelCall) -> PrefixBreak | None:
        """Where the call does not extend the one that it goes on from, that is told."""
        try:
            said = _Said(call, read_sent(call.body, model=call.model, models=self._models))
        except UserError:
            # Whatever the simulator took for a request, it is none that could be laid beside another.
            return None
        earlier = self._said.setdefault(call.model, [])
        tips = self._tips.setdefault(call.model, [])
        extended = next((tip for tip in reversed(tips) if said.extends(tip)), None)
        found = self._moved(said, extended, earlier)
        if extended is not None:
            tips.remove(extended)
        tips.append(said)
        earlier.append(said)
        return found

    def _moved(self, said: "_Said", extended: "_Said | None", earlier: Sequence["_Said"]) -> PrefixBreak | None:
        if extended is None and not said.turns:
            return self._moved_head(said, earlier)
        before = extended or _goes_on_from(said, earlier)
        if before is None or said.branches_off(before):
            return None
        comparison = self._compared(before, said)
        if comparison.held:
            return None
        cause = likely_cause(before.request, said.request, comparison.moved) if comparison.moved else None
        return PrefixBreak(said.call.number, before.call.number, comparison, cause)

    def _moved_head(self, said: "_Said", earlier: Sequence["_Said"]) -> PrefixBreak | None:
        heads = {one.head: one for one in earlier}
        if said.head in heads:
            return None
        for before in reversed(heads.values()):
            comparison = self._compared(before, said)
            moved = comparison.moved
            if moved and moved.place != "messages" and is_time(before.request, said.request, moved):
                cause = likely_cause(before.request, said.request, moved)
                return PrefixBreak(said.call.number, before.call.number, comparison, cause, opens=True)
        return None

    def _compared(self, before: "_Said", said: "_Said") -> Comparison:
        tokens = before.request.scroll.tokens_total
        price = price_of(said.call.model, self._models, at=said.call.at, tokens=tokens)
        return compare(before.request, said.request, price)


class _Said:
    """A request, and what is said in it."""

    def __init__(self, call: ModelCall, request: SentRequest) -> None:
        self.call = call
        self.request = request

    @cached_property
    def blocks(self) -> Counter[tuple[str | None, bytes]]:
        """What was said, by whom, in whatever order."""
        pieces = self.request.scroll.pieces
        return Counter((piece.role, piece.data) for piece in pieces if piece.place == "messages")

    @cached_property
    def roles(self) -> tuple[str | None, ...]:
        return tuple(piece.role for piece in self.request.scroll.pieces)

    @cached_property
    def turns(self) -> int:
        """How often the assistant has spoken."""
        spoken = [role == "assistant" for role in self.roles]
        return sum(now and not before for before, now in zip([False, *spoken], spoken, strict=False))

    @cached_property
    def head(self) -> str:
        """A digest of the tools and the system prompt."""
        end = start_of(self.request, "messages")
        return self.request.scroll.links[end - 1].digest if end else ""

    @cached_property
    def of_assistant(self) -> frozenset[str]:
        passages = self.request.wire.prompt.passages
        return frozenset(
            known
            for passage in passages
            if passage.role == "assistant"
            for block in passage.content
            if (known := _known_by(block))
        )

    def extends(self, before: "_Said") -> bool:
        return self.shared(before) == len(before.request.scroll.links)

    def shared(self, before: "_Said") -> int:
        return shared_links(before.request.scroll.links, self.request.scroll.links)

    def in_common(self, before: "_Said") -> int:
        """How many blocks of the other, and of the reply to it, are said here, too."""
        replied = sum(_known_by(block) in self.of_assistant for block in before.call.reply)
        return (self.blocks & before.blocks).total() + replied

    def branches_off(self, before: "_Said") -> bool:
        """Whether only the last turn of the other is another one here."""
        last_turn = max((at + 1 for at, role in enumerate(before.roles) if role == "assistant"), default=0)
        last_turn = max(last_turn, start_of(before.request, "messages"))
        shared = self.shared(before)
        return self.turns <= before.turns and last_turn <= shared < len(before.roles)


def _goes_on_from(said: _Said, earlier: Sequence[_Said]) -> _Said | None:
    """The earlier request with most in common; of equals the one with the longest common start, then the shortest."""

    def nearness(one: _Said) -> tuple[int, int, int, int]:
        return said.in_common(one), said.shared(one), -one.blocks.total(), one.call.number

    nearest = max(earlier, key=nearness, default=None)
    if nearest is None:
        return None
    in_common = said.in_common(nearest)
    smaller = min(nearest.blocks.total() + len(nearest.call.reply), said.blocks.total())
    return nearest if in_common and 2 * in_common >= smaller else None


def _known_by(block: Block) -> str:
    match block:
        case Text(text=text):
            return text
        case ToolUse(id=id):
            return id
        case _:
            return ""
