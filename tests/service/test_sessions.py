"""The calls of a session over HTTP: prompt layers, plan, verdict."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted_sessions import new_session
from tests.support.served_service import Client, serve_store
from tests.support.simulated_gemini import LONG
from tests.support.skill_folders import write_skill

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.runtime.session import Session
from holdfast.service.sample import SamplePlayer, load_sample
from holdfast.simulator.provider import SimulatedProvider
from holdfast.sources.skills.discovery import SkillRoot
from holdfast.stores.memory import MemoryStore

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A service over the sample, played without pauses."""
    store = MemoryStore()
    asyncio.run(SamplePlayer(store, shipped_models(), pause=0).play())
    with serve_store(store, simulated=True) as served:
        yield served


def session_named(client: Client, words: str) -> str:
    discussions = client.get("/api/cache")["discussions"]
    return str(next(discussion["discussion_id"] for discussion in discussions if words in discussion["name"]))


def calls_of(client: Client, words: str, query: str = "") -> Any:
    return client.get(f"/api/sessions/{session_named(client, words)}/calls{query}")


def test_every_call_lists_its_prompt_layers_and_cache_reads(client: Client) -> None:
    calls = calls_of(client, "stable prefix")
    assert (calls["name"], calls["model"], calls["simulated"]) == (
        load_sample().sessions[0].name,
        load_sample().sessions[0].model,
        True,
    )
    assert calls["calls_total"] == len(calls["calls"]) == 9
    for call in calls["calls"]:
        sent = call["read_tokens"] + call["written_tokens"] + call["uncached_tokens"]
        assert sum(layer["tokens"] for layer in call["layers"]) == sent
        assert [layer["layer"] for layer in call["layers"]] == ["tools", "preset", "skills", "metadata", "history"]
        assert [breakpoint["tokens"] for breakpoint in call["breakpoints"]] == sorted(
            breakpoint["tokens"] for breakpoint in call["breakpoints"]
        )
        assert call["breakpoints"][-1]["tokens"] == sent
    assert [call["verdict"] for call in calls["calls"]] == ["first_use", *["held"] * 8]
    assert all(call["cost_usd"] < call["uncached_usd"] for call in calls["calls"][1:])


def test_newest_calls_come_first_and_pages_join_without_a_gap(client: Client) -> None:
    whole = calls_of(client, "stable prefix")["calls"]
    assert calls_of(client, "stable prefix", "?limit=4")["calls"] == whole[-4:]
    first, second = (calls_of(client, "stable prefix", f"?after={after}&limit=5")["calls"] for after in (0, 5))
    assert first + second == whole
    assert calls_of(client, "stable prefix", "?after=9")["calls"] == []


def test_model_switch_is_listed_between_the_calls(client: Client) -> None:
    calls = calls_of(client, "model switched")
    (switch,) = calls["between"]
    assert (switch["kind"], switch["calls_before"]) == ("model", 6)
    assert [call["verdict"] for call in calls["calls"]][6] == "model_switched"
    assert calls_of(client, "model switched", "?after=7")["between"] == []


def test_call_shows_its_plan_verdict_and_certificate(client: Client) -> None:
    call = client.get(f"/api/sessions/{session_named(client, 'time is before')}/calls/7")
    assert call["call"]["number"] == 7
    assert [breakpoint["layer"] for breakpoint in call["breakpoints"]] == ["tools", "skills", "history"]
    assert all(breakpoint["reason"] for breakpoint in call["breakpoints"])
    verdict = call["verdict"]
    assert (verdict["kind"], verdict["component"], verdict["bytes_verdict"]) == (
        "prefix_changed",
        "volatile",
        "changed",
    )
    assert verdict["provider_diagnosis"] == "miss: system_changed"
    assert call["blocks_shared"] < call["blocks_before"]
    assert "the prefix changed" in call["certificate"]["violation"]
    good = client.get(f"/api/sessions/{session_named(client, 'stable prefix')}/calls/7")
    assert (good["certificate"]["violation"], good["certificate"]["call"]) == (None, 7)
    assert good["certificate"]["read_tokens"] == good["call"]["read_tokens"]


