"""Sample sessions and instructions, so that a new dashboard is not empty, and the route that adds them."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.token_count import count_tokens
from holdfast.clock import Clock, ManualClock, NewId, new_ulid, system_clock
from holdfast.engine.tools.definition import tool
from holdfast.events.log import EventLog
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext, make_agent
from holdfast.instructions.manifest.publish import PublicationRequest, publish_manifest, select_valid_approvals
from holdfast.instructions.manifest.validate import ManifestDraft, SubmittedApproval
from holdfast.instructions.models import Agent, LoadTriggers, ManifestEntry
from holdfast.instructions.recall.answer import answer_recall, close_audit_record
from holdfast.instructions.recall.selection import RecallQuery
from holdfast.instructions.units.write import SubmittedUnit, write_unit
from holdfast.knowledge.folder import open_knowledge_folder
from holdfast.knowledge.harvest import apply_harvest
from holdfast.knowledge.review import accept_item, read_pending
from holdfast.layers.system_prompt import SystemPromptBuilder
from holdfast.runtime.knowledge import finished_sessions
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.service.context import AppContext
from holdfast.service.http.routes import ApiError, EmptyRequest, Route, json_route
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import ScriptedReply
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse
from holdfast.types.prompt import Layout

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


# Simulated dollars; the sample stays far below.
SPEND_MAX_USD = Decimal(5)

PAUSE_SECONDS = 0.05
"""Real time between two turns, so that a viewer sees them arrive."""

_CALLS = (
    ("refund", ToolUse("", "skill_load", '{"name":"refunds"}')),
    ("Where is order", ToolUse("", "look_up", '{"what":"order"}')),
    ("customer write", ToolUse("", "look_up", '{"what":"letter"}')),
    ("in stock", ToolUse("", "look_up", '{"what":"stock"}')),
)


class SampleSession(msgspec.Struct, frozen=True):
    """One sample session: its name, model, pauses between turns, and the layout of its system prompt."""

    name: str
    model: str
    pauses_seconds: tuple[float, ...]
    layout: Layout = "default"
    clock_in_prompt: bool = False
    switches_to: str | None = None
    lesson: str = ""
    """A sentence at the end of the session for later sessions to learn from."""

    has_knowledge: bool = False
    """Whether the session's prompt includes the knowledge harvested from the sessions before it."""


class SampleData(msgspec.Struct, frozen=True):
    """`facts` are what the agent's tool can look up; `skill` is the text of its SKILL.md."""

    sessions: tuple[SampleSession, ...]
    questions: tuple[str, ...]
    facts: dict[str, str]
    skill: str


@cache
def load_sample() -> SampleData:
    return msgspec.json.decode((files(__package__) / "sample.json").read_bytes(), type=SampleData)


