"""Sample sessions with good and bad caching habits: real sessions against a simulated provider in fast time."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
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


HOUR = 3_600.0


SAMPLE_QUESTIONS = (
    "Where is order 1042?",
    "And what did the customer write about it?",
    "Is there a replacement in stock?",
    "Write a short answer to the customer, with the steps for a refund.",
    "Make it friendlier.",
)


SAMPLE_FACTS = {
    "order": "Order 1042: 3 lamps, sent on Tuesday, in customs since Thursday; the broker waits for an invoice.",
    "letter": "The customer writes that one lamp arrived broken, for the second time, and asks what we will do.",
    "stock": "Lamps of this kind: 14 in the north hall, 2 in the south hall; the next delivery is due in nine days.",
}


SAMPLE_SKILL = """---
name: refunds
description: How a refund is given. Use it when a customer asks for money back.
---

# Refunds

1. Find the order and what was paid.
2. Say what is refunded and by when; five working days are the rule.
3. Offer a replacement first where one is in stock.
"""


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


SAMPLE_SESSIONS = (
    SampleSession(
        "Good: stable prefix, append-only history",
        "anthropic:claude-sonnet-5-5",
        (40.0, 90.0, 60.0, 30.0),
        lesson="Always say what happens next, and when.",
        has_knowledge=True,
    ),
    SampleSession(
        "Bad: the time is before the history",
        "anthropic:claude-sonnet-5-5",
        (40.0, 90.0, 60.0, 30.0),
        layout="seed",
        clock_in_prompt=True,
    ),
    SampleSession(
        "Bad: away for hours between questions", "anthropic:claude-haiku-4-5", (2 * HOUR, 60.0, 3 * HOUR, 40.0)
    ),
    SampleSession(
        "Good: automatic caching at OpenAI",
        "openai:gpt-6-luna",
        (30.0, 45.0, 20.0, 30.0),
        lesson="Never promise the day a parcel arrives.",
    ),
    SampleSession(
        "Good: a Gemini session",
        "gemini:gemini-3.8-flash",
        (30.0, 45.0, 20.0, 30.0),
        lesson="The list of brokers is in docs/brokers.md.",
    ),
    SampleSession(
        "Bad: model switched mid-session",
        "anthropic:claude-haiku-4-5",
        (30.0, 45.0, 20.0, 30.0),
        switches_to="anthropic:claude-sonnet-5-5",
    ),
)


class SamplePlayer:
    """Plays all sample sessions into a store, one after the other.

    With a library, sample instructions are added first; with a workspace, the sessions' knowledge is harvested there.
    """

    def __init__(
        self,
        log: EventLog,
        models: Models,
        *,
        clock: Clock = system_clock,
        pause: float = PAUSE_SECONDS,
        library: InstructionContext | None = None,
        workspace: Path | None = None,
    ) -> None:
        self._log = log
        self._models = models
        self._library = library
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
            if self._library is not None:
                await asyncio.to_thread(add_sample_instructions, self._library, clock=self._clock, new_id=new_ulid)
            # The best one comes last, so that it is at the top of the list and still cached when viewed.
            for habit in reversed(SAMPLE_SESSIONS):
                if habit.has_knowledge:
                    await self._harvest()
                await self._play(habit, folder)
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

    async def _play(self, habit: SampleSession, skills: Path) -> None:
        # Start in the past so that the session ends now.
        clock = ManualClock(self._clock() - sum(habit.pauses_seconds))
        async with Session.create(**self._options(habit, clock, skills)) as session:
            for number, question in enumerate(SAMPLE_QUESTIONS):
                await session.send(
                    f"{question} {habit.lesson}".strip() if number == len(SAMPLE_QUESTIONS) - 1 else question
                )
                if number == 2 and habit.switches_to:
                    await session.switch_model(habit.switches_to)
                if number < len(habit.pauses_seconds):
                    clock.advance(habit.pauses_seconds[number])
                await asyncio.sleep(self._pause_seconds)

    def _options(self, habit: SampleSession, clock: ManualClock, skills: Path) -> Options:
        options: Options = {
            "model": habit.model,
            "name": habit.name,
            "system_prompt": _long_prompt(habit, self._models),
            "tools": [tool(look_up, side_effects="read")],
            "skills": skills,
            "store": self._log,
            "transport": SimulatedProvider(clock=clock, script=make_sample_reply, models=self._models),
            "clock": clock,
            "layout": habit.layout,
            "profile": "default",
            "allow_uncached": True,
            "simulated": True,
            "single_flight": False,
            "steps_max": 20,
            "spend_max_usd": SPEND_MAX_USD,
        }
        if self._workspace is not None and habit.lesson:
            options["workspace"] = self._workspace
            options["knowledge"] = habit.has_knowledge
        if habit.switches_to:
            options["models"] = [habit.model, habit.switches_to]
        if habit.clock_in_prompt:
            options["system_prompt_volatile"] = _time_of(clock)
        return options


def look_up(what: str) -> str:
    """Look something up about an order: `order`, `letter` or `stock`."""
    if what not in SAMPLE_FACTS:
        return "nothing is known of that"
    # Realistic length, so that the history is worth caching.
    trail = (f"{number:03d} {what} file, entry {number}: seen, checked and passed on." for number in range(1, 61))
    return "\n".join((SAMPLE_FACTS[what], *trail))


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


_CALLS = (
    ("refund", ToolUse("", "skill_load", '{"name":"refunds"}')),
    ("Where is order", ToolUse("", "look_up", '{"what":"order"}')),
    ("customer write", ToolUse("", "look_up", '{"what":"letter"}')),
    ("in stock", ToolUse("", "look_up", '{"what":"stock"}')),
)


def _long_prompt(habit: SampleSession, models: Models) -> str:
    """Repeats the guidance until the prompt exceeds the cache minimum of every model of the session."""
    rows = [find_model(name, models) for name in (habit.model, habit.switches_to) if name]
    guidance = "\n\n".join(part.text for segment in SystemPromptBuilder().segments() for part in segment.system)
    # Three times the minimum, because count_tokens is only an estimate.
    tokens_wanted = max(3 * row.cache.tokens_min for row in rows)
    times = max(1, -(-tokens_wanted // max(1, count_tokens(guidance, rows[0].tokens_factor))))
    return "\n\n".join(f"# Part {number}\n\n{guidance}" for number in range(1, times + 1))


def _time_of(clock: Clock) -> Callable[[], str]:
    return lambda: f"The time is {clock():.0f}."


def _write_skill(folder: Path) -> None:
    (folder / "refunds").mkdir()
    (folder / "refunds" / "SKILL.md").write_text(SAMPLE_SKILL, encoding="utf-8")


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logging.getLogger(__name__).error("the sample failed: %s", type(error).__name__)


class SampleStatus(msgspec.Struct, frozen=True):
    playing: bool


async def play_sample(context: AppContext, request: EmptyRequest) -> SampleStatus:
    if context.sample is None:
        raise ApiError(409, "not_simulating", "start the service with `holdfast serve --simulate` to play a sample")
    context.sample.start()
    return SampleStatus(context.sample.is_playing)


ROUTES: tuple[Route, ...] = (
    json_route(
        "POST",
        "/api/sample",
        play_sample,
        request=EmptyRequest,
        reply=SampleStatus,
        rule="admin",
        summary="Play sample sessions against a simulated provider.",
        refusals=(409,),
    ),
)
