"""Verdicts on random histories of calls: the injected cause is named, and nothing is held that was lost."""

import random
from decimal import Decimal

import pytest
from benchmarks._call_histories import CAUSES, CallHistory, inject_cause, walk_history

from holdfast.catalog.lookup import find_model, shipped_models
from holdfast.catalog.schema import Model
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import CallRecorder, ObservedRequest
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheControlsApplied
from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.ledger.accounting import AccountingState, iter_entries, record_event
from holdfast.ledger.cache.prompt_cache import compute_cache_stats
from holdfast.ledger.cache.verdicts import CachedPrefix, PreparedRequest
from holdfast.stores.memory import MemoryStore
from holdfast.types.prompt import Breakpoint, Plan
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import PrefixDigest, extend_digest_chain
from holdfast.types.usage import Usage


@pytest.mark.parametrize("name", CAUSES)
def test_the_injected_cause_is_named_and_a_loss_is_never_held(name: str) -> None:
    for seed in range(6):
        call = inject_cause(name, seed)
        assert (seed, call.verdict.kind) == (seed, call.expected)
        assert not call.is_wrongly_held
        if call.verdict.lost_tokens:
            assert call.verdict.lost_usd > 0


@pytest.mark.parametrize("seed", range(8))
def test_no_call_is_held_that_read_less_than_was_cached(seed: int) -> None:
    history, calls = walk_history(seed, 10)
    for call, verdict in zip(calls, history.client.verdicts, strict=True):
        assert verdict.kind != "held" or call.usage.cache_read >= call.readable_tokens
        assert verdict.kind == "held" or verdict.read_tokens < verdict.expected_tokens or not verdict.lost_usd
        assert verdict.lost_usd >= 0


def test_breakpoints_would_have_saved_what_unmarked_calls_lost() -> None:
    """The losses of a conversation without breakpoints are its cost minus that of the same one with them."""
    costs = []
    for marks in (False, True):
        history = CallHistory("unmarked", marks=marks)
        history.style, history.hour = "end", False
        for _ in range(5):
            history.send()
            history.client.clock.advance(20)
            history.extend()
        costs.append(sum((entry.record.cost_usd for entry in history.client.entries), Decimal(0)))
        if not marks:
            lost = sum((verdict.lost_usd for verdict in history.client.verdicts), Decimal(0))
            kinds = [verdict.kind for verdict in history.client.verdicts]
    last = history.client.entries[-1].record.usage
    price = find_model("anthropic:claude-sonnet-5-5").prices[-1]
    # What the last marked call writes is for a next call, which these conversations do not have.
    for_later = last.cache_write_5m * (price.cache_write_5m - price.input) / 1_000_000
    assert kinds == ["first_use", *["no_breakpoint"] * 4]
    assert lost == costs[0] - (costs[1] - for_later) > 0


def count_breaks_by_the_old_rule(events: list[Event]) -> tuple[int, int]:
    """Expected invalidations and unexpected breaks as they were counted before verdicts named small losses."""
    state, expected, unexpected = AccountingState(), 0, 0
    for event in events:
        payload = event.payload
        if isinstance(payload, LlmCallCompleted) and payload.usage.tokens_sent and state.cached_prefix is not None:
            request = dict(state.in_progress)[payload.request_id]
            broken = judge_by_the_old_rule(state.cached_prefix, request, payload.usage, find_model(payload.model))
            expected, unexpected = expected + (broken == "expected"), unexpected + (broken == "unexpected")
        state, _ = record_event(state, event, shipped_models())
    return expected, unexpected


def judge_by_the_old_rule(cached: CachedPrefix, request: PreparedRequest, usage: Usage, row: Model) -> str | None:
    if cached.tokens - usage.cache_read < 2_000:
        return None
    if request.planned_change is not None:
        return "expected"
    before, after = cached.settings, request.settings
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    changed |= {"images"} if request.has_images != cached.has_images else set()
    changed |= {"model"} if cached.model != row.id else set()
    if changed & row.cache.invalidates.keys():
        return "expected"
    if request.blocks_shared < request.blocks_before:
        return "unexpected"
    if usage.tokens_sent < row.cache.tokens_min:
        return None
    ttls, idle = row.cache.ttls_seconds, request.at - cached.used_at
    ttl = ttls.get(cached.ttl or "") or min(ttls.values())
    if idle >= ttl or (idle >= min(ttls.values()) and not request.plan.expected_read_tokens):
        return "expected"
    return "unexpected"


def record_random_calls(seed: int) -> list[Event]:
    """Prompts, settings, pauses and reported usage at random, however unlikely; each letter is a block."""
    draw, clock, store = random.Random(seed), ManualClock(1_790_000_000.0), MemoryStore()
    recorder = CallRecorder(
        store, models=shipped_models(), clock=clock, new_id=CountingIds(), warnings=WarningLog("test")
    )
    blocks = "ab"
    for _ in range(12):
        digests: list[PrefixDigest] = []
        for letter in blocks:
            digests.append(extend_digest_chain(digests[-1] if digests else None, "history", letter.encode() * 100))
        model = draw.choice(["claude-sonnet-5-5"] * 6 + ["claude-haiku-4-5"])
        row = find_model(f"anthropic:{model}")
        marked = draw.random() < 0.8
        request = ObservedRequest(
            model=row.id,
            provider="anthropic",
            row=row,
            plan=Plan((Breakpoint(len(blocks) - 1, draw.choice(["5m", "5m", "1h"])),) if marked else ()),
            digests=tuple(digests),
            parameters_digest="",
            body_bytes=100,
            tokens=100,
            settings=draw.choice([()] * 6 + [(("images", "true"),), (("thinking", "{}"),), (("speed", "fast"),)]),
        )
        also = (CacheControlsApplied(reason="as planned"),) if draw.random() < 0.1 else ()
        call = recorder.begin_call(request, *also)
        assert call is not None
        sizes = [draw.choice([0, 300, 1_900, 2_100, 9_000]) for _ in range(3)]
        clock.advance(draw.choice([0, 3]))
        usage = Usage(input=10 + sizes[0], cache_read=sizes[1], cache_write_5m=sizes[2] if marked else 0, output=5)
        if draw.random() < 0.9:
            recorder.complete_call(call, Reply((), "end_turn", usage))
        else:
            recorder.fail_call(call, "network", "cut")
        clock.advance(draw.choice([1, 60, 299, 301, 4_000]))
        blocks = draw.choice([blocks, blocks, blocks[:-1], f"x{blocks[1:]}"]) + draw.choice("cdefgh")
    return list(store.read(recorder.session_id))


def test_the_counters_of_the_seed_are_the_same_as_by_its_old_rule() -> None:
    total_expected = total_unexpected = 0
    histories = [record_random_calls(seed) for seed in range(60)]
    for walk in range(4):
        client = walk_history(walk, 8)[0].client
        histories.append(list(client.store.read(client.recorder.session_id)))
    for events in histories:
        expected, unexpected = count_breaks_by_the_old_rule(events)
        stats = compute_cache_stats(iter_entries(events, shipped_models()))
        assert (stats.expected_invalidations, stats.unexpected_cache_breaks) == (expected, unexpected)
        total_expected, total_unexpected = total_expected + expected, total_unexpected + unexpected
    assert total_expected > 30
    assert total_unexpected > 30
