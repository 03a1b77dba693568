"""No plan and no ping makes a request that the provider refuses: ten thousand random sessions."""

import datetime
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.catalog.lookup import find_model, price_at
from holdfast.catalog.schema import CacheRules
from holdfast.planning.adaptive_policy import AdaptivePolicy, plan_adaptive_call
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.planning.idle_times import IdleTimesByCause, count_idle_times
from holdfast.planning.learned import (
    CacheMemory,
    LearnedParameters,
    RequestRecord,
    UpgradeBelief,
    forget_cached,
    memory_after_call,
)
from holdfast.planning.policies.fixed import FixedPolicy, place_on_user_text, place_sparse_anchors, prefix_and_tail_rule
from holdfast.planning.policies.peers import RIVAL_POLICIES
from holdfast.planning.policy import CachePolicy, Ping, PlanningMoment
from holdfast.providers.registry import get_adapter
from holdfast.replay.playback import Replayer, ReplaySetting
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Block, RedactedThinking, Text, Thinking, ToolResult, ToolUse
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Segment, Stability
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer
from holdfast.types.tool_spec import build_tool_spec
from holdfast.types.usage import Usage

CASES = 10_000
MODEL = find_model("anthropic:claude-sonnet-5-5")
PRICE = price_at(MODEL, datetime.date(2026, 11, 15), 1000)
ADAPTER = get_adapter("anthropic")
OPENING = ADAPTER.request_head(Parameters(MODEL.name, 100))
LEAVING = "leaves with its turn"


class WireMark(msgspec.Struct):
    ttl: str = "5m"


class WireBlock(msgspec.Struct):
    type: str = "tool"
    text: str = ""
    cache_control: WireMark | None = None


class WireMessage(msgspec.Struct):
    role: str
    content: list[WireBlock]


class WireBody(msgspec.Struct):
    messages: list[WireMessage] = []
    tools: list[WireBlock] = []
    system: list[WireBlock] = []


decode = msgspec.json.Decoder(WireBody).decode


def check_body(body: bytes, rules: CacheRules) -> None:
    """What the provider refuses, and what would be marked in vain, is not in it."""
    read = decode(body)
    blocks = [*read.tools, *read.system, *(block for message in read.messages for block in message.content)]
    marked = [(block, block.cache_control) for block in blocks if block.cache_control is not None]
    assert len(marked) <= rules.breakpoints_max
    lifetimes = [mark.ttl for _, mark in marked]
    assert lifetimes == sorted(lifetimes), "1h comes before 5m"
    for block, _ in marked:
        assert block.type not in ("thinking", "redacted_thinking")
        assert block.type != "text" or block.text.strip()
        assert LEAVING not in block.text
    assert not read.messages or read.messages[-1].role == "user"


def pieces_of(*passages: HistoryEntry) -> tuple[EncodedBlock, ...]:
    return ADAPTER.encode_segment(Segment("history", Stability.GROWING, "messages", entries=passages))


SHORT, LONG = Text("go on"), Text("words " * 40)
BLANK = (Text(""), Text(" \n"))
SPOKEN: tuple[Block, ...] = (SHORT, LONG, *BLANK, ToolResult("t", (SHORT,)), ToolResult("t", ()))
REPLIED: tuple[Block, ...] = (
    SHORT,
    LONG,
    *BLANK,
    Thinking("hm", "s"),
    RedactedThinking("x"),
    ToolUse("t", "look", "{}"),
)
USER = tuple(pieces_of(HistoryEntry("user", (block,))) for block in SPOKEN)
ASSISTANT = tuple(pieces_of(HistoryEntry("assistant", (block,))) for block in REPLIED)
EPHEMERAL = tuple(
    pieces_of(HistoryEntry("user", (Text(LEAVING),), "note", stability, ephemeral=True))
    for stability in (Stability.GROWING, Stability.VOLATILE)
)
VOLATILE = pieces_of(HistoryEntry("user", (Text("Now it is noon."),), "clock", Stability.VOLATILE))
LOOK = build_tool_spec("look", "Looks.", {"type": "object"})
HEADS = tuple(
    ADAPTER.encode_segment(segment)
    for segment in (
        Segment("tools", Stability.FROZEN, "tools", tools=(LOOK,)),
        Segment("preset", Stability.FROZEN, "system", system=(LONG,)),
        Segment("project", Stability.EPOCH, "system", system=(SHORT, Text(""))),
        Segment("volatile", Stability.VOLATILE, "system", system=(Text("Now it is noon."),)),
    )
)
OTHERS: tuple[Callable[[], CachePolicy], ...] = (
    lambda: FixedPolicy("frozen", place_on_user_text),
    lambda: FixedPolicy("sparse", place_sparse_anchors),
    lambda: FixedPolicy("hour", prefix_and_tail_rule("1h", "5m")),
    *(partial(make, name) for name, make in RIVAL_POLICIES.items()),
)
RULES = tuple(
    msgspec.structs.replace(MODEL.cache, breakpoints_max=marks, tokens_min=floor)
    for marks in (1, 2, 3, 4, 4, 4)
    for floor in (0, 400)
)


def turn(chance: Random) -> list[EncodedBlock]:
    """What a call adds: a reply of any blocks, then what a user says; it may end with text that leaves."""
    new = [piece for _ in range(chance.randrange(4)) for piece in chance.choice(ASSISTANT)]
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 3, 22))):
        new += chance.choice(USER)
    new += VOLATILE if chance.random() < 0.2 else ()
    return [*new, *(chance.choice(EPHEMERAL) if chance.random() < 0.3 else ())]


