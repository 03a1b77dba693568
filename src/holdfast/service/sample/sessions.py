"""Sample sessions with good and bad caching habits, and the route that plays them in fast time on a simulator."""

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
from holdfast.clock import Clock, ManualClock, new_ulid, system_clock
from holdfast.engine.tools.definition import tool
from holdfast.events.log import EventLog
from holdfast.instructions.context import InstructionContext
from holdfast.knowledge.folder import open_knowledge_folder
from holdfast.knowledge.harvest import apply_harvest
from holdfast.layers.system_prompt import SystemPromptBuilder
from holdfast.runtime.knowledge import finished_sessions
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.service.context import AppContext
from holdfast.service.http.errors import ApiError
from holdfast.service.http.routes import EmptyRequest, Route, json_route
from holdfast.service.sample.instructions import add_sample_instructions
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import ScriptedReply
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse
from holdfast.types.prompt import Layout

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
                    await self._harvest()
                await self._play(sample, folder)
            await self._harvest()
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _harvest(self) -> None:
        """Harvests the sessions so far, for those that start later."""
        if self._workspace is not None:
            folder = open_knowledge_folder(self._workspace, self._workspace)
            sessions = finished_sessions(
                self._log, at=self._clock(), workspace=self._workspace, quiet_seconds=0, simulated=True
            )
            await asyncio.to_thread(apply_harvest, folder, sessions)

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
