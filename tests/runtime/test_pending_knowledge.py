"""When a running session adopts a newer digest, what it costs, and that nothing else in its prompt changes."""

from pathlib import Path

import pytest
from tests.support.agents import MakeAgent, says
from tests.support.all_providers import MODELS, answering_provider
from tests.support.knowledge_folders import knowledge_folder
from tests.support.long_conversations import LongConversation
from tests.support.scripted_sessions import new_session, scripted_provider

from holdfast import MemoryStore, Session
from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.engine.certify import certify
from holdfast.engine.reducer import fold_events
from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import RequestPrepared
from holdfast.events.payloads.session import EpochOpened
from holdfast.knowledge.folder import DIGEST_FILE
from holdfast.runtime.config import DigestRefresh
from holdfast.runtime.options import Options
from holdfast.runtime.pending_knowledge import pending_knowledge, refresh_knowledge


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    knowledge_folder(folder).replace(DIGEST_FILE, b"- one\n")
    return folder


def epochs(store: MemoryStore, session: Session) -> list[EpochOpened]:
    return [event.payload for event in store.read(session.id) if isinstance(event.payload, EpochOpened)]


async def test_a_newer_digest_is_pending_until_the_session_adopts_it(workspace: Path) -> None:
    provider, store = scripted_provider("a", "b", "c"), MemoryStore()
    async with new_session(provider, workspace=workspace, store=store) as session:
        await session.send("x")
        assert (str(pending_knowledge(session)), pending_knowledge(session).invalidated_tokens) == ("", 0)
        knowledge_folder(workspace).replace(DIGEST_FILE, b"- one\n- two\n- three\n")
        assert str(pending_knowledge(session)) == "newer digest pending (2 items)"
        prompt_tokens = sum(layer.tokens for layer in session.context_use().layers)
        assert 0 < pending_knowledge(session).invalidated_tokens < prompt_tokens
        await session.send("y")
        assert b"- two" not in provider.requests[-1].body
        assert await refresh_knowledge(session)
        assert not await refresh_knowledge(session)
        assert str(pending_knowledge(session)) == ""
        await session.send("z")
        assert b"- one\\n- two\\n- three" in provider.requests[-1].body
        assert [epoch.epoch for epoch in epochs(store, session)] == [1, 2]


@pytest.mark.parametrize("model", MODELS)
async def test_adopting_a_digest_changes_its_own_bytes_and_no_others(workspace: Path, model: str) -> None:
    provider, store = answering_provider(model), MemoryStore()
    dependencies: Options = {"transport": provider, "store": store, "clock": ManualClock(), "allow_uncached": True}
    async with Session.create(
        **(dependencies | {"model": model, "workspace": workspace, "padding": "never"})
    ) as session:
        await session.send("x")
        knowledge_folder(workspace).replace(DIGEST_FILE, b"- another\n")
        await refresh_knowledge(session)
        before = fold_events(store.read(session.id), session.id).entries
        await session.send("y")
        after = fold_events(store.read(session.id), session.id).entries
    first, second = (request.body for request in provider.requests)
    assert (first.count(b'"- one"'), second.count(b'"- one"')) == (1, 0)
    assert (first.count(b'"- another"'), second.count(b'"- another"')) == (0, 1)
    assert after[: len(before)] == before


async def test_a_miss_after_adopting_a_digest_is_planned(workspace: Path) -> None:
    provider, store = scripted_provider("a", "b", "c"), MemoryStore()
    async with new_session(provider, workspace=workspace, store=store) as session:
        await session.send("x")
        knowledge_folder(workspace).remove(DIGEST_FILE)
        await refresh_knowledge(session)
        await session.send("y")
        await session.send("z")
        assert session.cache.stats().unexpected_cache_breaks == 0
        assert b"- one" not in provider.requests[-1].body
    prepared = [event.payload for event in store.read(session.id) if isinstance(event.payload, RequestPrepared)]
    assert [request.prefix_change for request in prepared] == [None, None, None]
    certificates = list(certify(store.read(session.id), session.id, shipped_models()))
    assert [certificate.violation for certificate in certificates] == [None, None, None]
    assert 0 < certificates[1].prefix_bytes < certificates[2].prefix_bytes


