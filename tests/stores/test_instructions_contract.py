"""What every database keeps of instructions: each method of the protocol, on SQLite and on PostgreSQL."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.instruction_service import open_store_of_kind

from holdfast.errors import StoreError
from holdfast.events.records import KeyRow
from holdfast.instructions.models import (
    Agent,
    Approval,
    AuditRecord,
    BootStub,
    CoverageRun,
    DetectedUnit,
    LoadedUnit,
    Manifest,
    ManifestEntry,
    Probe,
    Provenance,
    Signer,
    UnitVersion,
    UsageEvidence,
)
from holdfast.instructions.store import InstructionRecords, OwnedRecord
from holdfast.stores.event_log import DatabaseEventLog

AGENT = Agent("a1", "local", 1, "tester's %s ?", "ann", ("boss",), "every hour", ("Be \x00 kind.",), sensitive=True)
SHARED = "shared"


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseEventLog]:
    with open_store_of_kind(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def records(store: DatabaseEventLog) -> InstructionRecords:
    return store.instructions


def unit(name: str = "style", version: str = "v1", *, owner: str = "a1", at: int = 10, **more: object) -> UnitVersion:
    made = UnitVersion(
        *(f"instruction:local/{owner}/{name}/{version}", owner, name, version, f"{name} \x01 text", "0f" * 32, 3, at),
        *("acme:user/ann", at, 0.75, "active"),
    )
    return replace(made, **more)


def manifest(
    version: str = "v1", *, agent: str = "a1", at: int = 20, owner: str = "a1", name: str = "style"
) -> Manifest:
    entry = ManifestEntry(name, "About it.", guarantee_load=True, fact_uri=f"instruction:local/{owner}/{name}/v1")
    return Manifest(
        f"{agent}-{version}", agent, version, "uri", 5, (entry,), at, "stigmem", Provenance("acme:user/ann")
    )


def coverage(agent: str = "a1", version: str = "v1", *, at: int = 21, **more: object) -> CoverageRun:
    made = CoverageRun(
        id=f"run-{agent}-{at}",
        agent_id=agent,
        manifest_version=version,
        model_id="m",
        kind="gate",
        started_at=at,
        finished_at=at,
    )
    return replace(made, **more)


def audit(number: int, *, at: int = 30, **more: object) -> AuditRecord:
    loaded = (LoadedUnit("style", "v1", "stigmem", 1, 0.5, 3),)
    made = AuditRecord(
        id=f"r{number}",
        agent_id="a1",
        heartbeat_id="beat",
        session_start=1,
        intent="why? 100%",
        loaded_chunks=loaded,
        audit_token=f"t{number}",
        created_at=at,
        detail={"principal": "ann"},
    )
    return replace(made, **more)


def publish(records: InstructionRecords, made: Manifest, *, over: str | None = None, **more: object) -> bool:
    run = coverage(made.agent_id, made.version, at=made.created_at + 1)
    given: dict[str, object] = {"agent": None, "run": run, "approvals": (), "events": (), **more}
    done: bool = records.publish(made, replaces_id=over, **given)  # type: ignore[arg-type]
    return done


def test_an_agent_is_found_by_id_and_by_shortname_and_counts_its_revisions(records: InstructionRecords) -> None:
    assert records.put_agent(AGENT)
    assert records.agent("a1") == records.agent("ann") == replace(AGENT, revision=1)
    assert records.agent("b") is None
    assert records.put_agent(replace(AGENT, role="other", created_at=99))
    assert records.agents() == (replace(AGENT, role="other", revision=2),)


@pytest.mark.parametrize(
    "other", [Agent("ann", "local", 2), Agent("b", "local", 2, "", "ann"), Agent("b", "local", 2, "", "a1")]
)
def test_ids_and_shortnames_of_agents_are_one_namespace(records: InstructionRecords, other: Agent) -> None:
    assert records.put_agent(AGENT)
    assert not records.put_agent(other)
    assert [agent.id for agent in records.agents()] == ["a1"]


def test_a_new_version_ends_the_one_before_and_both_can_be_read_as_of_their_time(records: InstructionRecords) -> None:
    first, second = unit(), unit(version="v2", at=15)
    assert records.add_unit(first, AGENT, replaces_uri=None)
    assert not records.add_unit(first, None, replaces_uri=first.uri), "the address is taken"
    assert not records.add_unit(second, None, replaces_uri=None), "another version is active"
    assert records.add_unit(second, None, replaces_uri=first.uri)
    ended = replace(first, valid_until=15)
    assert records.list_unit_versions("a1", "style") == (ended, second)
    assert records.unit(first.uri) == ended
    assert records.units_at(["a1"], None) == records.units_at(["a1", "none"], 15) == (second,)
    assert records.units_at(["a1"], 14) == (ended,)
    assert records.units_at(["a1"], 9) == records.units_at([], None) == ()
    assert records.unit("none") is None


def test_a_quarantined_version_is_released_once(records: InstructionRecords) -> None:
    held = unit(status="quarantined")
    assert records.add_unit(held, AGENT, replaces_uri=None)
    released = replace(held, status="active", signature="s", signed_by="k", source_trust=1.0)
    assert records.release_unit(released, replaces_uri=None)
    assert records.unit(held.uri) == released
    assert not records.release_unit(released, replaces_uri=None)


def test_a_pending_version_is_activated_unless_a_manifest_appeared_that_was_not_judged(
    records: InstructionRecords,
) -> None:
    waiting = unit(status="pending")
    assert records.add_unit(waiting, AGENT, replaces_uri=None)
    made = manifest()
    assert publish(records, made)
    assert not records.activate_unit(waiting, replaces_uri=None, at=40, manifest_ids=())
    assert records.activate_unit(waiting, replaces_uri=None, at=40, manifest_ids=(made.id,))
    assert records.unit(waiting.uri) == replace(waiting, status="active", created_at=40)
    run = records.coverage("a1")
    assert run is not None
    assert run.stale


def test_a_shared_unit_changes_all_who_list_it_and_letter_case_counts(records: InstructionRecords) -> None:
    assert publish(records, manifest(owner=SHARED), agent=AGENT)
    other = Agent("a2", "local", 1)
    assert publish(records, manifest(agent="a2", owner=SHARED, name="STYLE"), agent=other)
    assert publish(records, manifest(agent="a3", owner=SHARED, name="my_unit"), agent=Agent("a3", "local", 1))
    assert [made.agent_id for made in records.manifests_listing(SHARED, "style")] == ["a1"]
    assert [made.agent_id for made in records.manifests_listing(SHARED, "myXunit")] == []
    before = {agent.id: agent.revision for agent in records.agents()}
    assert not records.add_unit(unit(owner=SHARED), None, replaces_uri=None), "the manifest was not judged"
    assert records.add_unit(unit(owner=SHARED), None, replaces_uri=None, manifest_ids=("a1-v1",))
    assert {agent.id: agent.revision for agent in records.agents()} == {id: n + 1 for id, n in before.items()}
    assert [records.coverage(id).stale for id in ("a1", "a2", "a3")] == [True, False, False]  # type: ignore[union-attr]


def test_one_manifest_of_an_agent_is_current(records: InstructionRecords) -> None:
    first, second = manifest(), manifest("v2", at=40)
    approval = Approval(
        id="p1", agent_id="a1", kind="skip_gate", authored_by="acme:user/ben", authored_at=19, reason="ok"
    )
    assert publish(records, first, agent=AGENT, approvals=(approval,), events=(audit(1, event_type="coverage_bypass"),))
    assert not publish(records, second), "the first is current"
    assert not publish(records, first, over=first.id), "the version is not new"
    assert publish(records, second, over=first.id)
    assert records.manifest("a1") == second
    ended = replace(first, superseded_at=40)
    assert records.manifest_at("a1", 39) == records.find_manifest_version("a1", "v1") == ended
    assert records.manifest_at("a1", 40) == second
    assert records.manifest_at("a1", 19) is None
    assert sorted(records.manifest_versions("a1")) == ["v1", "v2"]
    assert records.guaranteed_count() == 1
    assert records.approvals("a1") == (approval,)
    assert records.audit("t1") == audit(1, event_type="coverage_bypass")


def test_a_manifest_holds_what_must_still_be_active_and_activates_what_waited(records: InstructionRecords) -> None:
    held, waiting = unit("held"), unit("waits", status="pending")
    assert records.add_unit(held, AGENT, replaces_uri=None)
    assert records.add_unit(waiting, None, replaces_uri=None)
    made = manifest()
    assert not publish(records, made, pinned_uris=("none",))
    assert records.manifest("a1") is None
    assert publish(records, made, pinned_uris=(held.uri,), activates=((waiting, None, ()),))
    assert records.unit(waiting.uri) == replace(waiting, status="active", created_at=made.created_at)


def test_of_those_who_publish_at_once_one_succeeds(records: InstructionRecords) -> None:
    def attempt(number: int) -> bool:
        return publish(records, manifest(f"v{number}"), pinned_uris=())

    assert records.put_agent(AGENT)
    with ThreadPoolExecutor(4) as workers:
        assert sorted(workers.map(attempt, range(8))) == [False] * 7 + [True]


def test_a_stub_is_replaced_by_one_with_another_key_and_dropped_by_a_change(records: InstructionRecords) -> None:
    stub = BootStub(
        agent_id="a1", adapter_profile="generic", stub_version=1, body="b", token_count=1, body_token_count=1,
        generated_at=1, manifest_version="v1", cache_key="k",
    )  # fmt: skip
    records.save_stub(stub)
    records.save_stub(replace(stub, body="late"))
    assert records.stub("a1", "generic") == stub
    records.save_stub(replace(stub, body="new", cache_key="l"))
    assert records.stub("a1", "generic") == replace(stub, body="new", cache_key="l")
    assert records.put_agent(AGENT)
    assert records.stub("a1", "generic") is None


def test_a_recall_is_recorded_once_closed_once_and_analysed_once(records: InstructionRecords) -> None:
    records.add_audit(audit(1))
    detected = (DetectedUnit("style", (UsageEvidence("phrase", 1, 2),)),)
    assert records.close_audit("t1", used=["style"], missed=["o'ther"], at=31)
    assert not records.close_audit("t1", used=[], missed=[], at=32)
    assert records.save_detected_usage("t1", detected, at=33)
    assert not records.save_detected_usage("t1", (), at=34)
    closed = audit(
        1, used_chunks=("style",), missed_chunks=("o'ther",), audit_closed=31, detected=detected, detected_at=33
    )
    assert records.audit("t1") == closed
    assert records.audit("none") is None


def test_records_written_at_once_are_all_there_in_order(records: InstructionRecords) -> None:
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(lambda number: records.add_audit(audit(number, at=30 + number)), range(9)))
    assert [record.id for record in records.audits("a1", since=32)] == [f"r{number}" for number in range(2, 9)]
    assert len(records.list_run_audits("a1", "beat")) == 9
    assert records.heartbeat("a1", "beat") is None
    records.add_audit(audit(10, event_type="preload"))
    assert records.heartbeat("a1", "beat") == audit(10, event_type="preload")


def test_records_added_together_are_all_there_and_one_that_cannot_be_stored_fails_alone(
    records: InstructionRecords,
) -> None:

    assert records.add_audits([audit(number, at=30 + number) for number in range(120)]) == (None,) * 120
    assert [record.id for record in records.audits("a1", since=0)] == [f"r{number}" for number in range(120)]
    first, refused, last = records.add_audits([audit(200), audit(0), audit(201)])
    assert (first, last) == (None, None)
    assert isinstance(refused, StoreError)
    assert records.audit("t200") == audit(200)


def test_the_newest_run_of_the_current_manifest_is_its_coverage(records: InstructionRecords) -> None:
    assert publish(records, manifest(), agent=AGENT)
    newest = coverage(at=50, recert_due=90, skipped=True)
    records.add_coverage(newest)
    records.add_coverage(coverage(version="v9", at=60))
    assert records.coverage("a1") == newest
    assert records.agents_to_measure(finished_before=49, recert_before=89) == ()
    assert records.agents_to_measure(finished_before=50, recert_before=0) == ("a1",)
    assert records.agents_to_measure(finished_before=0, recert_before=90) == ("a1",)


def test_probes_are_replaced_and_sampled_under_a_lease(records: InstructionRecords) -> None:
    assert publish(records, manifest(), agent=AGENT)
    probe = Probe("p", "a1", "how?", ("style",))
    records.put_probe(replace(probe, intent="old"))
    records.add_audit(audit(1))
    assert records.agents_to_sample("sample:", since=0, at=50) == ()
    assert records.close_audit("t1", used=[], missed=[], at=31)
    assert records.agents_to_sample("sample:", since=0, at=50) == ("a1",)
    assert records.save_sampled_probes([probe], lease="sample:a1", until=60, at=50)
    assert not records.save_sampled_probes([replace(probe, k=9)], lease="sample:a1", until=60, at=50)
    assert records.probes("a1") == (probe,)
    assert records.agents_to_sample("sample:", since=0, at=50) == ()


def test_a_signer_counts_while_its_entity_has_an_admin_key(
    store: DatabaseEventLog, records: InstructionRecords
) -> None:
    signer = Signer("acme:user/ann", "pk", 1)
    records.add_signer(signer)
    records.add_signer(signer)
    assert records.signers(at=5_000) == ()
    store.records.add_key(KeyRow("k", "d", "admin", 1.0, None, "acme:user/ann", 9.5))
    assert records.signers(at=None) == records.signers(at=9_499) == (signer,)
    assert records.signers(at=9_500) == ()
    records.remove_signers([signer])
    assert records.signers(at=None) == ()


def test_a_token_is_used_once(records: InstructionRecords) -> None:
    assert records.consume_wake_token("j", expires_at=10, at=1)
    assert not records.consume_wake_token("j", expires_at=10, at=2)
    assert records.consume_wake_token("j", expires_at=20, at=11), "the last one has expired"


@pytest.mark.parametrize(
    ("read", "write"),
    [
        (InstructionRecords.encoder, InstructionRecords.set_encoder),
        (InstructionRecords.refused_encoder, InstructionRecords.set_refused_encoder),
    ],
    ids=["accepted", "refused"],
)
def test_what_is_set_of_the_encoder_is_read_back(
    records: InstructionRecords,
    read: Callable[[InstructionRecords], str | None],
    write: Callable[[InstructionRecords, str], None],
) -> None:
    get, put = getattr(records, read.__name__), getattr(records, write.__name__)
    assert get() is None
    put("one ? 100%")
    put("two \x00")
    assert get() == "two \x00"
    assert [records.encoder(), records.refused_encoder()].count(None) == 1


def test_an_owner_is_taken_over_as_a_whole_or_not_at_all(records: InstructionRecords) -> None:
    agent = replace(AGENT, revision=3)
    probe = Probe("p", "a1", "how?", ("style",))
    run = coverage()
    owned: tuple[OwnedRecord, ...] = (
        agent,
        unit(),
        manifest(),
        run,
        probe,
        *(audit(number, at=number) for number in range(3)),
    )
    assert not records.has_owner("a1")
    assert records.add_owner(owned)
    assert not records.add_owner(owned)
    assert records.has_owner("a1")
    assert tuple(records.list_owner_records("a1")) == owned
    shared = unit("etiquette", owner=SHARED)
    assert records.add_owner((shared,))
    assert records.owners() == (SHARED, "a1")
    assert records.other_deployment("local") is None
    assert records.other_deployment("acme") == "local"


def test_encodings_are_kept_until_they_were_not_used_for_long_or_there_are_too_many(
    records: InstructionRecords, store: DatabaseEventLog
) -> None:
    records.keep_encodings({b"a": b"\x00\x01", b"b": b"\xff"}, at=10, kept_since=0)
    assert records.encodings([b"a", b"b", b"c"]) == {b"a": (b"\x00\x01", 10), b"b": (b"\xff", 10)}
    records.keep_encodings({b"b": b"new"}, at=20, kept_since=0)
    records.keep_encodings({b"c": b"c"}, at=30, kept_since=11)
    assert records.encodings([b"a", b"b", b"c"]) == {b"b": (b"new", 20), b"c": (b"c", 30)}
    store.instructions.keep_encodings({b"d": b"d"}, at=40, kept_since=0, count_max=1)
    assert sorted(records.encodings([b"b", b"c", b"d"])) == [b"c", b"d"]
    assert records.encodings([]) == {}
    many = {number.to_bytes(2): b"v" for number in range(2_500)}
    records.keep_encodings(many, at=50, kept_since=0)
    assert records.encodings([*many]) == dict.fromkeys(many, (b"v", 50))
