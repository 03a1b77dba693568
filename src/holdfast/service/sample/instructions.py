"""Sample instructions: an agent's units, its manifests, a week of recalls, and a version pending approval."""

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

SAMPLE_INTENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("give the money back for order 1042", ("refunds",)),
    ("the lamp came broken and goes back", ("returns", "refunds")),
    ("why has the parcel not come yet", ("shipping",)),
    ("answer the letter of an angry customer", ("tone", GUARANTEED)),
    ("the neighbour wants to know where she lives", ("privacy",)),
)
"""The intents of one day, and the units that each turns out to need."""


class SampleUnit(msgspec.Struct, frozen=True):
    name: str
    description: str
    intents: tuple[str, ...]
    content: str


UNITS = (
    SampleUnit(
        "refunds",
        "How money is given back, and by when.",
        ("refund an order", "give a customer their money back"),
        "Find the order and what was paid. A refund goes to the card it came from, within five working days.",
    ),
    SampleUnit(
        "returns",
        "How goods come back to us: labels, time limits, condition.",
        ("return a parcel", "send broken goods back"),
        "Goods come back within 30 days. Send a label; what arrived broken needs no label and no box.",
    ),
    SampleUnit(
        "shipping",
        "Where a parcel is, customs, and delays.",
        ("track a delivery", "explain why a parcel is late"),
        "Look the parcel up before you answer. In customs since more than three days: ask the broker.",
    ),
    SampleUnit(
        "tone",
        "How we write to customers.",
        ("write a reply to a customer", "make an answer friendlier"),
        "Short sentences, no jargon, one apology. Say what happens next and when.",
    ),
    SampleUnit(
        GUARANTEED,
        "What a person has to decide.",
        ("hand over to a person", "a customer threatens to sue"),
        "Anything about law, health or more than 500 dollars goes to the team lead, at once and with the history.",
    ),
    SampleUnit(
        "complaints",
        "How to answer a customer who is angry.",
        ("answer an angry customer", "a customer complains"),
        "Thank them, repeat what went wrong in your own words, and offer one way out. Write it down in the order.",
    ),
    SampleUnit(
        "exchanges",
        "When a customer gets another one instead.",
        ("send a new one to the customer", "swap the goods of an order"),
        "Where one is in stock the customer gets a new one first; money back is the second offer.",
    ),
    SampleUnit(
        "warranty",
        "What is repaired or replaced for free, and for how long.",
        ("the goods are broken after a year", "repair it for the customer"),
        "Two years for lamps, one for bulbs. What is broken by use is not covered.",
    ),
    SampleUnit(
        "privacy",
        "What may be said about a customer, and to whom.",
        ("share customer details", "someone asks for another person's address"),
        "Never tell one customer about another. Addresses are read back only after the order number was given.",
    ),
)

VAGUE_UNIT = SampleUnit(
    "general",
    "General hints.",
    ("deal with it", "something about an order", "what to do for the customer"),
    "Be helpful and think before you answer.",
)
"""A badly described unit, published without the coverage gate: most queries that need it do not find it."""


def add_sample_instructions(context: InstructionContext, *, clock: Clock, new_id: NewId) -> None:
    """Records a week of a team's work with the sample agent; does nothing if the agent exists already."""
    if context.records.agent(AGENT) is not None:
        return
    past_clock = ManualClock(clock() - DAYS * DAY)
    past_context = InstructionContext(
        context.records, context.settings, key=context.key, clock=past_clock, new_id=new_id, warn=lambda line: None
    )
    agent = msgspec.structs.replace(make_agent(past_context, AGENT), role="Answers customers of a lamp shop")
    past_context.records.put_agent(agent)
    for unit in (*UNITS, VAGUE_UNIT):
        write_unit(past_context, SubmittedUnit(_address(past_context, unit.name, "v1"), unit.content), _ANN)
    guarantee = SubmittedApproval(kind="guarantee_load", unit=GUARANTEED, reason="A person must always be reachable.")
    _publish(past_context, "v1", UNITS, guarantee)
    for day in range(DAYS):
        if day == DAYS // 2:
            _publish_without_gate(past_context, agent)
        _play_day(past_context, past_clock, day)
    changed = _unit(GUARANTEED).content.replace("500", "200")
    write_unit(past_context, SubmittedUnit(_address(past_context, GUARANTEED, "v2"), changed), _ANN)


def _publish_without_gate(context: InstructionContext, agent: Agent) -> None:
    """Skipping the gate needs two people if the manifest has a guaranteed unit."""
    skip = SubmittedApproval(kind="skip_gate", version="v2", reason="It can be fixed later.")
    for approval in select_valid_approvals(context, agent, (skip,), _BEN):
        context.records.add_approval(approval, registers=agent)
    _publish(context, "v2", (*UNITS, VAGUE_UNIT), skip)


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
    for intent, needed in SAMPLE_INTENTS[: len(SAMPLE_INTENTS) - day % 3]:
        clock.advance(600)
        response = answer_recall(
            context, agent, instruction_set, RecallQuery(intent=intent), caller=_ANN, heartbeat_id=None
        )
        loaded = {chunk.name for chunk in response.result.chunks}
        used = tuple(name for name in needed if name in loaded)
        missed = tuple(name for name in needed if name not in loaded)
        close_audit_record(context, response.audit_token, _ANN, used=used, missed=missed)
    clock.advance(DAY - 600 * (len(SAMPLE_INTENTS) - day % 3))


def _unit(name: str) -> SampleUnit:
    return next(unit for unit in UNITS if unit.name == name)


def _address(context: InstructionContext, name: str, version: str) -> str:
    return f"instruction:{context.settings.deployment}/{AGENT}/{name}/{version}"
