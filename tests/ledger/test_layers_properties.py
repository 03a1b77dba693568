"""What holds for the strata of any session: a prompt's layers are those of its blocks, whatever was cut before."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.lookup import shipped_models
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted, RequestPrepared
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.layers import CallTimeline
from holdfast.types.prompt import Breakpoint, Plan
from holdfast.types.request_buffer import PrefixDigest, extend_digest_chain
from holdfast.types.usage import Usage

MODEL = "anthropic:claude-sonnet-5-5"

blocks = st.tuples(st.sampled_from(["tools", "preset", "history", "volatile"]), st.binary(min_size=1, max_size=9))
requests = st.lists(st.tuples(st.integers(0, 8), st.lists(blocks, max_size=4)), min_size=1, max_size=8)


def chains_of(told: list[tuple[int, list[tuple[str, bytes]]]]) -> list[tuple[int, list[PrefixDigest]]]:
    """For each request how many blocks it shares with the one before, and all its blocks."""
    chain: list[PrefixDigest] = []
    made = []
    for keep, added in told:
        chain = chain[:keep]
        shared = len(chain)
        for layer, data in added:
            chain = [*chain, extend_digest_chain(chain[-1] if chain else None, layer, data)]
        made.append((shared, chain))
    return made


def played(chains: list[tuple[int, list[PrefixDigest]]]) -> list[Event]:
    payloads: list[AnyPayload] = [SessionStarted(model=MODEL, name="n")]
    for number, (shared, chain) in enumerate(chains):
        plan = Plan((Breakpoint(len(chain) - 1),)) if chain else Plan()
        payloads += [
            RequestPrepared(plan, "e", shared, tuple(chain[shared:]), "p", 1),
            LlmCallStarted(MODEL, "anthropic", 0, f"r{number}"),
            completed(f"r{number}"),
        ]
    return [Event(f"e{n:04d}", float(n), "s", "agent", it) for n, it in enumerate(payloads)]


def completed(request_id: str) -> LlmCallCompleted:
    return LlmCallCompleted(
        model=MODEL,
        provider="anthropic",
        usage=Usage(input=10, output=1),
        cost_usd=Decimal(0),
        pricing_version="v",
        latency_ms=1,
        stop_reason="end_turn",
        produced_tool_calls=0,
        produced_thinking_blocks=0,
        request_id=request_id,
    )


@given(requests)
def test_the_layers_of_a_call_are_the_bytes_of_its_blocks(told: list[tuple[int, list[tuple[str, bytes]]]]) -> None:
    chains = chains_of(told)
    strata = CallTimeline("s", shipped_models())
    strata.apply_events(played(chains))
    assert len(strata.calls) == len(chains)
    for stratum, (_, chain) in zip(strata.calls, chains, strict=True):
        assert stratum.request is not None
        sizes: dict[str, int] = {}
        for link in chain:
            sizes[link.layer] = sizes.get(link.layer, 0) + link.end - link.start
        assert {band.layer: band.bytes for band in stratum.request.layers} == sizes
        assert stratum.request.blocks == len(chain)
        assert [mark.prefix_bytes for mark in stratum.request.breakpoints] == ([chain[-1].end] if chain else [])


@given(requests, st.integers(0, 30))
def test_events_taken_in_two_parts_tell_the_same(told: list[tuple[int, list[tuple[str, bytes]]]], cut: int) -> None:
    events = played(chains_of(told))
    whole, parts = CallTimeline("s", shipped_models()), CallTimeline("s", shipped_models())
    whole.apply_events(events)
    parts.apply_events(events[:cut])
    parts.apply_events(events[cut:])
    assert (parts.calls, parts.timeline_events, parts.last_event_id) == (
        whole.calls,
        whole.timeline_events,
        whole.last_event_id,
    )
