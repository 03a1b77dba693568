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
REQUEST_HEAD = ADAPTER.request_head(Parameters(MODEL.name, 100))
EPHEMERAL_TEXT = "leaves with its turn"


class WireBreakpoint(msgspec.Struct):
    ttl: str = "5m"


class WireBlock(msgspec.Struct):
    type: str = "tool"
    text: str = ""
    cache_control: WireBreakpoint | None = None


class WireMessage(msgspec.Struct):
    role: str
    content: list[WireBlock]


class WireBody(msgspec.Struct):
    messages: list[WireMessage] = []
    tools: list[WireBlock] = []
    system: list[WireBlock] = []


decode = msgspec.json.Decoder(WireBody).decode


def check_body(body: bytes, rules: CacheRules) -> None:
    """The body has nothing that the provider refuses, and no breakpoint that would be useless."""
    request = decode(body)
    blocks = [*request.tools, *request.system, *(block for message in request.messages for block in message.content)]
    with_breakpoint = [(block, block.cache_control) for block in blocks if block.cache_control is not None]
    assert len(with_breakpoint) <= rules.breakpoints_max
    ttls = [breakpoint.ttl for _, breakpoint in with_breakpoint]
    assert ttls == sorted(ttls), "1h comes before 5m"
    for block, _ in with_breakpoint:
        assert block.type not in ("thinking", "redacted_thinking")
        assert block.type != "text" or block.text.strip()
        assert EPHEMERAL_TEXT not in block.text
    assert not request.messages or request.messages[-1].role == "user"


def encode_entries(*entries: HistoryEntry) -> tuple[EncodedBlock, ...]:
    return ADAPTER.encode_segment(Segment("history", Stability.GROWING, "messages", entries=entries))


SHORT, LONG = Text("go on"), Text("words " * 40)
BLANK = (Text(""), Text(" \n"))
USER_BLOCKS: tuple[Block, ...] = (SHORT, LONG, *BLANK, ToolResult("t", (SHORT,)), ToolResult("t", ()))
REPLY_BLOCKS: tuple[Block, ...] = (
    SHORT,
    LONG,
    *BLANK,
    Thinking("hm", "s"),
    RedactedThinking("x"),
    ToolUse("t", "look", "{}"),
)
USER = tuple(encode_entries(HistoryEntry("user", (block,))) for block in USER_BLOCKS)
ASSISTANT = tuple(encode_entries(HistoryEntry("assistant", (block,))) for block in REPLY_BLOCKS)
EPHEMERAL = tuple(
    encode_entries(HistoryEntry("user", (Text(EPHEMERAL_TEXT),), "note", stability, ephemeral=True))
    for stability in (Stability.GROWING, Stability.VOLATILE)
)
VOLATILE = encode_entries(HistoryEntry("user", (Text("Now it is noon."),), "clock", Stability.VOLATILE))
LOOK = build_tool_spec("look", "Looks.", {"type": "object"})
PREFIX_SEGMENTS = tuple(
    ADAPTER.encode_segment(segment)
    for segment in (
        Segment("tools", Stability.FROZEN, "tools", tools=(LOOK,)),
        Segment("preset", Stability.FROZEN, "system", system=(LONG,)),
        Segment("project", Stability.EPOCH, "system", system=(SHORT, Text(""))),
        Segment("volatile", Stability.VOLATILE, "system", system=(Text("Now it is noon."),)),
    )
)
OTHER_POLICIES: tuple[Callable[[], CachePolicy], ...] = (
    lambda: FixedPolicy("frozen", place_on_user_text),
    lambda: FixedPolicy("sparse", place_sparse_anchors),
    lambda: FixedPolicy("hour", prefix_and_tail_rule("1h", "5m")),
    *(partial(make, name) for name, make in RIVAL_POLICIES.items()),
)
RULES = tuple(
    msgspec.structs.replace(MODEL.cache, breakpoints_max=limit, tokens_min=tokens_min)
    for limit in (1, 2, 3, 4, 4, 4)
    for tokens_min in (0, 400)
)


def build_turn(rng: Random) -> list[EncodedBlock]:
    """The blocks that a call adds: a reply of any blocks, then user content; it may end with ephemeral text."""
    new = [encoded for _ in range(rng.randrange(4)) for encoded in rng.choice(ASSISTANT)]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 3, 22))):
        new += rng.choice(USER)
    new += VOLATILE if rng.random() < 0.2 else ()
    return [*new, *(rng.choice(EPHEMERAL) if rng.random() < 0.3 else ())]


def build_learned_parameters(rng: Random) -> LearnedParameters:
    idle_times = count_idle_times(rng.choice((1.0, 400.0, 4_000.0)) for _ in range(rng.randrange(4)))
    return LearnedParameters(
        IdleTimesByCause(user=idle_times), rng.randrange(9), rng.randrange(400), UpgradeBelief(rng.uniform(-6, 6))
    )