def test_first_changed_byte_is_shown_in_context(client: Client) -> None:
    found = client.get(f"/api/sessions/{session_named(client, 'time is before')}/calls/7/bytes")
    assert "The time is 1" in found["shared"]
    assert found["before"][0] != found["after"][0]
    verdict = client.get(f"/api/sessions/{session_named(client, 'time is before')}/calls/7")["verdict"]
    assert found["byte"] == verdict["byte"]
    held = client.get(f"/api/sessions/{session_named(client, 'stable prefix')}/calls/7/bytes")
    assert (held["byte"], held["shared"], held["before"]) == (None, "", "")
    assert held["bytes_after"] > held["bytes_before"]
    before = client.get(f"/api/sessions/{session_named(client, 'stable prefix')}/calls/6/bytes")
    assert before["bytes_after"] == held["bytes_before"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/sessions/none-such/calls", "session_not_found"),
        ("/api/sessions/none-such/calls/1", "call_not_found"),
        ("/api/sessions/{id}/calls/10", "call_not_found"),
        ("/api/sessions/{id}/calls/1/bytes", "bytes_not_found"),
        ("/api/sessions/{id}/calls/0", "invalid_number"),
        ("/api/sessions/{id}/calls?limit=0", "invalid_limit"),
        ("/api/sessions/{id}/calls?before=1", "unknown_field"),
    ],
)
def test_missing_resource_is_named_in_the_error(client: Client, path: str, code: str) -> None:
    assert client.request("GET", path.replace("{id}", session_named(client, "stable prefix"))).code == code


async def test_new_events_are_read_and_deleted_sessions_dropped() -> None:
    store, clock = MemoryStore(), ManualClock()
    provider = SimulatedProvider(clock=clock)
    with serve_store(store, clock=clock) as client:
        async with new_session(provider, store=store, clock=clock, name=HOSTILE) as session:
            await session.send("One.")
            path = f"/api/sessions/{session.id}/calls"
            assert client.get(path)["calls_total"] == 1
            await session.send("Two.")
            response = client.get(path)
        assert (response["calls_total"], response["name"]) == (2, HOSTILE)
        store.delete(session.id)
        assert client.request("GET", path).code == "session_not_found"


async def test_invalidated_cache_is_on_the_timeline() -> None:
    store, clock = MemoryStore(), ManualClock()
    with serve_store(store, clock=clock) as client:
        async with Session.create(
            model="anthropic:claude-sonnet-5-5",
            system_prompt=LONG,
            store=store,
            transport=SimulatedProvider(clock=clock),
            simulated=False,
            clock=clock,
            new_id=CountingIds(),
        ) as session:
            await session.send("One.")
            assert client.request("POST", f"/api/cache/{session.id}/invalidate").status == 200
            await session.send("Two.")
        calls = client.get(f"/api/sessions/{session.id}/calls")
        assert [(one["kind"], one["calls_before"]) for one in calls["between"]] == [("control", 1)]
        assert [call["verdict"] for call in calls["calls"]] == ["first_use", "planned"]
        # The prompt was rebuilt: it is listed in full, not as an addition to the previous one.
        assert sum(layer["tokens"] for layer in calls["calls"][1]["layers"]) < 1.1 * sum(
            layer["tokens"] for layer in calls["calls"][0]["layers"]
        )


