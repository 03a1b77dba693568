"""Costs of calls through OpenRouter, which does not report the TTL of its cache writes."""

from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.call_record import split_writes_by_ttl
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.prompt import Breakpoint, Ttl
from holdfast.types.request_buffer import PrefixDigest, extend_digest_chain
from holdfast.types.usage import Usage

OPUS = "openrouter:anthropic/claude-opus-5.5"
HOUR: Ttl = "1h"
SHORT: Ttl = "5m"


def expected_cost_usd(usage: Usage) -> Decimal:
    """Opus 5.5, in dollars per million tokens: input 4, writes 5 (5m) and 8 (1h), reads 0.20, output 20."""
    written = 5 * usage.cache_write_5m + 8 * usage.cache_write_1h
    return (4 * usage.input + written + Decimal("0.2") * usage.cache_read + 20 * usage.output) / 1_000_000


@pytest.mark.parametrize("pause_seconds", [60, 600, 3000])
async def test_a_session_costs_what_the_route_bills_at_any_pace(
    pause_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(f'[models."{OPUS}"]\nsupports_prompt_caching = true\n')
    clock = ManualClock()
    provider = SimulatedProvider(clock=clock, script='{"content": "Yes."}\n' * 20)
    session = Session.create(
        model=OPUS,
        system_prompt="Follow the rules of the house. " * 2000,
        store=MemoryStore(),
        transport=provider,
        clock=clock,
        new_id=CountingIds(),
    )
    async with session:
        for _ in range(8):
            await session.send("So? " * 200)
            clock.advance(pause_seconds)
        billed = sum((request.reply.usage for request in provider.requests if request.reply), Usage())
        assert (session.usage.cache_write_1h > 0) == (billed.cache_write_1h > 0)
        assert billed.cache_write_1h > 0 or pause_seconds != 600
        assert abs(session.cost - expected_cost_usd(billed)) < expected_cost_usd(billed) / 100


def digest_chain(*sizes: int) -> list[PrefixDigest]:
    digests: list[PrefixDigest] = []
    for size in sizes:
        digests.append(extend_digest_chain(digests[-1] if digests else None, "system", b"x" * size))
    return digests


@pytest.mark.parametrize(
    ("provider", "breakpoints", "read", "hour"),
    [
        ("openrouter", (Breakpoint(0, SHORT), Breakpoint(2, SHORT)), 0, 0),
        ("openrouter", (Breakpoint(0, HOUR), Breakpoint(2, HOUR)), 0, 5_500),
        (
            "openrouter",
            (Breakpoint(1, HOUR), Breakpoint(2, SHORT)),
            0,
            5_000,
        ),  # Half of the bytes, so half of 10,000 tokens.
        ("openrouter", (Breakpoint(1, HOUR), Breakpoint(2, SHORT)), 1_000, 4_000),
        ("openrouter", (Breakpoint(0, HOUR), Breakpoint(2, SHORT)), 3_000, 0),
        ("anthropic", (Breakpoint(0, HOUR), Breakpoint(2, HOUR)), 0, 0),
    ],
)
def test_writes_up_to_the_last_one_hour_breakpoint_are_billed_for_an_hour(
    provider: str, breakpoints: tuple[Breakpoint, ...], read: int, hour: int
) -> None:
    usage = Usage(input=10_000 - read - 5_500, cache_read=read, cache_write_5m=5_500, output=7)
    split = split_writes_by_ttl(usage, provider, breakpoints, digest_chain(200, 300, 500))
    assert (split.cache_write_1h, split.cache_write_5m) == (hour, 5_500 - hour)
    assert split.tokens_sent == usage.tokens_sent
