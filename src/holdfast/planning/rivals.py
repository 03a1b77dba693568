"""Where other agents, frameworks and proxies place Anthropic breakpoints; by their behaviour, not from their code.

"User" messages include those that hold only tool results, as on the wire.
"""

from collections.abc import Callable, Iterator, Mapping

from holdfast.canonical.prompt import Place, Ttl
from holdfast.canonical.scroll import Scroll
from holdfast.planning.fixed import (
    TEXT_STARTS,
    FixedPolicy,
    Placed,
    Placing,
    fixed_schedules,
    head_and_tail,
    last_of,
    last_said_by_person,
    tail_of,
)
from holdfast.planning.marks import last_markable
from holdfast.planning.policy import Moment, Policy

# Observed behaviour of the tools themselves, not a choice of ours.
GURU_ANCHOR_EVERY_MESSAGES = 19
AUTOCACHE_MARKS_MAX = 3


def nothing(moment: Moment, calls: int) -> Placed:
    return ()


def tail_only(moment: Moment, calls: int) -> Placed:
    return ((tail_of(moment.scroll), "5m"),)


def litellm(moment: Moment, calls: int) -> Placed:
    """Every system block in order, then the last message, until no breakpoint is left."""
    return (*((block, "5m") for block in _marked_in(moment.scroll, "system")), (tail_of(moment.scroll), "5m"))


def litellm_recipe(moment: Moment, calls: int) -> Placed:
    """The system prompt for an hour, the last two messages for five minutes."""
    buffer = moment.scroll
    yield last_of(buffer, "system"), "1h"
    for start, stop in _messages_backwards(buffer, 2):
        yield last_markable(buffer.pieces, start, stop, place="messages"), "5m"


def inspect_ai(moment: Moment, calls: int) -> Placed:
    """Tools, system, the last block and the one before it."""
    buffer = moment.scroll
    tail = tail_of(buffer)
    second = None if tail is None else last_markable(buffer.pieces, 0, tail, place="messages")
    return ((last_of(buffer, "tools"), "5m"), (last_of(buffer, "system"), "5m"), (second, "5m"), (tail, "5m"))


def goose(moment: Moment, calls: int) -> Placed:
    """Tools, system, the last two user messages."""
    yield last_of(moment.scroll, "tools"), "5m"
    yield last_of(moment.scroll, "system"), "5m"
    for block in _user_tails(moment.scroll):
        yield block, "5m"


def opencode(moment: Moment, calls: int) -> Placed:
    """Tools, system, the last text block that a person wrote."""
    buffer = moment.scroll
    return ((last_of(buffer, "tools"), "5m"), (last_of(buffer, "system"), "5m"), (last_said_by_person(buffer), "5m"))


def aider(moment: Moment, calls: int) -> Placed:
    """System, and the end of the history before the current exchange, which itself never gets a breakpoint."""
    buffer = moment.scroll
    person_text = last_said_by_person(buffer)
    before_exchange = None if person_text is None else last_markable(buffer.pieces, 0, person_text, place="messages")
    return ((last_of(buffer, "system"), "5m"), (before_exchange, "5m"))


def claude_code(ttl: Ttl) -> Placing:
    """Two system blocks, the last two user messages; never the tools."""

    def placing(moment: Moment, calls: int) -> Placed:
        for block in _user_tails(moment.scroll):
            yield block, ttl
        for block in reversed(_marked_in(moment.scroll, "system")):
            yield block, ttl

    return placing


def autocache(moment: Moment, calls: int) -> Placed:
    """System and tools for an hour where each is long enough, then the earliest long texts; breakpoints never move."""
    buffer, tokens_min = moment.scroll, moment.rules.tokens_min
    candidates: list[tuple[int | None, Ttl]] = []
    sections: tuple[Place, ...] = ("system", "tools")
    for section in sections:
        tokens = sum(
            buffer.tokens[index] for index in range(buffer.stable_count) if buffer.pieces[index].place == section
        )
        if tokens >= tokens_min:
            candidates.append((last_of(buffer, section), "1h"))
    for index in range(buffer.stable_count, len(buffer.pieces)):
        if len(candidates) >= AUTOCACHE_MARKS_MAX:
            break
        block = buffer.pieces[index]
        if buffer.tokens[index] >= tokens_min and block.markable and block.data.startswith(TEXT_STARTS):
            candidates.append((index, "5m"))
    return candidates


