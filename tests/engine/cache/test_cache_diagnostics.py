"""Cache diagnostics of sessions: what a request asks for, what is recorded, and what stays unchanged."""

import json
import os
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.support import simulated_openai as gpt
from tests.support.simulated import models_with

from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.reducer import apply_event
from holdfast.engine.state import SessionState
from holdfast.errors import ProviderError, UserError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, RequestPrepared
from holdfast.planning.learned import Anchor, CacheMemory
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.reply import CacheDiagnosis

SONNET, OPUS, SOL = "anthropic:claude-sonnet-5-5", "anthropic:claude-opus-5-5", "openai:gpt-6.1-sol"
PROMPT = "Follow the rules of the house. " * 300
HIT = CacheDiagnosis("hit")


def options_for(provider: SimulatedProvider, store: MemoryStore, model: str = SONNET, **more: Any) -> Options:
    defaults: Any = {"model": model, "system_prompt": PROMPT, "store": store, "transport": provider, **more}
    return cast("Options", {"clock": ManualClock(), "new_id": CountingIds("id"), **defaults})


def payloads(store: MemoryStore, kind: type) -> list[Any]:
    return [event.payload for row in store.sessions() for event in store.read(row.id) if type(event.payload) is kind]


def diagnoses(store: MemoryStore) -> list[CacheDiagnosis | None]:
    return [call.diagnosis for call in payloads(store, LlmCallCompleted)]


def diagnosis_requests(provider: SimulatedProvider) -> list[Any]:
    """The response id that each request asks to be compared with, oldest first."""
    bodies = [json.loads(request.body) for request in provider.requests]
    if "input" in bodies[0]:
        return [body["prompt_cache_options"].get("comparison_response_id") for body in bodies]
    return [body.get("diagnostics", "nothing") for body in bodies]


@pytest.mark.parametrize("model", [SONNET, SOL])
async def test_every_call_is_compared_with_the_previous_one_and_the_diagnosis_is_recorded(model: str) -> None:
    provider, store = SimulatedProvider(), MemoryStore()
    async with Session.create(**options_for(provider, store, model)) as session:
        for message in ("one", "two", "three"):
            await session.send(message)
    replies = [call.response_id for call in payloads(store, LlmCallCompleted)]
    wanted: list[Any] = [None, *replies[:2]]
    assert diagnosis_requests(provider) == (
        wanted if model == SOL else [{"previous_message_id": response_id} for response_id in wanted]
    )
    assert diagnoses(store) == [None, HIT, HIT]


@pytest.mark.parametrize("model", [SONNET, SOL])
async def test_requesting_a_diagnosis_changes_neither_the_recorded_request_nor_cache_reads(model: str) -> None:
    seen = []
    for diagnostics in ("auto", "off"):
        provider, store = SimulatedProvider(), MemoryStore()
        async with Session.create(**options_for(provider, store, model, diagnostics=diagnostics)) as session:
            await session.send("one")
            await session.send("two")
        seen.append(
            (
                [
                    (payload.parameters_digest, payload.settings, payload.digests, payload.plan)
                    for payload in payloads(store, RequestPrepared)
                ],
                [call.usage for call in payloads(store, LlmCallCompleted)],
                [entry.digest for entry in provider.cache],
            )
        )
    assert seen[0] == seen[1]
    assert diagnoses(store) == [None, None]
    assert "diagnos" not in str([request.body for request in provider.requests])
    assert "comparison" not in str([request.body for request in provider.requests])


async def test_no_diagnosis_is_requested_when_the_model_is_not_cached() -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'[models."{SONNET}"]\nsupports_prompt_caching = false\n')
    provider, store = SimulatedProvider(), MemoryStore()
    async with Session.create(**options_for(provider, store, allow_uncached=True)) as session:
        await session.send("one")
        await session.send("two")
    assert diagnosis_requests(provider) == ["nothing", "nothing"]
    assert diagnoses(store) == [None, None]


async def test_a_ping_requests_no_diagnosis() -> None:
    provider, store = SimulatedProvider(), MemoryStore()
    async with Session.create(**options_for(provider, store, prewarm=True)) as session:
        await session.send("one")
    assert diagnosis_requests(provider) == ["nothing", {"previous_message_id": None}]


@pytest.mark.parametrize("model", [SONNET, SOL])
async def test_a_resumed_session_sends_the_same_bytes_as_an_uninterrupted_one(model: str) -> None:
    whole, parted = SimulatedProvider(clock=ManualClock()), SimulatedProvider(clock=ManualClock())
    options = options_for(whole, MemoryStore(), model)
    async with Session.create(**options) as session:
        await session.send("one")
        await session.send("two")
    options = options_for(parted, MemoryStore(), model)
    async with Session.create(**options) as session:
        await session.send("one")
    del options["model"], options["system_prompt"]
    async with Session.resume(session.id, **options) as session:
        await session.send("two")
    assert [request.body for request in parted.requests] == [request.body for request in whole.requests]


