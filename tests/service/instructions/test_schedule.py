"""Which agents are measured automatically, and how measuring yields to requests."""

import asyncio

import msgspec
import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService

from holdfast.clock import ManualClock
from holdfast.engine.leases import ProcessLeases
from holdfast.instructions.coverage.schedule import (
    DAY_MS,
    RECERT_LEAD_MS,
    TimeSharing,
    calibrate_due_agents,
    run_due_coverage,
)
from holdfast.service.server import make_coverage_job, run_jobs
from holdfast.stores.memory import MemoryStore

DAY_SECONDS = 86_400


def add_agents(service: InstructionService, count: int) -> tuple[str, ...]:
    """Adds agents with the manifest and coverage run of the first."""
    records = service.library.records
    first, manifest, run = records.agent(AGENT), records.manifest(AGENT), records.coverage(AGENT)
    assert first
    assert manifest
    assert run
    names = tuple(f"z{number}" for number in range(count))
    for name in names:
        assert records.publish(
            msgspec.structs.replace(manifest, id=f"m-{name}", agent_id=name),
            replaces_id=None,
            agent=msgspec.structs.replace(first, id=name, shortname=None),
            run=msgspec.structs.replace(run, id=f"c-{name}", agent_id=name),
            approvals=(),
            events=(),
        )
    return names


def due(service: InstructionService) -> tuple[str, ...]:
    now = service.library.now()
    return service.library.records.agents_to_measure(finished_before=now - DAY_MS, recert_before=now + RECERT_LEAD_MS)


def test_fresh_run_is_not_due_and_a_day_old_one_is(published_service: InstructionService) -> None:
    names = add_agents(published_service, 2)
    published_service.clock.advance(DAY_SECONDS - 1)
    assert due(published_service) == ()
    published_service.clock.advance(1)
    assert due(published_service) == (AGENT, *names)
    assert run_due_coverage(published_service.library) == (AGENT, *names)
    assert due(published_service) == ()


def test_run_is_due_once_a_unit_or_the_manifest_changed(published_service: InstructionService) -> None:
    add_agents(published_service, 1)
    assert (
        published_service.write("code-review", "v2", "Read the whole pull request. Then leave a review.").status == 201
    )
    assert due(published_service) == (AGENT,)
    assert run_due_coverage(published_service.library) == (AGENT,)
    published_service.clock.advance(1)
    assert published_service.publish(version="v2").status == 200
    assert due(published_service) == ()


def test_measurement_after_a_skipped_gate_is_due_after_one_day(service: InstructionService) -> None:
    for name in UNITS:
        service.write(name)
    assert service.publish(skip_coverage_gate=True).status == 200
    service.clock.advance(DAY_SECONDS / 2)
    assert due(service) == ()
    service.clock.advance(DAY_SECONDS / 2 - 1)
    assert due(service) == ()
    service.clock.advance(1)
    assert due(service) == (AGENT,)


def test_no_further_agent_is_measured_after_a_stop(published_service: InstructionService) -> None:
    names = add_agents(published_service, 2)
    published_service.clock.advance(DAY_SECONDS)
    assert run_due_coverage(published_service.library, rest=lambda: False) == (AGENT,)
    assert run_due_coverage(published_service.library) == names


def test_no_further_agent_is_sampled_after_a_stop(published_service: InstructionService) -> None:
    add_agents(published_service, 1)
    for agent in (AGENT, "z0"):
        path = f"/v1/agents/{agent}/recall-instruction"
        token = published_service.request("POST", path, {"intent": "claim a ticket"}).json["audit_token"]
        body = {"audit_token": token, "used_chunks": ["checkout-procedure"]}
        assert published_service.request("POST", "/v1/instruction/audit", body).status == 204
    assert calibrate_due_agents(published_service.library, rest=lambda: False) == (AGENT,)
    assert calibrate_due_agents(published_service.library) == ("z0",)


@pytest.mark.parametrize("ends", [False, True])
def test_pause_is_as_long_as_the_work_before_it(*, ends: bool) -> None:
    clock, rests = ManualClock(), []

    def pause(seconds: float) -> bool:
        rests.append(seconds)
        clock.advance(100)
        return ends

    turns = TimeSharing(pause, clock)
    for seconds in (2.0, 0.5):
        clock.advance(seconds)
        assert turns.yield_control() is not ends
    assert rests == pytest.approx([2.0, 0.5])


def test_stopping_service_finishes_the_current_agent_and_starts_no_other(published_service: InstructionService) -> None:
    names = add_agents(published_service, 3)
    published_service.clock.advance(DAY_SECONDS)

    async def measure() -> None:
        stop = asyncio.Event()
        leases = ProcessLeases(MemoryStore().records.shared, "a")
        measuring = asyncio.ensure_future(run_jobs([make_coverage_job(published_service.library)], leases, stop))
        for _ in range(5):
            await asyncio.sleep(0)
        stop.set()
        await measuring

    asyncio.run(measure())
    assert due(published_service) == names
