"""Properties of the layer sizes of any session: a call's layers are those of its blocks, whatever was cut before."""

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


def digest_chains(requests_made: list[tuple[int, list[tuple[str, bytes]]]]) -> list[tuple[int, list[PrefixDigest]]]:
    """For each request, how many blocks it shares with the previous one, and all its blocks."""
    chain: list[PrefixDigest] = []
    chains = []
    for keep, added in requests_made:
        chain = chain[:keep]
        shared = len(chain)
        for layer, data in added:
            chain = [*chain, extend_digest_chain(chain[-1] if chain else None, layer, data)]
        chains.append((shared, chain))
    return chains


def make_events(chains: list[tuple[int, list[PrefixDigest]]]) -> list[Event]:
    payloads: list[AnyPayload] = [SessionStarted(model=MODEL, name="n")]
    for number, (shared, chain) in enumerate(chains):
        plan = Plan((Breakpoint(len(chain) - 1),)) if chain else Plan()
        payloads += [
            RequestPrepared(plan, "e", shared, tuple(chain[shared:]), "p", 1),
            LlmCallStarted(MODEL, "anthropic", 0, f"r{number}"),
            completed(f"r{number}"),
        ]
    return [Event(f"e{n:04d}", float(n), "s", "agent", payload) for n, payload in enumerate(payloads)]


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
def test_the_layers_of_a_call_have_the_bytes_of_its_blocks(
    requests_made: list[tuple[int, list[tuple[str, bytes]]]],
) -> None:
    chains = digest_chains(requests_made)
    timeline = CallTimeline("s", shipped_models())
    timeline.apply_events(make_events(chains))
    assert len(timeline.calls) == len(chains)
    for timeline_call, (_, chain) in zip(timeline.calls, chains, strict=True):
        assert timeline_call.request is not None
        sizes: dict[str, int] = {}
        for digest in chain:
            sizes[digest.layer] = sizes.get(digest.layer, 0) + digest.end - digest.start
        assert {layer_size.layer: layer_size.bytes for layer_size in timeline_call.request.layers} == sizes
        assert timeline_call.request.blocks == len(chain)
        assert [breakpoint.prefix_bytes for breakpoint in timeline_call.request.breakpoints] == (
            [chain[-1].end] if chain else []
        )


@given(requests, st.integers(0, 30))
def test_applying_events_in_two_parts_gives_the_same_timeline(
    requests_made: list[tuple[int, list[tuple[str, bytes]]]], cut: int
) -> None:
    events = make_events(digest_chains(requests_made))
    at_once, in_two_parts = CallTimeline("s", shipped_models()), CallTimeline("s", shipped_models())
    at_once.apply_events(events)
    in_two_parts.apply_events(events[:cut])
    in_two_parts.apply_events(events[cut:])
    assert (in_two_parts.calls, in_two_parts.timeline_events, in_two_parts.last_event_id) == (
        at_once.calls,
        at_once.timeline_events,
        at_once.last_event_id,
    )
