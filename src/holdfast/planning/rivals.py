"""Where other agents, frameworks and proxies put their marks on Anthropic's wire; by what they do, not by their code.

`M` are messages, "user" messages include those that hold only results of tools, as they do on the wire.
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

GURU_ANCHOR_EVERY_MESSAGES = 19
AUTOCACHE_MARKS_MAX = 3


def nothing(moment: Moment, calls: int) -> Placed:
    return ()


def tail_only(moment: Moment, calls: int) -> Placed:
    return ((tail_of(moment.scroll), "5m"),)


def litellm(moment: Moment, calls: int) -> Placed:
    """Every system block in order, then the last message, until there is no mark left."""
    return (*((piece, "5m") for piece in _marked_in(moment.scroll, "system")), (tail_of(moment.scroll), "5m"))


def litellm_recipe(moment: Moment, calls: int) -> Placed:
    """The system prompt for an hour, the last two messages for five minutes."""
    scroll = moment.scroll
    yield last_of(scroll, "system"), "1h"
    for start, stop in _messages_backwards(scroll, 2):
        yield last_markable(scroll.pieces, start, stop, place="messages"), "5m"


def inspect_ai(moment: Moment, calls: int) -> Placed:
    """Tools, system, the last block and the one before it."""
    scroll = moment.scroll
    tail = tail_of(scroll)
    second = None if tail is None else last_markable(scroll.pieces, 0, tail, place="messages")
    return ((last_of(scroll, "tools"), "5m"), (last_of(scroll, "system"), "5m"), (second, "5m"), (tail, "5m"))


def goose(moment: Moment, calls: int) -> Placed:
    """Tools, system, the last two user messages."""
    yield last_of(moment.scroll, "tools"), "5m"
    yield last_of(moment.scroll, "system"), "5m"
    for piece in _user_tails(moment.scroll):
        yield piece, "5m"


def opencode(moment: Moment, calls: int) -> Placed:
    """Tools, system, the last text that a person wrote."""
    scroll = moment.scroll
    return ((last_of(scroll, "tools"), "5m"), (last_of(scroll, "system"), "5m"), (last_said_by_person(scroll), "5m"))


def aider(moment: Moment, calls: int) -> Placed:
    """System and all that was done before the current exchange, which itself is never marked."""
    scroll = moment.scroll
    said = last_said_by_person(scroll)
    done = None if said is None else last_markable(scroll.pieces, 0, said, place="messages")
    return ((last_of(scroll, "system"), "5m"), (done, "5m"))


def claude_code(ttl: Ttl) -> Placing:
    """Two system blocks, the last two user messages; never the tools."""

    def placing(moment: Moment, calls: int) -> Placed:
        for piece in _user_tails(moment.scroll):
            yield piece, ttl
        for piece in reversed(_marked_in(moment.scroll, "system")):
            yield piece, ttl

    return placing


def autocache(moment: Moment, calls: int) -> Placed:
    """System and tools for an hour where each is long enough, then the earliest long texts; nothing ever moves."""
    scroll, enough = moment.scroll, moment.rules.tokens_min
    placed: list[tuple[int | None, Ttl]] = []
    places: tuple[Place, ...] = ("system", "tools")
    for place in places:
        tokens = sum(
            scroll.tokens[index] for index in range(scroll.stable_count) if scroll.pieces[index].place == place
        )
        if tokens >= enough:
            placed.append((last_of(scroll, place), "1h"))
    for index in range(scroll.stable_count, len(scroll.pieces)):
        if len(placed) >= AUTOCACHE_MARKS_MAX:
            break
        piece = scroll.pieces[index]
        if scroll.tokens[index] >= enough and piece.markable and piece.data.startswith(TEXT_STARTS):
            placed.append((index, "5m"))
    return placed


class ContextGuru(FixedPolicy):
    """The last message, the last one that the call before had sent too, and anchors at every nineteenth message."""

    def __init__(self, name: str) -> None:
        super().__init__(name, self._place)
        self._sent: tuple[int, str] | None = None

    def _place(self, moment: Moment, calls: int) -> Placed:
        scroll = moment.scroll
        tail = tail_of(scroll)
        before = self._sent
        held = before is not None and before[0] < len(scroll.links) and scroll.links[before[0]].digest == before[1]
        self._sent = None if tail is None else (tail, scroll.links[tail].digest)
        placed: list[tuple[int | None, Ttl]] = [(tail, "5m"), (before[0] if before and held else None, "5m")]
        ends = list(_message_ends(scroll))
        for end in ends[GURU_ANCHOR_EVERY_MESSAGES::GURU_ANCHOR_EVERY_MESSAGES][:2]:
            placed.append((last_markable(scroll.pieces, 0, end, place="messages"), "5m"))
        return placed


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
"""By name; `metis` and `langchain-clearing` also lay the prompt out in their own way, which is not told here."""


def rivals() -> tuple[Policy, ...]:
    """Fresh ones, for one session."""
    return tuple(make(name) for name, make in RIVALS.items())


def compared() -> dict[str, Policy]:
    """Every policy that is not ours, fresh, by name: fixed schedules and rivals."""
    return {policy.name: policy for policy in (*fixed_schedules(), *rivals())}


def _marked_in(scroll: Scroll, place: Place) -> list[int]:
    pieces = scroll.pieces
    return [index for index in range(scroll.stable_count) if pieces[index].place == place and pieces[index].markable]


def _messages_backwards(scroll: Scroll, count: int) -> Iterator[tuple[int, int]]:
    """The last messages as ranges of pieces, the newest first."""
    pieces, stop = scroll.pieces, len(scroll.pieces)
    for _ in range(count):
        start = stop
        while start and pieces[start - 1].place == "messages" and pieces[start - 1].role == pieces[stop - 1].role:
            start -= 1
        if start == stop:
            return
        yield start, stop
        stop = start


def _user_tails(scroll: Scroll) -> Iterator[int]:
    """Where the last two user messages end."""
    for start, stop in _messages_backwards(scroll, 4):
        if scroll.pieces[start].role == "user":
            piece = last_markable(scroll.pieces, start, stop, place="messages")
            if piece is not None:
                yield piece


def _message_ends(scroll: Scroll) -> Iterator[int]:
    pieces = scroll.pieces
    for index in range(len(pieces)):
        if pieces[index].place == "messages" and (
            index + 1 == len(pieces) or pieces[index + 1].role != pieces[index].role
        ):
            yield index + 1