class ContextGuru(FixedPolicy):
    """The last message, the previous call's last message, and anchors at every nineteenth message."""

    def __init__(self, name: str) -> None:
        super().__init__(name, self._place)
        self._sent: tuple[int, str] | None = None

    def _place(self, moment: Moment, calls: int) -> Placed:
        buffer = moment.scroll
        tail = tail_of(buffer)
        previous = self._sent
        unchanged = (
            previous is not None and previous[0] < len(buffer.links) and buffer.links[previous[0]].digest == previous[1]
        )
        self._sent = None if tail is None else (tail, buffer.links[tail].digest)
        candidates: list[tuple[int | None, Ttl]] = [
            (tail, "5m"),
            (previous[0] if previous and unchanged else None, "5m"),
        ]
        ends = list(_message_ends(buffer))
        for end in ends[GURU_ANCHOR_EVERY_MESSAGES::GURU_ANCHOR_EVERY_MESSAGES][:2]:
            candidates.append((last_markable(buffer.pieces, 0, end, place="messages"), "5m"))
        return candidates


RIVALS: Mapping[str, Callable[[str], Policy]] = {
    "none": lambda name: FixedPolicy(name, nothing),
    "automatic": lambda name: FixedPolicy(name, tail_only),
    "langchain": lambda name: FixedPolicy(name, head_and_tail("5m", "5m")),
    "litellm": lambda name: FixedPolicy(name, litellm),
    "litellm-1h-5m": lambda name: FixedPolicy(name, litellm_recipe),
    "inspect-ai": lambda name: FixedPolicy(name, inspect_ai),
    "goose": lambda name: FixedPolicy(name, goose),
    "opencode": lambda name: FixedPolicy(name, opencode),
    "aider": lambda name: FixedPolicy(name, aider),
    "claude-code-5m": lambda name: FixedPolicy(name, claude_code("5m")),
    "claude-code-1h": lambda name: FixedPolicy(name, claude_code("1h")),
    "metis": lambda name: FixedPolicy(name, head_and_tail("5m", "5m")),
    "autocache": lambda name: FixedPolicy(name, autocache),
    "context-guru": ContextGuru,
    "langchain-clearing": lambda name: FixedPolicy(name, head_and_tail("5m", "5m")),
}
"""By name; `metis` and `langchain-clearing` also lay the prompt out differently, which `replay.layouts` does."""


def rivals() -> tuple[Policy, ...]:
    """New instances, for one session."""
    return tuple(make(name) for name, make in RIVALS.items())


def compared() -> dict[str, Policy]:
    """New instances of every policy that ours is compared with, by name."""
    return {policy.name: policy for policy in (*fixed_schedules(), *rivals())}


def _marked_in(buffer: Scroll, section: Place) -> list[int]:
    blocks = buffer.pieces
    return [index for index in range(buffer.stable_count) if blocks[index].place == section and blocks[index].markable]


def _messages_backwards(buffer: Scroll, count: int) -> Iterator[tuple[int, int]]:
    """The last messages as ranges of blocks, newest first."""
    blocks, stop = buffer.pieces, len(buffer.pieces)
    for _ in range(count):
        start = stop
        while start and blocks[start - 1].place == "messages" and blocks[start - 1].role == blocks[stop - 1].role:
            start -= 1
        if start == stop:
            return
        yield start, stop
        stop = start


def _user_tails(buffer: Scroll) -> Iterator[int]:
    """The last blocks of the last two user messages."""
    for start, stop in _messages_backwards(buffer, 4):
        if buffer.pieces[start].role == "user":
            block = last_markable(buffer.pieces, start, stop, place="messages")
            if block is not None:
                yield block


def _message_ends(buffer: Scroll) -> Iterator[int]:
    blocks = buffer.pieces
    for index in range(len(blocks)):
        if blocks[index].place == "messages" and (
            index + 1 == len(blocks) or blocks[index + 1].role != blocks[index].role
        ):
            yield index + 1
