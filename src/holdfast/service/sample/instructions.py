"""Sample instructions: an agent's units, its manifests, a week of recalls, and a version pending approval."""

from functools import cache
from importlib.resources import files

import msgspec

from holdfast.clock import Clock, ManualClock, NewId
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext, make_agent
from holdfast.instructions.manifest.publish import PublicationRequest, publish_manifest, select_valid_approvals
from holdfast.instructions.manifest.validate import ManifestDraft, SubmittedApproval
from holdfast.instructions.models import Agent, LoadTriggers, ManifestEntry
from holdfast.instructions.recall.answer import answer_recall, close_audit_record
from holdfast.instructions.recall.ranking import RecallQuery
from holdfast.instructions.units.write import SubmittedUnit, write_unit

AGENT = "support-desk"
AUTHOR = "sample:user/ann"
DAYS = 7
DAY = 86_400.0
GUARANTEED = "escalation"
_ANN = InstructionCaller("admin", "sample", AUTHOR)
_BEN = InstructionCaller("admin", "sample", "sample:user/ben")


class SampleUnit(msgspec.Struct, frozen=True):
    name: str
    description: str
    intents: tuple[str, ...]
    content: str


class SampleInstructions(msgspec.Struct, frozen=True):
    """`intents` are those of one day, each with the units that it turns out to need.

    `vague_unit` is badly described and published without the coverage gate: most queries that need it do not find it.
    """

    units: tuple[SampleUnit, ...]
    vague_unit: SampleUnit
    intents: tuple[tuple[str, tuple[str, ...]], ...]


@cache
def load_sample_instructions() -> SampleInstructions:
    return msgspec.json.decode((files(__package__) / "sample.json").read_bytes(), type=SampleInstructions)


def add_sample_instructions(context: InstructionContext, *, clock: Clock, new_id: NewId) -> None:
    """Records a week of a team's work with the sample agent; does nothing if the agent exists already."""
    if context.records.agent(AGENT) is not None:
        return
    past_clock = ManualClock(clock() - DAYS * DAY)
    records, settings = context.records, context.settings
    past_context = InstructionContext(records, settings, key=context.key, clock=past_clock, new_id=new_id)
    agent = msgspec.structs.replace(make_agent(past_context, AGENT), role="Answers customers of a lamp shop")
    past_context.records.put_agent(agent)
    sample = load_sample_instructions()
    for unit in (*sample.units, sample.vague_unit):
        write_unit(past_context, SubmittedUnit(_address(past_context, unit.name, "v1"), unit.content), _ANN)
    guarantee = SubmittedApproval(kind="guarantee_load", unit=GUARANTEED, reason="A person must always be reachable.")
    _publish(past_context, "v1", sample.units, guarantee)
    for day in range(DAYS):
        if day == DAYS // 2:
            _publish_without_gate(past_context, agent)
        _play_day(past_context, past_clock, day)
    changed = next(unit.content for unit in sample.units if unit.name == GUARANTEED).replace("500", "200")
    write_unit(past_context, SubmittedUnit(_address(past_context, GUARANTEED, "v2"), changed), _ANN)


def _publish_without_gate(context: InstructionContext, agent: Agent) -> None:
    """Skipping the gate needs two people if the manifest has a guaranteed unit."""
    skip = SubmittedApproval(kind="skip_gate", version="v2", reason="It can be fixed later.")
    for approval in select_valid_approvals(context, agent, (skip,), _BEN):
        context.records.add_approval(approval, agent=agent)
    sample = load_sample_instructions()
    _publish(context, "v2", (*sample.units, sample.vague_unit), skip)


def _publish(
    context: InstructionContext, version: str, units: tuple[SampleUnit, ...], approval: SubmittedApproval
) -> None:
    entries = tuple(
        ManifestEntry(
            unit.name,
            unit.description,
            guarantee_load=unit.name == GUARANTEED,
            load_triggers=LoadTriggers(intents=unit.intents),
            fact_uri=_address(context, unit.name, "v1"),
        )
        for unit in units
    )
    publication = PublicationRequest(
        agent_id=AGENT,
        draft=ManifestDraft(version, entries, None),
        skip_coverage_gate=approval.kind == "skip_gate",
        approvals=(approval,),
    )
    publish_manifest(context, publication, _ANN)


def _play_day(context: InstructionContext, clock: ManualClock, day: int) -> None:
    """Plays one day, with three to five recalls, each closed with the units it needed."""
    agent, instruction_set = context.require_instruction_set(AGENT, context.records.agent(AGENT))
    intents = load_sample_instructions().intents
    intents = intents[: len(intents) - day % 3]
    for intent, needed in intents:
        clock.advance(600)
        response = answer_recall(
            context, agent, instruction_set, RecallQuery(intent=intent), caller=_ANN, heartbeat_id=None
        )
        loaded = {chunk.name for chunk in response.result.chunks}
        used = tuple(name for name in needed if name in loaded)
        missed = tuple(name for name in needed if name not in loaded)
        close_audit_record(context, response.audit_token, _ANN, used=used, missed=missed)
    clock.advance(DAY - 600 * len(intents))


def _address(context: InstructionContext, name: str, version: str) -> str:
    return f"instruction:{context.settings.deployment}/{AGENT}/{name}/{version}"
