"""Which agents are measured without being asked for, and how that leaves time to those who wait for an answer."""

import asyncio

import msgspec
import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService

from holdfast.clock import ManualClock
from holdfast.instructions.coverage.schedule import (
    DAY_MS,
    RECERT_LEAD_MS,
    TimeSharing,
    calibrate_due_agents,
    run_due_coverage,
)
from holdfast.service.api.instructions.schedule import measure_when_due

DAY_SECONDS = 86_400


def add_agents(at: InstructionService, count: int) -> tuple[str, ...]:
    """Others, with the manifest and the run of the first."""
    records = at.library.records
    first, manifest, run = records.agent(AGENT), records.manifest(AGENT), records.coverage(AGENT)
    assert first
    assert manifest
    assert run
    names = tuple(f"z{number}" for number in range(count))
    for name in names:
        assert records.publish(
            msgspec.structs.replace(manifest, id=f"m-{name}", agent_id=name),
            over=None,
            registers=msgspec.structs.replace(first, id=name, shortname=None),
            run=msgspec.structs.replace(run, id=f"c-{name}", agent_id=name),
            approvals=(),
            events=(),
        )
    return names


def due(at: InstructionService) -> tuple[str, ...]:
    now = at.library.now()
    return at.library.records.agents_to_measure(finished_before=now - DAY_MS, recert_before=now + RECERT_LEAD_MS)


def test_fresh_run_is_not_due_and_a_day_old_one_is(furnished: InstructionService) -> None:
    names = add_agents(furnished, 2)
    furnished.clock.advance(DAY_SECONDS - 1)
    assert due(furnished) == ()
    furnished.clock.advance(1)
    assert due(furnished) == (AGENT, *names)
    assert run_due_coverage(furnished.library) == (AGENT, *names)
    assert due(furnished) == ()


def test_run_is_due_once_a_unit_or_the_manifest_changed(furnished: InstructionService) -> None:
    add_agents(furnished, 1)
    assert furnished.write("code-review", "v2", "Read the whole pull request. Then leave a review.").status == 201
    assert due(furnished) == (AGENT,)
    assert run_due_coverage(furnished.library) == (AGENT,)
    furnished.clock.advance(1)
    assert furnished.publish(version="v2").status == 200
    assert due(furnished) == ()


def test_measurement_after_a_skipped_gate_is_due_after_one_day(at: InstructionService) -> None:
    for name in UNITS:
        at.write(name)
    assert at.publish(skip_coverage_gate=True).status == 200
    at.clock.advance(DAY_SECONDS / 2)
    assert due(at) == ()
    at.clock.advance(DAY_SECONDS / 2 - 1)
    assert due(at) == ()
    at.clock.advance(1)
    assert due(at) == (AGENT,)


def test_no_further_agent_is_measured_after_a_stop(furnished: InstructionService) -> None:
    names = add_agents(furnished, 2)
    furnished.clock.advance(DAY_SECONDS)
    assert run_due_coverage(furnished.library, rest=lambda: False) == (AGENT,)
    assert run_due_coverage(furnished.library) == names


def test_no_further_agent_is_sampled_after_a_stop(furnished: InstructionService) -> None:
    add_agents(furnished, 1)
    for agent in (AGENT, "z0"):
        path = f"/v1/agents/{agent}/recall-instruction"
        token = furnished.request("POST", path, {"intent": "claim a ticket"}).json["audit_token"]
        body = {"audit_token": token, "used_chunks": ["checkout-procedure"]}
        assert furnished.request("POST", "/v1/instruction/audit", body).status == 204
    assert calibrate_due_agents(furnished.library, rest=lambda: False) == (AGENT,)
    assert calibrate_due_agents(furnished.library) == ("z0",)


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


def test_stopping_service_finishes_the_current_agent_and_starts_no_other(furnished: InstructionService) -> None:
    names = add_agents(furnished, 3)
    furnished.clock.advance(DAY_SECONDS)

    async def measure() -> None:
        stop = asyncio.Event()
        measuring = asyncio.ensure_future(measure_when_due(furnished.library, stop))
        for _ in range(5):
            await asyncio.sleep(0)
        stop.set()
        await measuring

    asyncio.run(measure())
    assert due(furnished) == names
