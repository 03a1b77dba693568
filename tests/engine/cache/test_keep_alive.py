"""Keep-alive of an idle session: what it sends, when it stops, and what the plan reports."""

from decimal import Decimal
from typing import cast

import pytest
from tests.support.idle_sessions import IdleSession

from holdfast.errors import UserError
from holdfast.events.payloads.cache import CacheLearned, CachePinged
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session

CALL = '{"content": [{"type": "tool_use", "id": "t1", "name": "wait", "input": {}}]}'


PAUSES = [1200.0] * 4


async def test_an_idle_session_is_kept_warm_over_the_pauses_of_its_user() -> None:
    idle = IdleSession()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *PAUSES)
        await session.send("And now?")
        cost = session.cost
    assert idle.pings
    assert idle.reads[-1] > 10_000
    paid = [payload.cost_usd for payload in idle.payloads if isinstance(payload, LlmCallCompleted | CachePinged)]
    assert cost == sum(paid, Decimal(0))


async def test_pings_make_the_same_evening_cheaper() -> None:
    pinging, silent = IdleSession(), IdleSession()
    async with Session.create(**pinging.created) as session:
        await pinging.say(session, *PAUSES * 2)
        cost_with_pings = session.cost
    options: Options = {**silent.created, "keep_alive": False}
    async with Session.create(**options) as session:
        await silent.say(session, *PAUSES * 2)
        assert not silent.pings
        assert cost_with_pings < session.cost


async def test_nothing_is_pinged_without_keep_alive() -> None:
    idle = IdleSession()
    options: Options = {**idle.created}
    del options["keep_alive"]
    async with Session.create(**options) as session:
        await idle.say(session, *PAUSES)
    assert idle.pings == []


async def test_a_ping_reads_the_cached_prefix_and_requests_no_output() -> None:
    idle = IdleSession()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *PAUSES)
    for ping in idle.pings:
        assert ping.usage.cache_read > 10_000
        assert ping.usage.output == 0
        assert ping.kind in ("refresh", "upgrade")
        assert "expected to save" in ping.reason
    assert {ping.ttl for ping in idle.pings if ping.kind == "upgrade"} <= {"1h"}


async def test_the_next_call_reads_the_prefix_that_an_upgrade_ping_has_cached() -> None:
    idle = IdleSession()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *PAUSES)
        await session.send("Now?")
    upgraded = [ping for ping in idle.pings if ping.kind == "upgrade"]
    assert upgraded
    assert upgraded[0].usage.cache_write_1h > 0
    assert upgraded[0].usage.input > 0
    assert upgraded[-1].prefix_tokens <= max(idle.reads)


async def test_a_one_hour_ttl_bridges_pauses_of_more_than_an_hour() -> None:
    idle = IdleSession()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *[5000.0] * 6)
    assert all(read > 10_000 for read in idle.reads[1:])


async def test_pings_stop_at_the_keep_alive_budget() -> None:
    free, capped = IdleSession(upgrades=False), IdleSession(upgrades=False)
    async with Session.create(**free.created) as session:
        await free.say(session, *PAUSES * 2)
    spent = sum((ping.cost_usd for ping in free.pings), Decimal(0))
    limit = free.pings[0].cost_usd + free.pings[1].cost_usd
    options: Options = {**capped.created, "keep_alive_usd_max": limit}
    async with Session.create(**options) as session:
        await capped.say(session, *PAUSES * 2)
    assert 0 < len(capped.pings) < len(free.pings)
    assert sum((ping.cost_usd for ping in capped.pings), Decimal(0)) <= limit < spent


async def test_an_abandoned_session_is_no_longer_pinged() -> None:
    idle = IdleSession()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *PAUSES)
        await session.send("Good night.")
        await idle.pause(7 * 86_400)
        before = len(idle.pings)
        await idle.pause(7 * 86_400)
    assert len(idle.pings) == before < 40


async def test_the_plan_says_why_a_request_cannot_be_pinged() -> None:
    idle = IdleSession()
    options: Options = {**idle.created, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    async with Session.create(**options) as session:
        await idle.say(session, *PAUSES)
    assert idle.pings == []
    notes = [note for payload in idle.payloads if isinstance(payload, RequestPrepared) for note in payload.plan.notes]
    assert notes
    assert all("no keep-alive" in note and "thinking" in note for note in notes)


async def test_the_seed_profile_is_not_kept_alive_and_records_no_lost_anchor() -> None:
    idle = IdleSession()
    options: Options = {**idle.created, "profile": "seed"}
    async with Session.create(**options) as session:
        await idle.say(session, *PAUSES)
    assert idle.pings == []
    assert all("seed" in payload.plan.notes[-1] for payload in idle.payloads if isinstance(payload, RequestPrepared))
    assert all(payload.anchors_lost == 0 for payload in idle.payloads if isinstance(payload, CacheLearned))


async def test_the_cache_is_kept_warm_during_a_slow_tool() -> None:
    calls = [CALL.replace("t1", f"t{number}") for number in range(9)]
    idle = IdleSession(script="".join(f'{call}\n{{"content": "Done."}}\n' for call in calls))

    async def wait() -> str:
        """Wait."""
        await idle.pause(1500)
        return "done"

    options: Options = {**idle.created, "tools": [wait]}
    async with Session.create(**options) as session:
        for _ in range(5):
            await session.send("Wait.")
    assert idle.pings
    assert idle.reads[-1] > 10_000


async def test_no_ping_is_sent_after_a_clock_jump_past_the_ttl() -> None:
    idle = IdleSession()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *PAUSES)
        before = len(idle.pings)
        await session.send("So?")
        idle.clock.advance(50_000)
        await idle.pause(10)
    assert len(idle.pings) == before


async def test_closing_the_session_cancels_the_planned_pings() -> None:
    idle = IdleSession()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *PAUSES)
        await session.send("Bye.")
    before = len(idle.pings)
    await idle.pause(5_000)
    assert len(idle.pings) == before


@pytest.mark.parametrize("value", ["yes", 1, "-1"])
async def test_keep_alive_options_are_validated(value: object) -> None:
    idle = IdleSession()
    key = "keep_alive_usd_max" if value == "-1" else "keep_alive"
    options = cast("Options", {**idle.created, key: value})
    with pytest.raises(UserError, match=key):
        async with Session.create(**options):
            pass


async def test_a_long_reply_counts_towards_the_keep_alive_budget() -> None:
    script = '{"content": "%s"}\n' % ("Yes indeed. " * 6_000)
    free, capped = IdleSession(script=script * 9), IdleSession(script=script * 9)
    async with Session.create(**free.created) as session:
        await free.say(session, *PAUSES)
    most_expensive = max(ping.cost_usd for ping in free.pings)
    limit = most_expensive / 2
    options: Options = {**capped.created, "keep_alive_usd_max": limit}
    async with Session.create(**options) as session:
        await capped.say(session, *PAUSES)
    assert sum((ping.cost_usd for ping in capped.pings), Decimal(0)) <= limit
