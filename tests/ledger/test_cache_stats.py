"""Cache counters of a session, folded from its calls: in the session, from the store, and in the command."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.main import command
from holdfast.clock import CountingIds, ManualClock
from holdfast.errors import UserError
from holdfast.ledger.accounting import LedgerEntry, iter_entries
from holdfast.ledger.cache.prompt_cache import (
    CacheBreakEvent,
    CacheStatsState,
    PromptCacheStats,
    TokenStats,
    compute_cache_stats,
    compute_token_stats,
    find_cache_break,
    fold_cache_stats,
    iter_cache_breaks,
    rank_cache_breaks,
)
from holdfast.ledger.cache.verdicts import BreakClass
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

SONNET, GPT = "anthropic:claude-sonnet-5-5", "openai:gpt-5.5"
PROMPT = "Follow the rules of the house. " * 2000


class SimulatedSession:
    def __init__(self) -> None:
        self.clock, self.store = ManualClock(), MemoryStore()
        self.options: Options = {"store": self.store, "transport": self.provider(), "clock": self.clock}
        self.created: Options = {**self.options, "model": SONNET, "system_prompt": PROMPT, "new_id": CountingIds()}

    def provider(self) -> SimulatedProvider:
        return SimulatedProvider(clock=self.clock, script='{"content": "Yes."}\n' * 50)

    @property
    def entries(self) -> list[LedgerEntry]:
        (row,) = self.store.sessions()
        return list(iter_entries(self.store.read(row.id), shipped_models()))


async def test_requests_and_their_reads_and_writes_are_counted() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        assert session.cache.stats() == PromptCacheStats()
        await session.send("So?")
        await session.send("So?")
        stats = session.cache.stats()
    first, second = (entry.record.usage for entry in simulated.entries)
    assert stats == PromptCacheStats(
        tracked_requests=2,
        total_cache_creation_input_tokens=first.cache_write + second.cache_write,
        total_cache_read_input_tokens=second.cache_read,
        last_cache_creation_input_tokens=second.cache_write,
        last_cache_read_input_tokens=second.cache_read,
        last_request_hash=simulated.entries[-1].prompt_digest,
        last_cache_source="provider",
    )
    assert stats.total_cache_read_input_tokens > 10_000


async def test_an_expired_cache_is_an_expected_invalidation_and_a_lost_one_an_unexpected_break() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        await session.send("So?")
        simulated.clock.advance(301)
        await session.send("And now?")
        paused = session.cache.stats()
    assert (paused.expected_invalidations, paused.unexpected_cache_breaks) == (1, 0)
    assert paused.last_break_reason == "ttl_expired: idle for 301 s, TTL 300 s"
    options: Options = {**simulated.options, "transport": simulated.provider()}
    async with Session.resume(session.id, **options) as again:
        await again.send("So?")
        lost = again.cache.stats()
    assert (lost.expected_invalidations, lost.unexpected_cache_breaks) == (1, 1)
    assert lost.tracked_requests == 3
    expected, unexpected = iter_cache_breaks(simulated.entries)
    verdict = simulated.entries[-1].verdict
    assert verdict is not None
    assert unexpected == CacheBreakEvent(
        True,
        f"provider_side: {verdict.detail}",
        previous_cache_read_input_tokens=verdict.expected_tokens,
        current_cache_read_input_tokens=0,
        token_drop=verdict.expected_tokens,
    )
    assert not expected.unexpected
    assert expected.drop_share == 1.0


async def test_the_changed_layer_is_named() -> None:
    simulated = SimulatedSession()
    texts = iter(["milk", "milk", "bread"])
    options: Options = {**simulated.created, "layout": "seed", "system_prompt_volatile": lambda: next(texts)}
    async with Session.create(**options) as session:
        await session.send("So? " * 3_000)
        await session.send("So?")
        await session.send("So?")
    (changed,) = iter_cache_breaks(simulated.entries)
    assert (changed.unexpected, changed.component) == (True, "volatile")


async def test_counting_incrementally_equals_counting_from_the_start() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        seen = []
        for pause in (0, 10, 400, 0):
            simulated.clock.advance(pause)
            await session.send("So?")
            seen.append(session.cache.stats())
        assert seen[-1] == compute_cache_stats(simulated.entries)
        assert session.cache.get_token_stats() == compute_token_stats(simulated.entries)
    assert [item.tracked_requests for item in seen] == [1, 2, 3, 4]
    events = list(simulated.store.read(session.id))
    all_at_once = fold_cache_stats(CacheStatsState(), events, shipped_models())
    for cut in range(0, len(events), 7):
        half = fold_cache_stats(CacheStatsState(), events[:cut], shipped_models())
        assert fold_cache_stats(half, events[cut:], shipped_models()) == all_at_once


async def test_tokens_are_counted_per_provider() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        await session.send("So?")
        await session.send("So?")
        await session.switch_model(GPT)
        await session.send("So?")
        token_stats = session.cache.get_token_stats()
    assert list(token_stats) == ["anthropic", "openai"]
    used = [entry.record.usage for entry in simulated.entries]
    first = used[0] + used[1]
    assert token_stats["anthropic"] == TokenStats(first.tokens_sent, first.cache_read, first.output)
    assert token_stats["openai"] == TokenStats(used[2].tokens_sent, used[2].cache_read, used[2].output)
    assert 40 <= token_stats["anthropic"].hit_percent < 50


def test_a_hit_percentage_is_rounded_down_and_zero_without_tokens() -> None:
    assert TokenStats(340, 80).hit_percent == 23
    assert TokenStats(560, 200).hit_percent == 35
    assert TokenStats().hit_percent == 0


@pytest.mark.parametrize(("drop_class", "unexpected"), [("expected", False), ("unexpected", True), (None, None)])
async def test_only_some_drops_are_cache_breaks(drop_class: BreakClass | None, unexpected: bool | None) -> None:
    entry = await entry_that_lost(drop_class, 2_000)
    cache_break = find_cache_break(entry)
    assert (cache_break.unexpected if cache_break else None) == unexpected
    stats = compute_cache_stats([entry])
    assert stats.expected_invalidations == (unexpected is False)
    assert stats.unexpected_cache_breaks == (unexpected is True)


async def test_a_drop_counts_from_the_requested_minimum() -> None:
    assert find_cache_break(await entry_that_lost("unexpected", 1_999)) is None
    assert find_cache_break(await entry_that_lost("unexpected", 1_999), drop_tokens_min=1_999) is not None
    assert find_cache_break(await entry_that_lost("expected", 0), drop_tokens_min=0) is None


async def entry_that_lost(drop_class: BreakClass | None, tokens: int) -> LedgerEntry:
    """A real call that read less than the one before had left."""
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        await session.send("So?")
    (entry,) = simulated.entries
    assert entry.verdict is not None
    verdict = msgspec.structs.replace(entry.verdict, drop_tokens=tokens, drop_class=drop_class, read_tokens=7)
    return msgspec.structs.replace(entry, verdict=verdict)


def test_the_largest_break_comes_first_and_small_shares_last() -> None:
    small = CacheBreakEvent(True, "small share", 100_000, 96_000, 4_000)
    large = CacheBreakEvent(True, "large", 9_000, 0, 9_000)
    medium = CacheBreakEvent(False, "medium", 3_000, 0, 3_000)
    assert rank_cache_breaks([small, medium, large]) == (large, medium, small)


async def test_the_stats_of_a_closed_session_are_refused() -> None:
    async with Session.create(**SimulatedSession().created) as session:
        pass
    with pytest.raises(UserError, match="not open"):
        session.cache.stats()


async def store_two_calls(folder: Path) -> tuple[str, str]:
    db, simulated = str(folder / "log.db"), SimulatedSession()
    options: Options = {**simulated.created, "store": db}
    async with Session.create(**options) as session:
        await session.send("So?")
        simulated.clock.advance(301)
        await session.send("And now?")
    return db, session.id


async def test_the_command_shows_the_counters_and_the_breaks(tmp_path: Path) -> None:
    db, id = await store_two_calls(tmp_path)
    shown = CliRunner().invoke(command, ["sessions", "show", id, "--stats", "--db", db], catch_exceptions=False)
    lines = shown.output.splitlines()
    assert shown.exit_code == 0
    assert lines[0].split() == ["tracked_requests", "2"]
    assert any(line.split() == ["expected_invalidations", "1"] for line in lines)
    assert not any("None" in line or len(line) > 80 for line in lines)
    assert any(line.startswith("[anthropic] in:") and line.endswith(" cache:0 hit:0%") for line in lines)
    assert lines[-1].split()[0] == "expected"
    assert lines[-1].endswith("ttl_expired: idle for 301 s, TTL 300 s")


async def test_the_command_shows_the_same_as_json(tmp_path: Path) -> None:
    db, id = await store_two_calls(tmp_path)
    arguments = ["sessions", "show", id, "--stats", "--json", "--db", db]
    report = json.loads(CliRunner().invoke(command, arguments, catch_exceptions=False).output)
    assert report["stats"]["expected_invalidations"] == 1
    assert report["stats"]["last_completion_cache_key"] is None
    assert report["tokens"]["anthropic"]["hit_percent"] == 0
    (only,) = report["breaks"]
    assert only["token_drop"] == only["previous_cache_read_input_tokens"] > 10_000