class SamplePlayer:
    """Plays all sample sessions into a store, one after the other.

    With `instructions`, sample instructions are added first; with a workspace, the sessions' knowledge is harvested
    there.
    """

    def __init__(
        self,
        log: EventLog,
        models: Models,
        *,
        clock: Clock = system_clock,
        pause: float = PAUSE_SECONDS,
        instructions: InstructionContext | None = None,
        workspace: Path | None = None,
    ) -> None:
        self._log = log
        self._models = models
        self._instructions = instructions
        self._workspace = workspace
        self._clock = clock
        self._pause_seconds = pause
        self._task: asyncio.Task[None] | None = None

    @property
    def is_playing(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if not self.is_playing:
            self._task = asyncio.get_running_loop().create_task(self.play())
            self._task.add_done_callback(_log_failure)

    async def play(self) -> None:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="holdfast-sample-"))
        try:
            await asyncio.to_thread(_write_skill, folder)
            if self._instructions is not None:
                await asyncio.to_thread(add_sample_instructions, self._instructions, clock=self._clock, new_id=new_ulid)
            # The best one comes last, so that it is at the top of the list and still cached when viewed.
            for sample in reversed(load_sample().sessions):
                if sample.has_knowledge:
                    await self._harvest(waiting=0)
                await self._play(sample, folder)
            await self._harvest(waiting=1)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _harvest(self, *, waiting: int) -> None:
        """Harvest the sessions so far, for those that start later; so many items are left for a review."""
        if self._workspace is not None:
            folder = open_knowledge_folder(self._workspace, self._workspace)
            sessions = finished_sessions(
                self._log, at=self._clock(), workspace=self._workspace, quiet_seconds=0, simulated=True
            )
            await asyncio.to_thread(apply_harvest, folder, sessions)
            found = read_pending(folder).waiting
            for item in found[: len(found) - waiting]:
                await asyncio.to_thread(accept_item, folder, item.id)

    async def _play(self, sample: SampleSession, skills: Path) -> None:
        # Start in the past so that the session ends now.
        clock = ManualClock(self._clock() - sum(sample.pauses_seconds))
        async with Session.create(**self._options(sample, clock, skills)) as session:
            questions = load_sample().questions
            for number, question in enumerate(questions):
                await session.send(f"{question} {sample.lesson}".strip() if number == len(questions) - 1 else question)
                if number == 2 and sample.switches_to:
                    await session.switch_model(sample.switches_to)
                if number < len(sample.pauses_seconds):
                    clock.advance(sample.pauses_seconds[number])
                await asyncio.sleep(self._pause_seconds)

    def _options(self, sample: SampleSession, clock: ManualClock, skills: Path) -> Options:
        options: Options = {
            "model": sample.model,
            "name": sample.name,
            "system_prompt": _long_prompt(sample, self._models),
            "tools": [tool(look_up, side_effects="read")],
            "skills": skills,
            "store": self._log,
            "transport": SimulatedProvider(clock=clock, script=make_sample_reply, models=self._models),
            "clock": clock,
            "layout": sample.layout,
            "profile": "default",
            "allow_uncached": True,
            "simulated": True,
            "single_flight": False,
            "steps_max": 20,
            "spend_max_usd": SPEND_MAX_USD,
        }
        if self._workspace is not None and sample.lesson:
            options["workspace"] = self._workspace
            options["knowledge"] = sample.has_knowledge
        if sample.switches_to:
            options["models"] = [sample.model, sample.switches_to]
        if sample.clock_in_prompt:
            options["system_prompt_volatile"] = _time_of(clock)
        return options


def look_up(what: str) -> str:
    """Look something up about an order: `order`, `letter` or `stock`."""
    facts = load_sample().facts
    if what not in facts:
        return "nothing is known of that"
    # Realistic length, so that the history is worth caching.
    trail = (f"{number:03d} {what} file, entry {number}: seen, checked and passed on." for number in range(1, 61))
    return "\n".join((facts[what], *trail))


def make_sample_reply(messages: Sequence[Message]) -> ScriptedReply:
    """Scripted replies: looks up a fact before each answer, and loads the skill if a refund is requested."""
    newest = messages[-1].content if messages else ()
    if any(isinstance(block, ToolResult) for block in newest):
        return ScriptedReply((Text("Thank you for waiting. Here is what I found, and what I would do next about it."),))
    text = " ".join(block.text for block in newest if isinstance(block, Text))
    for word, call in _CALLS:
        if word in text:
            return ScriptedReply((Text("I look it up."), call))
    return ScriptedReply((Text("Dear customer, we are sorry for the trouble; a new lamp is on its way to you."),))


def _long_prompt(sample: SampleSession, models: Models) -> str:
    """Repeats the guidance until the prompt exceeds the cache minimum of every model of the session."""
    rows = [find_model(name, models) for name in (sample.model, sample.switches_to) if name]
    guidance = "\n\n".join(part.text for segment in SystemPromptBuilder().segments() for part in segment.system)
    # Three times the minimum, because count_tokens is only an estimate.
    tokens_wanted = max(3 * row.cache.tokens_min for row in rows)
    times = max(1, -(-tokens_wanted // max(1, count_tokens(guidance, rows[0].tokens_factor))))
    return "\n\n".join(f"# Part {number}\n\n{guidance}" for number in range(1, times + 1))


def _time_of(clock: Clock) -> Callable[[], str]:
    return lambda: f"The time is {clock():.0f}."


def _write_skill(folder: Path) -> None:
    (folder / "refunds").mkdir()
    (folder / "refunds" / "SKILL.md").write_text(load_sample().skill, encoding="utf-8")


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logging.getLogger(__name__).error("the sample failed: %s", type(error).__name__)


class SampleStatus(msgspec.Struct, frozen=True):
    playing: bool


async def play_sample(context: AppContext, request: EmptyRequest) -> SampleStatus:
    """Play sample sessions against a simulated provider."""
    if context.sample is None:
        raise ApiError(409, "not_simulating", "start the service with `holdfast serve --simulate` to play a sample")
    context.sample.start()
    return SampleStatus(context.sample.is_playing)


ROUTES: tuple[Route, ...] = (json_route("POST", "/api/sample", play_sample, rule="admin", error_statuses=(409,)),)