def plan_session(rng: Random) -> int:
    """Check one session under our plan, the plain ones and a rival policy; return how many bodies were checked."""
    rules, learned, rival = rng.choice(RULES), build_learned_parameters(rng), rng.choice(OTHER_POLICIES)()
    request_buffer = RequestBuffer(ADAPTER, len)
    request_buffer.extend(
        encoded for prefix_segment in PREFIX_SEGMENTS if rng.random() < 0.7 for encoded in prefix_segment
    )
    memory, at, checked = CacheMemory(upgrade_belief=learned.upgrade_belief), 1_000.0, 0
    for number in range(rng.randrange(1, 4)):
        if request_buffer.first_ephemeral is not None:
            request_buffer.truncate(request_buffer.first_ephemeral)
        if number and rng.random() < 0.05:
            memory = forget_cached(memory)
        request_buffer.extend(build_turn(rng))
        idle = rng.choice((1.0, 290.0, 400.0, 5_000.0))
        at += idle
        moment = PlanningMoment(
            request_buffer, rules, PRICE, at, idle if number else None, "user" if number else "start"
        )
        breakpoints = plan_adaptive_call(moment, memory, learned, keep_small=rng.random() < 0.5).plan.breakpoints
        for planned in (
            breakpoints,
            place_breakpoints(request_buffer, rules).breakpoints,
            place_breakpoints(request_buffer, rules, profile="seed").breakpoints,
        ):
            check_body(request_buffer.render(REQUEST_HEAD, planned), rules)
            assert all(
                request_buffer.blocks[breakpoint.block_index].stability < Stability.VOLATILE for breakpoint in planned
            )
        check_legal(rival.choose_breakpoints(moment), request_buffer, rules)
        read_tokens = rng.randrange(request_buffer.tokens_total + 1)
        memory = memory_after_call(
            memory,
            RequestRecord(at, breakpoints, len(request_buffer.blocks)),
            Usage(cache_read=read_tokens, cache_write_5m=9),
        )
        checked += 4
    return checked


def check_legal(breakpoints: Sequence[Breakpoint], request_buffer: RequestBuffer, rules: CacheRules) -> None:
    assert len(breakpoints) <= rules.breakpoints_max
    assert [breakpoint.ttl for breakpoint in breakpoints] == sorted(breakpoint.ttl for breakpoint in breakpoints)
    assert all(request_buffer.blocks[breakpoint.block_index].accepts_breakpoint for breakpoint in breakpoints)


def test_no_plan_in_ten_thousand_sessions_is_refused() -> None:
    rng = Random(20_261_116)
    assert sum(plan_session(rng) for _ in range(CASES)) > 3 * CASES


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_plan_is_refused(rng: Random) -> None:
    assert plan_session(rng)


LOW = msgspec.structs.replace(MODEL.cache, tokens_min=20)
SETTING = ReplaySetting(MODEL, LOW, LOW, keep_alive=True, open_after_seconds=600.0)
CALLS_AT_ONCE = 100


def upgrade_policy() -> CachePolicy:
    """A policy that upgrades the prefix, the last reply included, to one hour after every call."""
    ping = Ping(285.0, "1h", "idle")
    return FixedPolicy("upgrading", prefix_and_tail_rule("5m", "5m"), lambda moment, count: None if count else ping)


def build_recording(rng: Random, calls: int) -> Recording:
    """Calls that continue the conversation or restart it, with replies of any blocks or none."""
    recorded_calls = []
    for number in range(calls):
        question = HistoryEntry("user", (rng.choice(USER_BLOCKS[:2]),))
        reply_content = tuple(rng.choice(REPLY_BLOCKS) for _ in range(rng.randrange(4)))
        reply = HistoryEntry("assistant", reply_content) if reply_content else None
        at, kept_entries = number * 300.0, 0 if rng.random() < 0.4 else None
        recorded_calls.append(
            RecordedCall(at, at + 1, "user" if number else "start", (question,), reply, kept_entries=kept_entries)
        )
    return Recording("r", "rules " * 20, (LOOK,) if rng.random() < 0.5 else (), tuple(recorded_calls))


def replay_with_pings(rng: Random, calls: int, policy: CachePolicy) -> int:
    """Replay some calls, each with its ping; return how many bodies were checked."""
    bodies: list[bytes] = []
    Replayer(build_recording(rng, calls), SETTING, lambda policy, at, body: bodies.append(body)).replay((policy,))
    for body in bodies:
        check_body(body, LOW)
    return len(bodies)


def test_no_ping_in_ten_thousand_is_refused() -> None:
    rng = Random(20_261_117)
    checked = sum(replay_with_pings(rng, CALLS_AT_ONCE, upgrade_policy()) for _ in range(CASES // CALLS_AT_ONCE))
    assert checked == 2 * CASES


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_no_ping_is_refused(rng: Random, calls: int) -> None:
    adaptive = AdaptivePolicy(LearnedParameters(IdleTimesByCause(user=count_idle_times([400.0] * 50))), keep_alive=True)
    assert replay_with_pings(rng, calls, upgrade_policy()) == 2 * calls
    assert replay_with_pings(rng, calls, adaptive) >= calls


def test_the_checker_detects_what_a_provider_refuses() -> None:
    block_with_breakpoint = b'{"type":"text","text":"%b","cache_control":{"type":"ephemeral"%b}}'
    body = b'{"messages":[{"role":"%b","content":[%b]}]}'
    good, hour = block_with_breakpoint % (b"a", b""), block_with_breakpoint % (b"a", b',"ttl":"1h"')
    check_body(body % (b"user", hour + b"," + good), MODEL.cache)
    for bad in (
        body % (b"assistant", good),
        body % (b"user", good + b"," + hour),
        body % (b"user", b",".join([good] * 5)),
        body % (b"user", block_with_breakpoint % (b" ", b"")),
        body % (b"user", block_with_breakpoint % (EPHEMERAL_TEXT.encode(), b"")),
        body % (b"user", good.replace(b'"text","text"', b'"thinking","thinking"')),
    ):
        with pytest.raises(AssertionError):
            check_body(bad, MODEL.cache)
