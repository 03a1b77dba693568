"""Cache controls set for a running session change exactly the bytes they should, for every provider."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import msgspec
import pytest
from tests.support.event_examples import event
from tests.support.simulated_gemini import LONG

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.cache.controls import cache_nonce
from holdfast.engine.certify import certify
from holdfast.engine.reducer import apply_event, fold_events
from holdfast.events.log import Event
from holdfast.events.payloads.cache import (
    CacheControlsApplied,
    CachePinged,
    CacheSettings,
    ExplicitCacheChanged,
    FixedTtl,
)
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.events.payloads.session import EpochOpened, MessageAppended, SessionStarted
from holdfast.events.records import StoreRecords
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.calls import iter_calls
from holdfast.replay.stored_sessions import build_stored_transcript
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import Message, Text, Thinking

ROUTED = "openrouter:anthropic/claude-sonnet-5.5"
MODELS = (
    "anthropic:claude-sonnet-5-5",
    "openai:gpt-6.1-sol",
    "openai:gpt-5.4",
    "openai-chat:gpt-6.1-sol",
    "openai-chat:gpt-5.4",
    "gemini:gemini-3.8-flash",
    ROUTED,
)
LOOP = "\n".join(
    [
        '{"content": "First."}',
        '{"content": [{"type": "tool_use", "name": "read", "input": {"path": "a.txt"}}]}',
        '{"content": "Second."}',
        '{"content": "Third."}',
        '{"content": "Fourth."}',
    ]
)

Change = Callable[[StoreRecords, str], object]

CACHE_CONTROL = re.compile(rb',"cache_control":\{"type":"ephemeral"(?:,"ttl":"1h")?\}')
BREAKPOINT = re.compile(rb',"prompt_cache_breakpoint":\{[^{}]*\}')
KEYS = re.compile(
    rb'"(?:prompt_cache_key|prompt_cache_retention|session_id)":"[^"]*",|"prompt_cache_options":\{[^{}]*\},'
)


def read(path: str) -> str:
    """Reads a file."""
    return f"The text of {path}."


@pytest.fixture(autouse=True)
def routed_models_cache() -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'[models."{ROUTED}"]\nsupports_prompt_caching = true\n')


class Play:
    """Two turns, the second with a tool call; the change happens between them."""

    def __init__(self, model_id: str, **options: Unpack[Options]) -> None:
        self.clock = ManualClock(1_790_000_000.0)
        self.provider = SimulatedProvider(clock=self.clock, script=parse_script(LOOP))
        self.store = MemoryStore()
        defaults: Options = {
            "diagnostics": "off",
            "model": model_id,
            "allow_uncached": True,
            "system_prompt": LONG,
            "tools": [read],
            "store": self.store,
            "transport": self.provider,
            "clock": self.clock,
            "new_id": CountingIds(),
        }
        merged: Options = {**defaults, **options}
        self.session = Session.create(**merged)

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.provider.requests if request.model]

    @property
    def events(self) -> list[Event]:
        return list(self.store.read(self.session.id))

    @property
    def applied_controls(self) -> list[CacheControlsApplied]:
        return [recorded.payload for recorded in self.events if isinstance(recorded.payload, CacheControlsApplied)]


async def play_two_turns(model: str, change: Change | None = None, *, first: Change | None = None) -> Play:
    play = Play(model)
    async with play.session as session:
        if first is not None:
            first(play.store.records, session.id)
        await session.send("One.")
        if change is not None:
            change(play.store.records, session.id)
        await session.send("Two.")
    return play


def strip_breakpoints(body: bytes) -> bytes:
    return KEYS.sub(b"", BREAKPOINT.sub(b"", CACHE_CONTROL.sub(b"", body)))


def disable_caching(records: StoreRecords, session_id: str) -> object:
    return records.set_caching_enabled(session_id, enabled=False)


def disable_providers(records: StoreRecords, session_id: str) -> None:
    names = ("anthropic", "openai", "openai-chat", "gemini", "openrouter")
    records.set_settings(CacheSettings(dict.fromkeys(names, False)))


def invalidate(records: StoreRecords, session_id: str) -> object:
    return records.invalidate(session_id, at=5.0)


def apply_settings(settings: CacheSettings) -> Change:
    def change(records: StoreRecords, session_id: str) -> None:
        records.set_settings(settings)

    return change


@pytest.mark.parametrize("change", [disable_caching, disable_providers])
@pytest.mark.parametrize("model", MODELS)
async def test_disabling_caching_removes_breakpoints_and_cache_keys_and_no_other_byte(
    model: str, change: Change
) -> None:
    plain, changed = await play_two_turns(model), await play_two_turns(model, change)
    assert changed.bodies[0] == plain.bodies[0]
    assert changed.bodies[1:] == [strip_breakpoints(body) for body in plain.bodies[1:]]
    assert (changed.bodies[1:] == plain.bodies[1:]) == model.startswith("gemini")
    assert [applied.caching_enabled for applied in changed.applied_controls] == [False]


@pytest.mark.parametrize("model", MODELS)
async def test_disabling_another_provider_changes_nothing(model: str) -> None:
    plain, changed = (
        await play_two_turns(model),
        await play_two_turns(model, apply_settings(CacheSettings({"claude-code": False}))),
    )
    assert changed.bodies == plain.bodies
    assert changed.applied_controls == []


@pytest.mark.parametrize("model", MODELS)
async def test_a_session_can_start_with_caching_disabled(model: str) -> None:
    plain, changed = await play_two_turns(model), await play_two_turns(model, first=disable_caching)
    assert changed.bodies == [strip_breakpoints(body) for body in plain.bodies]


@pytest.mark.parametrize("model", MODELS)
async def test_a_session_caches_as_before_once_caching_is_enabled_again(model: str) -> None:
    play, plain = Play(model), Play(model)
    async with plain.session as session:
        for question in ("One.", "Two.", "Three."):
            await session.send(question)
    async with play.session as session:
        await session.send("One.")
        play.store.records.set_caching_enabled(session.id, enabled=False)
        await session.send("Two.")
        play.store.records.set_caching_enabled(session.id, enabled=True)
        await session.send("Three.")
    assert CACHE_CONTROL.sub(b"", play.bodies[-1]) == CACHE_CONTROL.sub(b"", plain.bodies[-1])
    # After an interval without caching nothing is cached any more, and no breakpoint can help.
    assert bool(CACHE_CONTROL.search(play.bodies[-1])) == bool(CACHE_CONTROL.search(plain.bodies[-1]))
    assert [applied.caching_enabled for applied in play.applied_controls] == [False, True]


@pytest.mark.parametrize("ttl", ["5m", "1h"])
@pytest.mark.parametrize("model", MODELS)
async def test_a_fixed_ttl_applies_to_every_breakpoint_and_changes_nothing_else(model: str, ttl: FixedTtl) -> None:
    plain, changed = await play_two_turns(model), await play_two_turns(model, apply_settings(CacheSettings(ttl=ttl)))
    member = b',"cache_control":{"type":"ephemeral"' + (b',"ttl":"1h"}' if ttl == "1h" else b"}")
    assert changed.bodies[0] == plain.bodies[0]
    assert changed.bodies[1] == CACHE_CONTROL.sub(member, plain.bodies[1])
    assert [CACHE_CONTROL.sub(b"", body) for body in changed.bodies] == [
        CACHE_CONTROL.sub(b"", body) for body in plain.bodies
    ]
    breakpoints = {member_found for body in changed.bodies[1:] for member_found in CACHE_CONTROL.findall(body)}
    assert breakpoints == ({member} if model.startswith(("anthropic", "openrouter")) else set())


async def test_a_fixed_ttl_is_named_in_the_reason_of_every_breakpoint() -> None:
    play = await play_two_turns("anthropic:claude-sonnet-5-5", apply_settings(CacheSettings(ttl="1h")))
    plans = [event.payload.plan for event in play.events if isinstance(event.payload, RequestPrepared)]
    assert all("; the TTL is set to 1h" in breakpoint.reason for plan in plans[1:] for breakpoint in plan.breakpoints)
    assert all(plan.breakpoints for plan in plans)


@pytest.mark.parametrize("model", MODELS)
async def test_invalidating_the_cache_changes_only_the_nonce_or_the_cache_key(model: str) -> None:
    plain, changed = await play_two_turns(model), await play_two_turns(model, invalidate)
    assert changed.bodies[0] == plain.bodies[0]
    session = changed.session.id
    nonce = cache_nonce(session, 1).encode()
    before, after = plain.bodies[1], changed.bodies[1]
    # Apart from breakpoints, which move with the nonce, only the nonce and the key differ.
    same_key = after.replace(f'"{session}.1"'.encode(), f'"{session}"'.encode(), 1)
    assert CACHE_CONTROL.sub(b"", same_key).replace(encode_nonce(model, nonce), b"", 1) == CACHE_CONTROL.sub(
        b"", before
    )
    assert (nonce in after) == (not model.startswith("openai"))
    assert (f'"{session}.1"'.encode() in after) == model.startswith(("openai", "openrouter"))
    assert (f'"{session}"'.encode() in before) == model.startswith(("openai", "openrouter"))
    usages = [event.payload.usage for event in changed.events if isinstance(event.payload, LlmCallCompleted)]
    assert usages[2].cache_read > 1_024  # The turn's second call reads what its first has written.


def encode_nonce(model: str, nonce: bytes) -> bytes:
    match model.partition(":")[0]:
        case "anthropic" | "openrouter":
            return b'{"type":"text","text":"' + nonce + b'"},'
        case "gemini":
            return b'{"text":"' + nonce + b'"},'
        case _:
            return b"<none>"


async def test_an_invalidation_is_a_planned_miss_and_not_an_unexpected_prefix_change() -> None:
    play = await play_two_turns("anthropic:claude-sonnet-5-5", invalidate)
    verdicts = [entry.verdict for entry in iter_entries(play.events, shipped_models()) if entry.verdict]
    assert [verdict.kind for verdict in verdicts] == ["first_use", "planned", "held"]
    assert (verdicts[1].component, verdicts[1].detail) == ("settings", "the cache was invalidated")
    assert all(call.is_prefix_unchanged for call in iter_calls(play.events))
    assert [certificate.violation for certificate in certify(play.events, play.session.id, shipped_models())] == [
        None
    ] * 3


async def test_a_replay_uses_the_system_prompt_sent_after_an_invalidation() -> None:
    plain, changed = (
        await play_two_turns("anthropic:claude-sonnet-5-5"),
        await play_two_turns("anthropic:claude-sonnet-5-5", invalidate),
    )
    before, after = (build_stored_transcript(play.events, play.session.id) for play in (plain, changed))
    assert before is not None
    assert after is not None
    assert after.recording.system == f"{cache_nonce(changed.session.id, 1)}\n\n{before.recording.system}"
    assert [call.kept_entries for call in before.recording.calls] == [None, None, None]
    assert [call.kept_entries for call in after.recording.calls] == [None, 0, None]


async def test_disabling_caching_is_a_planned_miss() -> None:
    play = await play_two_turns("anthropic:claude-sonnet-5-5", disable_caching)
    verdicts = [entry.verdict for entry in iter_entries(play.events, shipped_models()) if entry.verdict]
    assert [verdict.kind for verdict in verdicts] == ["first_use", "planned", "no_breakpoint"]


async def test_an_invalidation_takes_effect_at_the_next_turn_and_not_within_one() -> None:
    records: list[StoreRecords] = []

    def look(path: str) -> str:
        """Looks, while the cache is invalidated."""
        records[0].invalidate("id-000001", at=5.0)
        return "seen"

    script = LOOP.replace('"read"', '"look"').replace('"path": "a.txt"', '"path": "x"')
    play = Play("anthropic:claude-sonnet-5-5", tools=[look])
    play.provider = SimulatedProvider(clock=play.clock, script=parse_script(script))
    play.session = Session.create(
        model="anthropic:claude-sonnet-5-5",
        system_prompt=LONG,
        tools=[look],
        store=play.store,
        transport=play.provider,
        clock=play.clock,
        new_id=CountingIds(),
    )
    records.append(play.store.records)
    async with play.session as session:
        assert session.id == "id-000001"
        await session.send("One.")
        await session.send("Two.")
        await session.send("Three.")
    assert [b"cache generation 1" in body for body in play.bodies] == [False, False, False, True]


async def test_a_resumed_session_sends_the_same_stable_prefix_after_an_invalidation() -> None:
    play = await play_two_turns("anthropic:claude-sonnet-5-5", invalidate)
    shared: Options = {"store": play.store, "transport": play.provider, "clock": play.clock, "tools": [read]}
    shared["diagnostics"] = "off"
    async with Session.resume(play.session.id, **shared) as session:
        await session.send("Three.")
    prefix = play.bodies[-2][: play.bodies[-2].index(b'"messages"')]
    assert CACHE_CONTROL.sub(b"", play.bodies[-1]).startswith(CACHE_CONTROL.sub(b"", prefix))
    assert len(play.applied_controls) == 1


async def test_no_diagnosis_is_requested_while_caching_is_disabled() -> None:
    play = Play("anthropic:claude-sonnet-5-5", diagnostics="auto")
    async with play.session as session:
        await session.send("One.")
        play.store.records.set_caching_enabled(session.id, enabled=False)
        await session.send("Two.")
    requested = [b'"diagnostics"' in body for body in play.bodies]
    assert requested == [True] + [False] * (len(requested) - 1)
    assert len(requested) > 1


async def test_an_explicit_cache_is_deleted_and_no_longer_referenced_once_caching_is_disabled() -> None:
    play = Play("gemini:gemini-3.8-flash")
    async with play.session as session:
        for _ in range(3):
            await session.send("Again.")
            play.clock.advance(600)
        assert len(play.provider.explicit_caches) == 1
        assert b'"cachedContent":"' in play.bodies[-1]
        play.store.records.set_caching_enabled(session.id, enabled=False)
        await session.send("Off.")
        assert len(play.provider.explicit_caches) == 0
        assert b"cachedContent" not in play.bodies[-1]
    actions = [event.payload.action for event in play.events if isinstance(event.payload, ExplicitCacheChanged)]
    assert actions == ["created", "deleted"]


async def test_an_explicit_cache_is_created_with_the_configured_ttl() -> None:
    play = Play("gemini:gemini-3.8-flash")
    play.store.records.set_settings(CacheSettings(gemini_ttl_seconds=1800))
    async with play.session as session:
        for _ in range(3):
            await session.send("Again.")
            play.clock.advance(600)
    created = [
        request.body
        for request in play.provider.requests
        if request.method == "POST" and "cachedContents" in request.path
    ]
    assert [b'"ttl":"1800s"' in body for body in created] == [True]


@pytest.mark.parametrize("settings", [CacheSettings(gemini_ttl_seconds=1800), CacheSettings(gemini_ttl_seconds=0)])
@pytest.mark.parametrize("model", MODELS)
async def test_the_ttl_of_explicit_caches_changes_no_byte_of_a_call(model: str, settings: CacheSettings) -> None:
    plain, changed = await play_two_turns(model), await play_two_turns(model, apply_settings(settings))
    assert changed.bodies == plain.bodies


async def test_the_ttl_of_explicit_caches_changes_only_the_request_that_creates_one() -> None:
    sent = []
    for settings in (CacheSettings(), CacheSettings(gemini_ttl_seconds=1800)):
        play = Play("gemini:gemini-3.8-flash")
        play.store.records.set_settings(settings)
        async with play.session as session:
            for _ in range(3):
                await session.send("Again.")
                play.clock.advance(600)
        sent.append([(request.method, request.path, request.body) for request in play.provider.requests])
    plain, changed = sent
    ttl_member = re.compile(rb'"ttl":"\d+s"')
    assert plain != changed
    assert [(*rest, ttl_member.sub(b"", body)) for *rest, body in plain] == [
        (*rest, ttl_member.sub(b"", body)) for *rest, body in changed
    ]


async def test_an_invalidated_explicit_cache_is_deleted_before_the_first_call_of_the_next_turn() -> None:
    play = Play("gemini:gemini-3.8-flash")
    async with play.session as session:
        for _ in range(3):
            await session.send("Again.")
            play.clock.advance(600)
        assert b'"cachedContent":"' in play.bodies[-1]
        play.store.records.invalidate(session.id, at=5.0)
        assert len(play.provider.explicit_caches) == 1
        count = len(play.provider.requests)
        await session.send("Given up.")
        since = [(request.method, request.path.rpartition("/")[2]) for request in play.provider.requests[count:]]
        assert ("DELETE", "sim-000001") in since[: since.index(("POST", since[-1][1]))]
        assert b"sim-000001" not in play.bodies[-1]
    actions = [event.payload.action for event in play.events if isinstance(event.payload, ExplicitCacheChanged)]
    assert actions[:2] == ["created", "deleted"]


async def test_no_explicit_cache_is_created_when_its_ttl_is_zero() -> None:
    play = Play("gemini:gemini-3.8-flash")
    play.store.records.set_settings(CacheSettings(gemini_ttl_seconds=0))
    async with play.session as session:
        for _ in range(4):
            await session.send("Again.")
            play.clock.advance(600)
    assert not any("cachedContents" in request.path for request in play.provider.requests)


async def test_an_invalidation_also_applies_to_the_child_sessions_that_share_the_stable_prefix() -> None:
    script = "\n".join(
        [
            '{"content": "First."}',
            '{"content": [{"type": "tool_use", "name": "delegate", "input": {"task": "Look."}}]}',
            '{"content": "Looked."}',
            '{"content": "Second."}',
        ]
    )
    play = Play("anthropic:claude-sonnet-5-5")
    provider = SimulatedProvider(clock=play.clock, script=parse_script(script))
    async with Session.create(
        model="anthropic:claude-sonnet-5-5",
        system_prompt=LONG,
        delegate=True,
        store=play.store,
        transport=provider,
        clock=play.clock,
        new_id=CountingIds(),
    ) as session:
        await session.send("One.")
        play.store.records.invalidate(session.id, at=5.0)
        await session.send("Two.")
        nonce = cache_nonce(session.id, 1).encode()
    bodies = [request.body for request in provider.requests if request.model]
    assert [nonce in body for body in bodies] == [False, *([True] * (len(bodies) - 1))]
    assert len(bodies) >= 4


async def test_no_ping_is_sent_once_caching_is_disabled() -> None:
    waits: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        woken = asyncio.Event()
        play.clock.advance(seconds)
        waits.put_nowait(woken)
        await woken.wait()

    play = Play("anthropic:claude-sonnet-5-5", keep_alive=True, sleep=sleep)
    async with play.session as session:
        await session.send("One.")
        woken = await asyncio.wait_for(waits.get(), 5)
        applied = asyncio.Event()
        session.subscribe(lambda event: applied.set())
        play.store.records.set_caching_enabled(session.id, enabled=False)
        woken.set()
        await asyncio.wait_for(applied.wait(), 5)
        for _ in range(20):
            await asyncio.sleep(0)
    assert not any(isinstance(event.payload, CachePinged) for event in play.events)


def test_a_session_in_another_process_applies_the_controls_set_here(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    program = """
import asyncio, sys
from holdfast import Session, SimulatedProvider
async def main():
    provider = SimulatedProvider()
    async with Session.create(model="anthropic:claude-sonnet-5-5", system_prompt="Long. " * 3000,
                              store=sys.argv[1], transport=provider) as session:
        print(session.id, flush=True)
        for line in sys.stdin:
            await session.send(line)
            print(b"cache_control" in provider.requests[-1].body, flush=True)