def test_calls_of_a_prefix_change_are_found_most_expensive_first(client: Client) -> None:
    calls = client.get("/analytics/breaks/calls?cause=prefix_changed&component=volatile")
    session = session_named(client, "time is before")
    assert [(one["session"], one["number"]) for one in calls["data"]] == [(session, number) for number in (9, 7, 5, 3)]
    row = next(one for one in client.get("/analytics/breaks")["data"] if one["cause"] == "prefix_changed")
    assert round(sum(one["lost_usd"] for one in calls["data"]), 5) == round(row["lost_usd"], 5)
    page = client.get("/analytics/breaks/calls?cause=prefix_changed&limit=1&skip=1")
    assert ([one["number"] for one in page["data"]], page["more"]) == ([7], True)
    assert client.get("/analytics/breaks/calls?cause=lookback_miss")["data"] == []
    everything = client.get("/analytics/breaks/calls?limit=500")
    assert "held" not in {one["cause"] for one in everything["data"]}
    assert (len(everything["data"]) > 6, everything["more"]) == (True, False)


def test_sessions_are_listed_by_page(client: Client) -> None:
    whole = client.get("/api/cache")
    pages = [client.get(f"/api/cache?limit=4&skip={skip}") for skip in (0, 4)]
    assert [page["more"] for page in pages] == [True, False]
    assert [*pages[0]["discussions"], *pages[1]["discussions"]] == whole["discussions"]
    costs = [client.get(f"/analytics/sessions?limit=4&skip={skip}")["data"] for skip in (0, 4)]
    assert [*costs[0], *costs[1]] == client.get("/analytics/sessions")["data"]


def test_cache_view_shows_the_last_verdict_and_the_coverage(client: Client) -> None:
    cache = client.get("/api/cache")
    verdicts = {discussion["name"]: discussion["verdict"] for discussion in cache["discussions"]}
    assert verdicts[load_sample().sessions[1].name] == "prefix_changed"
    assert verdicts[load_sample().sessions[0].name] == "held"
    coverage = {provider["provider"]: provider["hit_coverage"] for provider in cache["providers"]}
    assert coverage["openai"] == pytest.approx(8 / 9)
    alone = client.get(f"/api/cache/{session_named(client, 'time is before')}")
    assert alone["verdict"] == "prefix_changed"
    assert alone["verdict_detail"].startswith("block 6 of 2")


def test_sample_plays_good_practice_and_anti_patterns_to_the_end(client: Client) -> None:
    discussions = client.get("/api/cache")["discussions"]
    assert [discussion["name"] for discussion in discussions] == [habit.name for habit in load_sample().sessions]
    assert all(discussion["cached"] for discussion in discussions)
    causes = {row["cause"] for row in client.get("/analytics/breaks")["data"]}
    assert causes >= {"prefix_changed", "ttl_expired", "model_switched"}
    assert {row["turn_count"] for row in client.get("/analytics/sessions")["data"]} == {len(load_sample().questions)}
    (skill,) = client.get("/analytics/skills")["data"]
    assert (skill["skill"], skill["loads_on_demand"]) == ("refunds", len(load_sample().sessions))


def test_sample_is_available_only_in_a_simulated_service() -> None:
    with serve_store(MemoryStore()) as client:
        assert client.request("POST", "/api/sample").code == "not_simulating"
        assert client.get("/api/visitor") == {
            "scope": "admin",
            "signed_in": False,
            "sample": "off",
            "is_simulating": False,
            "key_id": None,
        }


def test_skills_are_listed_with_their_findings(tmp_path: Path) -> None:
    write_skill(tmp_path, "review", body="Review it.\n")
    write_skill(tmp_path, "broken", front="name: broken\n")
    with serve_store(MemoryStore()) as client:
        assert client.get("/api/skills") == {"skills": [], "skills_total": 0}
        client.service.skill_roots = (SkillRoot(str(tmp_path), "workspace"),)
        skills = client.get("/api/skills")
    broken, review = sorted(skills["skills"], key=lambda one: str(one["name"]))
    assert (review["name"], review["loads"], review["source"], review["findings"]) == ("review", True, "workspace", [])
    assert (broken["name"], broken["loads"], skills["skills_total"]) == ("broken", False, 2)
    assert all(finding["rule"] and finding["fix"] for finding in broken["findings"])
    assert any(finding["severity"] == "error" for finding in broken["findings"])
