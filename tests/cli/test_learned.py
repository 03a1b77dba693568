"""`holdfast learned`: the learned parameters of a store, with their evidence."""

import json
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli.main import command
from holdfast.events.log import Event
from holdfast.events.payloads.session import SessionStarted
from holdfast.planning.idle_times import IdleTimesByCause, count_idle_times
from holdfast.planning.learned import CacheMemory, LearningScope, ObservedFloor, UpgradeBelief, make_learned_record
from holdfast.stores.sqlite.store import SqliteStore

SONNET = "anthropic:claude-sonnet-5-5"


def store_with_lessons(
    path: Path, memory: CacheMemory, *, session: str = "s1", workspace: str | None = "/home/me/shop"
) -> None:
    scene = LearningScope(SONNET, "direct", workspace and "hash")
    started = SessionStarted(SONNET, workspace_path=workspace)
    with SqliteStore(path) as store:
        events = [
            Event(f"{session}-1", 1.0, session, "system", started),
            Event(
                f"{session}-2",
                2.0,
                session,
                "system",
                make_learned_record(memory, scene),
                parent_event_id=f"{session}-1",
            ),
        ]
        store.append(events).result(10)


def learned(*arguments: str) -> str:
    result = CliRunner().invoke(command, ["learned", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_evidence_probabilities_floor_and_pauses_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    belief = UpgradeBelief().with_observation(read=True).with_observation(read=True).with_observation(read=False)
    gaps = IdleTimesByCause(count_idle_times([5.0] * 7), count_idle_times([40.0, 900.0]))
    floor = ObservedFloor().with_outcome(2_000, cached=False).with_outcome(2_000, cached=False)
    store_with_lessons(path, CacheMemory(calls=10, idle_times=gaps, upgrade_belief=belief, floor=floor))
    first, row, _, _, waits = learned("--db", str(path)).splitlines()
    assert first.split()[:2] == ["model", "route"]
    assert row.split() == [SONNET, "direct", "98%", "likely", "2", "1", "2001", "tokens", "1"]
    assert waits.split() == ["/home/me/shop", "1", "10", "7", "2", "11.1%"]


def test_json_names_the_sessions_that_are_the_evidence(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store_with_lessons(
        path, CacheMemory(calls=1, upgrade_belief=UpgradeBelief().with_observation(read=False)), session="a"
    )
    store_with_lessons(path, CacheMemory(calls=2), session="b", workspace=None)
    report = json.loads(learned("--db", str(path), "--json"))
    (cache,) = report["caches"]
    assert (cache["sessions"], cache["anchors_lost"], cache["floor_tokens"]) == (["a", "b"], 1, None)
    assert cache["upgrade_probability"] < 0.5
    assert [rhythm["workspace"] for rhythm in report["idle_times"]] == [None, "/home/me/shop"]


def test_a_deleted_session_is_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store_with_lessons(path, CacheMemory(calls=1, upgrade_belief=UpgradeBelief().with_observation(read=True)))
    with SqliteStore(path) as store:
        store.delete("s1")
    assert learned("--db", str(path)) == "Nothing has been learned yet.\n"
