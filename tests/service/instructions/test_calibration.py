"""Real intents become probes once a week, and one replica measures at a time."""

import hashlib

import pytest
from tests.support.instruction_service import AGENT, InstructionService

from holdfast.clock import ManualClock
from holdfast.engine.leases import JOB_LEASE_SECONDS, ProcessLeases, run_job
from holdfast.instructions.coverage.schedule import (
    SAMPLED_PROBE_PREFIX,
    calibrate_due_agents,
    redact_personal_text,
    run_due_coverage,
)
from holdfast.instructions.models import Probe
from holdfast.service.server import make_coverage_job
from holdfast.stores.memory import MemoryStore

DAY_SECONDS = 86_400


@pytest.mark.parametrize(
    ("intent", "redacted"),
    [
        ("write to ann.lee@example.org about the refund", "write to [email] about the refund"),
        ("call +49 170 1234567 about invoice 20391", "call [number] about invoice [number]"),
        ("open https://example.org/u/77?x=1 and review it", "open [link] and review it"),
        ("approve the purchase that Ann Lee wants", "approve the purchase that [name] wants"),
        ("review the change of @annlee", "review the change of [name]"),
        ("pay the invoice for Dr. Who", "pay the invoice for [name]"),
        ("delete /home/ann/secret.txt now", "delete [path] now"),
        ("use password=hunter2 to log in", "use password=[redacted] to log in"),
        ('say "Ann is ill" in the channel', "say [quote] in the channel"),
        ("close 8e0ed057-bcd8-4f8f-92ee-c046c55b64e9 today", "close [id] today"),
        ("review a pull request in step 3", "review a pull request in step 3"),
    ],
)
def test_intent_is_anonymized(intent: str, redacted: str) -> None:
    assert redact_personal_text(intent) == redacted


def ask_and_close(service: InstructionService, intent: str, count: int) -> None:
    for _ in range(count):
        token = service.recall(intent).json["audit_token"]
        body = {"audit_token": token, "used_chunks": ["checkout-procedure"]}
        assert service.request("POST", "/v1/instruction/audit", body, key=service.agent_key).status == 204


def test_one_in_ten_real_intents_becomes_a_probe_once_a_week(published_service: InstructionService) -> None:
    service = published_service
    for number in range(40):
        ask_and_close(service, f"claim the ticket of customer {1000 + number} {'abcdefghij'[number % 10]}x", 1)
    sampled = [
        record
        for record in service.records("recall")
        if int.from_bytes(hashlib.sha256(record["id"].encode()).digest()[:4]) % 10 == 0
    ]
    assert 0 < len(sampled) < 20
    assert calibrate_due_agents(service.library) == (AGENT,)
    probes = service.library.records.probes(AGENT)
    assert probes
    assert {probe.intent for probe in probes} == {redact_personal_text(record["intent"]) for record in sampled}
    assert all(
        probe.probe_id.startswith(SAMPLED_PROBE_PREFIX) and "customer [number]" in probe.intent for probe in probes
    )
    assert all(probe.required_units == ("checkout-procedure",) for probe in probes)
    service.clock.advance(6 * DAY_SECONDS)
    assert calibrate_due_agents(service.library) == ()
    service.clock.advance(DAY_SECONDS + 1)
    assert calibrate_due_agents(service.library) == ()
    ask_and_close(service, "claim a ticket", 1)
    assert calibrate_due_agents(service.library) == (AGENT,)


def test_recall_without_reported_usage_becomes_no_probe(published_service: InstructionService) -> None:
    for _ in range(30):
        published_service.recall("claim a ticket")
    assert calibrate_due_agents(published_service.library) == ()
    assert published_service.library.records.probes(AGENT) == ()


def test_sample_is_discarded_if_another_replica_took_the_lease(published_service: InstructionService) -> None:
    records = published_service.library.records
    probe = Probe("real-1", AGENT, "claim a ticket", ("checkout-procedure",))
    assert records.save_sampled_probes((), lease="calibrate:x", until=100, at=50)
    assert not records.save_sampled_probes((probe,), lease="calibrate:x", until=110, at=60)
    assert records.probes(AGENT) == ()
    assert records.save_sampled_probes((probe,), lease="calibrate:x", until=210, at=101)
    assert records.probes(AGENT) == (probe,)


def test_one_replica_measures_at_a_time_and_the_job_of_a_dead_one_is_taken_over(
    published_service: InstructionService,
) -> None:
    service, clock = published_service, ManualClock(1_000_000)
    service.clock.advance(2 * DAY_SECONDS)
    work = MemoryStore(clock=clock).records.shared
    dead, alive = ProcessLeases(work, "dead"), ProcessLeases(work, "alive")
    assert dead.take("job coverage", seconds=JOB_LEASE_SECONDS)
    job = make_coverage_job(service.library)
    assert not run_job(alive, job)
    clock.advance(JOB_LEASE_SECONDS + 1)
    assert run_job(alive, job)
    assert run_due_coverage(service.library) == ()
