"""Logs with model calls as hypothesis strategies: events that sessions record, and some that none would."""

from decimal import Decimal

from hypothesis import strategies as st
from tests.support.strategies import events_with

from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ModelSwitched,
    RequestPrepared,
)
from holdfast.events.payloads.session import (
    EpochOpened,
    MessageAppended,
    MessagesWithdrawn,
    ParentSession,
    SessionStarted,
    SkillLoaded,
    TurnCancelled,
    TurnStarted,
)
from holdfast.events.payloads.union import AnyPayload
from holdfast.types.blocks import Base64Source, Image, Message, make_user_message
from holdfast.types.prompt import Breakpoint, Parameters, Plan
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage

SESSIONS = ("x", "y", "")
START = 1_800_000_000.0

names = st.sampled_from([None, "", "a", "b\x00"])
models = st.sampled_from(["anthropic:claude-sonnet-5-5", "openai:gpt-5", "nobody:knows"])
tokens = st.sampled_from([0, 1, 700, 2_048, 40_000])
usages = st.builds(Usage, tokens, tokens, tokens, tokens, st.just(0), tokens)
amounts = st.sampled_from(["0", "0.0125", "0.1", "-0.02", "0.00000000000049", "123456.5"]).map(Decimal)
requests = st.sampled_from(["r1", "r2", "r3"])
latencies = st.sampled_from([0, 1, 2_000, 70_000])
digests = st.builds(
    PrefixDigest,
    st.sampled_from(["tools", "tools", "history"]),
    st.sampled_from([0, 100]),
    st.just(200),
    st.text("ab", max_size=2),
)
plans = st.builds(
    Plan,
    breakpoints=st.lists(st.builds(Breakpoint, st.integers(0, 40), st.sampled_from(["5m", "1h"])), max_size=2).map(
        tuple
    ),
)
image = Message("user", (Image(Base64Source("image/png", "AAAA")),))

payloads: st.SearchStrategy[AnyPayload] = st.one_of(
    st.builds(
        SessionStarted,
        model=models,
        name=st.sampled_from([None, "n"]),
        parent=st.sampled_from([None, ParentSession("x", "c", "x", 1)]),
        simulated=st.sampled_from([False, False, True]),
        user_id=names,
        team_id=names,
    ),
    st.builds(
        GatewayForwarded, reason=st.just("b"), confidence=st.just(1.0), key_id=names, user_id=names, team_id=names
    ),
    st.builds(
        SkillLoaded,
        skill_id=st.sampled_from(["pdf", "xlsx"]),
        skill_version=st.just("1"),
        load_reason=st.sampled_from(["always", "on_demand"]),
        load_size_tokens=tokens,
        source=st.just("global"),
    ),
    st.sampled_from([TurnStarted("h", 10), TurnCancelled("timeout", 0, 0)]),
    st.builds(
        RequestPrepared,
        plan=plans,
        encoding=st.just("e"),
        shared_blocks=st.integers(0, 3),
        digests=st.lists(digests, max_size=2).map(tuple),
        parameters_digest=st.just("d"),
        body_bytes=st.just(10),
        settings=st.sampled_from([(), (("tool_choice", "any"),)]),
    ),
    st.builds(
        LlmCallStarted, model=models, provider=st.just("anthropic"), estimated_input_tokens=tokens, request_id=requests
    ),
    st.builds(
        LlmCallCompleted,
        model=models,
        provider=st.sampled_from(["anthropic", "openai"]),
        usage=usages,
        cost_usd=amounts,
        pricing_version=st.just("v"),
        latency_ms=latencies,
        stop_reason=st.just("end_turn"),
        produced_tool_calls=st.just(0),
        produced_thinking_blocks=st.just(0),
        request_id=requests,
        retry_count=st.integers(0, 2),
    ),
    st.builds(
        LlmCallFailed,
        model=models,
        provider=st.just("anthropic"),
        error_class=st.sampled_from(["rate_limit", "network"]),
        error_message_redacted=st.just("no"),
        retry_count=st.integers(0, 2),
        latency_ms=latencies,
        request_id=requests,
        usage=st.just(Usage()) | usages,
        cost_usd=amounts,
    ),
    st.builds(
        CachePinged,
        kind=st.just("refresh"),
        model=models,
        ttl=st.just("5m"),
        usage=usages,
        cost_usd=amounts,
        pricing_version=st.just("v"),
        sent_at=st.just(START),
        breakpoint_block=st.sampled_from([None, 3]),
    ),
    st.builds(
        ExplicitCacheChanged,
        action=st.just("created"),
        name=st.just("c"),
        model=models,
        digest=st.just("d"),
        tokens=tokens,
        expires_at=st.just(START),
        cost_usd=amounts,
        storage_cost_usd=amounts,
    ),
    st.builds(EpochOpened, epoch=st.integers(1, 3), system=st.just(()), tools=st.just(())),
    st.builds(
        ModelSwitched,
        before=models,
        after=models,
        parameters=st.just(Parameters("m", 10)),
        prompt_tokens=tokens,
        cache_miss_cost_usd=amounts,
    ),
    st.sampled_from(
        [
            MessageAppended(make_user_message("so?")),
            MessageAppended(image),
            MessagesWithdrawn("refused"),
            TurnCancelled("timeout", 1, 2),
        ]
    ),
)

ODD = (LlmCallCompleted, LlmCallFailed, CachePinged, ExplicitCacheChanged, RequestPrepared)
"""Payload types of which values are also generated that no session records."""


@st.composite
def call_events(draw: st.DrawFn) -> Event:
    """An event of one of a few sessions, within three days or at any time."""
    if draw(st.integers(0, 9)) == 0:
        odd = draw(st.sampled_from(ODD).flatmap(events_with))
        return Event(odd.id, odd.at, draw(st.sampled_from(SESSIONS)), odd.actor, odd.payload, version=1)
    at = START + draw(st.sampled_from([0.0, 5.0, 400.0, 50_000.0, 90_000.0, 200_000.0]))
    return Event("", at, draw(st.sampled_from(SESSIONS)), "agent", draw(payloads))