@pytest.mark.parametrize("model", MODELS)
async def test_invalidating_the_cache_also_adopts_the_newer_digest(workspace: Path, model: str) -> None:
    provider, store = answering_provider(model), MemoryStore()
    dependencies: Options = {"transport": provider, "store": store, "clock": ManualClock(), "allow_uncached": True}
    async with Session.create(
        **(dependencies | {"model": model, "workspace": workspace, "padding": "never"})
    ) as session:
        await session.send("x")
        knowledge_folder(workspace).replace(DIGEST_FILE, b"- another\n")
        store.records.set_caching_enabled(session.id, enabled=False)
        await session.send("y")
        store.records.invalidate(session.id, at=0.0)
        await session.send("z")
        await session.send("and on")
    digests_sent = [(b'"- one"' in request.body, b'"- another"' in request.body) for request in provider.requests]
    assert digests_sent == [(True, False), (True, False), (False, True), (False, True)]
    assert [epoch.epoch for epoch in epochs(store, session)] == [1, 2]
    certificates = certify(store.read(session.id), session.id, shipped_models())
    assert [certificate.violation for certificate in certificates] == [None] * 4


async def test_no_read_is_expected_of_a_prefix_that_a_new_digest_changed(workspace: Path) -> None:
    store = MemoryStore()
    async with new_session(scripted_provider("a", "b", "c", "d"), workspace=workspace, store=store) as session:
        await session.send("x")
        await session.send("y")
        knowledge_folder(workspace).replace(DIGEST_FILE, b"- two\n")
        await refresh_knowledge(session)
        await session.send("z")
        await session.send("and on")
    prepared = [event.payload for event in store.read(session.id) if isinstance(event.payload, RequestPrepared)]
    first, second, third, fourth = (request.plan.expected_read_tokens for request in prepared)
    assert (first, third) == (0, 0)
    assert second > 0
    assert fourth > 0


@pytest.mark.changes_prefix(reason="another digest is adopted")
async def test_a_message_refused_after_a_new_digest_leaves_the_digest_chain_unchanged(
    workspace: Path, agent: MakeAgent
) -> None:
    refused = ProviderError("invalid_request", "no", status=400)
    harness = agent(says("a"), says("b"), refused, says("c"), system_prompt="Be brief.", workspace=workspace)
    async with harness.session as session:
        await session.send("x")
        await session.send("y")
        knowledge_folder(workspace).replace(DIGEST_FILE, b"- two\n")
        await refresh_knowledge(session)
        digests = fold_events(harness.events, session.id).digests
        with pytest.raises(ProviderError):
            await session.send("what is refused")
        assert fold_events(harness.events, session.id).digests == digests
        await session.send("what is taken")
    certificates = certify(harness.events, session.id, shipped_models())
    assert [certificate.violation for certificate in certificates] == [None] * 4


async def test_a_compaction_also_adopts_the_newer_digest(workspace: Path) -> None:
    conversation = LongConversation(workspace=workspace)
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        knowledge_folder(workspace).replace(DIGEST_FILE, b"- one\n- two\n")
        assert (await session.compact()).removed_message_count
        await conversation.send_turns(session, 1)
        assert b"- one\\n- two" in conversation.provider.requests[-1].body
        assert [epoch.system[-1].text for epoch in epochs(conversation.store, session)] == ["- one", "- one\n- two"]


async def test_a_compaction_without_a_newer_digest_opens_no_epoch(workspace: Path) -> None:
    conversation = LongConversation(workspace=workspace)
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        assert (await session.compact()).removed_message_count
        assert len(epochs(conversation.store, session)) == 1


@pytest.mark.parametrize(("refresh", "adopted"), [("epoch", False), ("next_turn", True)])
async def test_digest_refresh_controls_whether_the_next_turn_adopts_it(
    workspace: Path, refresh: DigestRefresh, adopted: bool
) -> None:
    provider = scripted_provider("a", "b")
    async with new_session(provider, workspace=workspace, digest_refresh=refresh) as session:
        await session.send("x")
        knowledge_folder(workspace).replace(DIGEST_FILE, b"- two\n")
        await session.send("y")
    assert (b"- two" in provider.requests[-1].body) == adopted


@pytest.mark.parametrize(("refresh", "adopted"), [(None, True), ("epoch", False)])
async def test_the_seed_profile_adopts_it_with_the_next_turn_by_default(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, refresh: str | None, adopted: bool
) -> None:
    if refresh is not None:
        monkeypatch.setenv("HOLDFAST_DIGEST_REFRESH", refresh)
    provider = scripted_provider("a", "b")
    async with new_session(provider, workspace=workspace, profile="seed", skills=False) as session:
        await session.send("x")
        knowledge_folder(workspace).replace(DIGEST_FILE, b"- two\n")
        await session.send("y")
    assert (b"- two" in provider.requests[-1].body) == adopted