asyncio.run(main())
"""
    with (
        subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other,
        SqliteStore(path) as store,
    ):
        assert other.stdin is not None
        assert other.stdout is not None

        def say(line: str) -> str:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdin.write(f"{line}\n")
            other.stdin.flush()
            return other.stdout.readline().strip()

        session = other.stdout.readline().strip()
        assert say("One.") == "True"
        store.records.set_caching_enabled(session, enabled=False)
        assert say("Two.") == "False"
        store.records.set_caching_enabled(session, enabled=True)
        assert say("Three.") == "True"
        other.stdin.close()


async def test_the_nonce_stays_the_same_in_the_next_epoch() -> None:
    play = await play_two_turns("anthropic:claude-sonnet-5-5", invalidate)
    opened = next(event for event in play.events if isinstance(event.payload, EpochOpened))
    assert isinstance(opened.payload, EpochOpened)
    again = msgspec.structs.replace(opened, payload=msgspec.structs.replace(opened.payload, epoch=2))
    before = fold_events(play.events, play.session.id)
    assert apply_event(before, again).stable_prefix == before.stable_prefix
    assert [segment.name for segment in before.stable_prefix][:2] == ["tools", "nonce"]


def test_thinking_is_dropped_with_the_prefix_it_was_bound_to() -> None:
    thought = MessageAppended(Message("assistant", (Thinking("hm", "signature"), Text("Yes."))))
    events = [
        event("e1", SessionStarted("anthropic:claude-sonnet-5-5")),
        event("e2", thought),
        event("e3", CacheControlsApplied(ttl="1h")),
    ]
    state = fold_events(events, "s")
    assert len(state.entries[0].content) == 2
    moved = event("e4", CacheControlsApplied(nonce="[1]", generation=1, reason="x", new_prefix=True))
    assert apply_event(state, moved).entries[0].content == (Text("Yes."),)


async def test_the_stable_prefix_is_not_prewarmed_while_caching_is_disabled() -> None:
    play = Play("anthropic:claude-sonnet-5-5", prewarm=True)
    play.store.records.set_settings(CacheSettings({"anthropic": False}))
    async with play.session:
        assert play.provider.requests == ()
        assert [applied.caching_enabled for applied in play.applied_controls] == [False]


async def test_the_explicit_cache_settings_of_one_model_do_not_carry_over_to_the_next() -> None:
    play = Play("gemini:gemini-3.8-flash")
    play.store.records.set_settings(CacheSettings(gemini_ttl_seconds=0))
    async with play.session as session:
        await session.send("One.")
        await session.switch_model("gemini:gemini-3.6-flash")
        play.store.records.set_settings(CacheSettings())
        for _ in range(4):
            play.clock.advance(600)
            await session.send("Again.")
        assert [cache.model for cache in play.provider.explicit_caches] == ["gemini-3.6-flash"]


async def test_a_session_on_postgres_applies_the_controls_another_server_sets(postgres: str) -> None:
    provider = SimulatedProvider()
    with PostgresStore(postgres) as elsewhere:
        async with Session.create(
            model="anthropic:claude-sonnet-5-5", system_prompt=LONG, store=postgres, transport=provider
        ) as session:
            await session.send("One.")
            elsewhere.records.set_caching_enabled(session.id, enabled=False)
            await session.send("Two.")
            elsewhere.records.set_caching_enabled(session.id, enabled=True)
            elsewhere.records.invalidate(session.id, at=5.0)
            await session.send("Three.")
            nonce = cache_nonce(session.id, 1).encode()
    bodies = [request.body for request in provider.requests]
    assert [b"cache_control" in body for body in bodies] == [True, False, True]
    assert [nonce in body for body in bodies] == [False, False, True]