async def test_a_model_is_compared_with_its_own_last_reply_even_after_a_switch_to_another_model() -> None:
    provider, store = SimulatedProvider(), MemoryStore()
    async with Session.create(**options_for(provider, store)) as session:
        await session.send("one")
        await session.switch_model(OPUS)
        await session.send("two")
        await session.switch_model(SONNET)
        await session.send("three")
    first = payloads(store, LlmCallCompleted)[0].response_id
    assert [diagnosis_request["previous_message_id"] for diagnosis_request in diagnosis_requests(provider)] == [
        None,
        None,
        first,
    ]
    assert diagnoses(store) == [None, None, HIT]


async def test_a_changed_system_prompt_is_named_as_the_reason_for_the_miss() -> None:
    provider, store = SimulatedProvider(), MemoryStore()
    texts = iter(["Monday.", "Tuesday.", "Wednesday."])
    volatile: Any = {"layout": "seed", "system_prompt_volatile": lambda: next(texts)}
    async with Session.create(**options_for(provider, store, **volatile)) as session:
        await session.send("one")
        await session.send("two")
    diagnosis = diagnoses(store)[1]
    assert diagnosis is not None
    assert (diagnosis.outcome, diagnosis.reason) == ("miss", "system_changed")


@pytest.mark.parametrize("model", [SONNET, SOL])
async def test_a_provider_that_refuses_diagnostics_is_retried_without_them_and_never_asked_again(model: str) -> None:
    mute = gpt.models_with(SOL, diagnoses_misses=False) if model == SOL else models_with(diagnoses_misses=False)
    provider, store = SimulatedProvider(models=mute), MemoryStore()
    options = options_for(provider, store, model)
    async with Session.create(**options) as session:
        await session.send("one")
        answer = await session.send("two")
        assert answer.text == "Echo: two"
    del options["model"], options["system_prompt"]
    async with Session.resume(session.id, **options) as session:
        await session.send("three")
    refused_first = [400, 200, 200, 200] if model == SONNET else [200, 400, 200, 200]
    assert [request.status for request in provider.requests] == refused_first
    (failed,) = payloads(store, LlmCallFailed)
    assert failed.is_diagnosis_refused
    assert diagnoses(store) == [None, None, None]
    assert [message.role for message in session.history] == ["user", "assistant"] * 3


async def test_a_refusal_for_any_other_reason_is_not_retried() -> None:
    provider, store = SimulatedProvider(script='{"fault": "400"}\n{"content": "x"}'), MemoryStore()
    async with Session.create(**options_for(provider, store)) as session:
        with pytest.raises(ProviderError):
            await session.send("one")
        assert len(provider.requests) == 1
        await session.send("one")
    assert diagnosis_requests(provider)[1] == {"previous_message_id": None}
    assert [failed.is_diagnosis_refused for failed in payloads(store, LlmCallFailed)] == [False]


async def test_a_model_that_does_not_support_diagnostics_is_not_asked_for_them() -> None:
    provider, store = SimulatedProvider(), MemoryStore()
    async with Session.create(**options_for(provider, store, "openai-chat:gpt-6.1-sol")) as session:
        await session.send("one")
        await session.send("two")
    assert "comparison_response_id" not in str([request.body for request in provider.requests])
    assert diagnoses(store) == [None, None]


async def test_diagnostics_must_be_auto_or_off_and_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    provider, store = SimulatedProvider(), MemoryStore()
    with pytest.raises(UserError, match="diagnostics must be one of auto, off"):
        async with Session.create(**options_for(provider, store, diagnostics="maybe")):
            pass
    monkeypatch.setenv("HOLDFAST_DIAGNOSTICS", "off")
    async with Session.create(**options_for(provider, store)) as session:
        await session.send("one")
    assert diagnosis_requests(provider) == ["nothing"]


async def test_a_log_written_before_diagnoses_existed_can_be_read() -> None:
    provider, store = SimulatedProvider(), MemoryStore()
    async with Session.create(**options_for(provider, store)) as session:
        await session.send("one")
        await session.send("two")
    completed = [event for event in store.read(session.id) if isinstance(event.payload, LlmCallCompleted)]
    assert [msgspec.json.decode(msgspec.json.encode(event), type=Event) for event in completed] == completed
    older = json.loads(msgspec.json.encode(completed[1]))
    assert older["payload"].pop("diagnosis") == {"outcome": "hit"}
    decoded = msgspec.convert(older, Event).payload
    assert isinstance(decoded, LlmCallCompleted)
    assert decoded.diagnosis is None


@pytest.mark.parametrize("refused", [True, False])
def test_a_refused_diagnosis_leaves_the_cache_memory_unchanged(refused: bool) -> None:
    anchor = Anchor(block=0, tokens=9_000, used_at=1.0, is_sound=True, is_evidence=True)
    before = SessionState("s", model=SONNET, cache_memory=CacheMemory(anchor=anchor))
    failed = LlmCallFailed(SONNET, "anthropic", "invalid_request", "no", 0, 1, "r", is_diagnosis_refused=refused)
    after = apply_event(before, Event("e", 2.0, "s", "agent", failed))
    assert after.cache_memory.anchor is not None
    assert after.cache_memory.anchor.is_evidence is refused
    assert after.diagnosis_baseline.refused_by == (frozenset({"anthropic"}) if refused else frozenset())