def known(chance: Random) -> LearnedParameters:
    gaps = count_idle_times(chance.choice((1.0, 400.0, 4_000.0)) for _ in range(chance.randrange(4)))
    return LearnedParameters(
        IdleTimesByCause(person=gaps), chance.randrange(9), chance.randrange(400), UpgradeBelief(chance.uniform(-6, 6))
    )


def plan_session(chance: Random) -> int:
    """One session under our plan, the plain ones and a rival; says how many bodies were checked."""
    rules, learned, rival = chance.choice(RULES), known(chance), chance.choice(OTHERS)()
    scroll = RequestBuffer(ADAPTER, len)
    scroll.extend(piece for head in HEADS if chance.random() < 0.7 for piece in head)
    memory, at, checked = CacheMemory(upgrade_belief=learned.upgrade_belief), 1_000.0, 0
    for number in range(chance.randrange(1, 4)):
        if scroll.first_ephemeral is not None:
            scroll.truncate(scroll.first_ephemeral)
        if number and chance.random() < 0.05:
            memory = forget_cached(memory)
        scroll.extend(turn(chance))
        idle = chance.choice((1.0, 290.0, 400.0, 5_000.0))
        at += idle
        moment = PlanningMoment(scroll, rules, PRICE, at, idle if number else None, "person" if number else "start")
        marks = plan_adaptive_call(moment, memory, learned, keep_small=chance.random() < 0.5).plan.breakpoints
        for planned in (
            marks,
            place_breakpoints(scroll, rules).breakpoints,
            place_breakpoints(scroll, rules, profile="seed").breakpoints,
        ):
            check_body(scroll.render(OPENING, planned), rules)
            assert all(scroll.blocks[mark.block_index].stability < Stability.VOLATILE for mark in planned)
        check_legal(rival.choose_breakpoints(moment), scroll, rules)
        read = chance.randrange(scroll.tokens_total + 1)
        memory = memory_after_call(
            memory, RequestRecord(at, marks, len(scroll.blocks)), Usage(cache_read=read, cache_write_5m=9)
        )
        checked += 4
    return checked


def check_legal(marks: Sequence[Breakpoint], scroll: RequestBuffer, rules: CacheRules) -> None:
    assert len(marks) <= rules.breakpoints_max
    assert [mark.ttl for mark in marks] == sorted(mark.ttl for mark in marks)
    assert all(scroll.blocks[mark.block_index].accepts_breakpoint for mark in marks)


def test_no_plan_in_ten_thousand_sessions_is_refused() -> None:
    chance = Random(20_261_116)
    assert sum(plan_session(chance) for _ in range(CASES)) > 3 * CASES


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_plan_is_refused(chance: Random) -> None:
    assert plan_session(chance)


LOW = msgspec.structs.replace(MODEL.cache, tokens_min=20)
SETTING = ReplaySetting(MODEL, LOW, LOW, keep_alive=True, open_after_seconds=600.0)
CALLS_AT_ONCE = 100


def upgrading() -> CachePolicy:
    """After every call what was sent and the reply to it, behind which something must stand, is kept for an hour."""
    ping = Ping(285.0, "1h", "idle")
    return FixedPolicy("upgrading", prefix_and_tail_rule("5m", "5m"), lambda moment, count: None if count else ping)


def recorded(chance: Random, calls: int) -> Recording:
    """Calls that go on with the conversation or begin it anew, and replies of any blocks, or none."""
    found = []
    for number in range(calls):
        spoken = HistoryEntry("user", (chance.choice(SPOKEN[:2]),))
        said = tuple(chance.choice(REPLIED) for _ in range(chance.randrange(4)))
        reply = HistoryEntry("assistant", said) if said else None
        at, kept = number * 300.0, 0 if chance.random() < 0.4 else None
        found.append(RecordedCall(at, at + 1, "person" if number else "start", (spoken,), reply, kept_entries=kept))
    return Recording("r", "rules " * 20, (LOOK,) if chance.random() < 0.5 else (), tuple(found))


def ping_calls(chance: Random, calls: int, policy: CachePolicy) -> int:
    """Plays so many calls, each with its ping; says how many bodies were checked."""
    bodies: list[bytes] = []
    Replayer(recorded(chance, calls), SETTING, lambda policy, at, body: bodies.append(body)).replay((policy,))
    for body in bodies:
        check_body(body, LOW)
    return len(bodies)


def test_no_ping_in_ten_thousand_is_refused() -> None:
    chance = Random(20_261_117)
    checked = sum(ping_calls(chance, CALLS_AT_ONCE, upgrading()) for _ in range(CASES // CALLS_AT_ONCE))
    assert checked == 2 * CASES


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_no_ping_is_refused(chance: Random, calls: int) -> None:
    ours = AdaptivePolicy(LearnedParameters(IdleTimesByCause(person=count_idle_times([400.0] * 50))), keep_alive=True)
    assert ping_calls(chance, calls, upgrading()) == 2 * calls
    assert ping_calls(chance, calls, ours) >= calls


def test_what_a_provider_refuses_is_noticed() -> None:
    marked = b'{"type":"text","text":"%b","cache_control":{"type":"ephemeral"%b}}'
    body = b'{"messages":[{"role":"%b","content":[%b]}]}'
    good, hour = marked % (b"a", b""), marked % (b"a", b',"ttl":"1h"')
    check_body(body % (b"user", hour + b"," + good), MODEL.cache)
    for bad in (
        body % (b"assistant", good),
        body % (b"user", good + b"," + hour),
        body % (b"user", b",".join([good] * 5)),
        body % (b"user", marked % (b" ", b"")),
        body % (b"user", marked % (LEAVING.encode(), b"")),
        body % (b"user", good.replace(b'"text","text"', b'"thinking","thinking"')),
    ):
        with pytest.raises(AssertionError):
            check_body(bad, MODEL.cache)
