"""Sample sessions of good and bad habits: they run for real, against a simulated provider whose time passes quickly."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import msgspec

from holdfast.canonical.blocks import Message, Text, ToolResult, ToolUse
from holdfast.canonical.view import Layout
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.tokens import count_tokens
from holdfast.clock import Clock, ManualClock, new_ulid, system_clock
from holdfast.engine.tools import tool
from holdfast.events.log import Log
from holdfast.instructions.library import Library
from holdfast.knowledge.folder import knowledge_folder
from holdfast.knowledge.harvest import apply_harvest
from holdfast.layers.builder import SystemPromptBuilder
from holdfast.runtime.knowing import spoken_in
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.service.sample_instructions import furnish_sample
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import ScriptedReply

SPEND_MAX_USD = Decimal(5)
PAUSE_SECONDS = 0.05
"""What a person waits between two turns, so that they can be seen coming in."""

HOUR = 3_600.0

ASKS = (
    "Where is order 1042?",
    "And what did the customer write about it?",
    "Is there a replacement in stock?",
    "Write a short answer to the customer, with the steps for a refund.",
    "Make it friendlier.",
)

FACTS = {
    "order": "Order 1042: 3 lamps, sent on Tuesday, in customs since Thursday; the broker waits for an invoice.",
    "letter": "The customer writes that one lamp arrived broken, for the second time, and asks what we will do.",
    "stock": "Lamps of this kind: 14 in the north hall, 2 in the south hall; the next delivery is due in nine days.",
}

SKILL = """---
name: refunds
description: How a refund is given. Use it when a customer asks for money back.
---

# Refunds

1. Find the order and what was paid.
2. Say what is refunded and by when; five working days are the rule.
3. Offer a replacement first where one is in stock.
"""


class Habit(msgspec.Struct, frozen=True):
    """How somebody works: a session's name, its model, how long each pause is, and what the system prompt is like."""

    name: str
    model: str
    pauses_seconds: tuple[float, ...]
    layout: Layout = "default"
    clock_in_prompt: bool = False
    switches_to: str | None = None
    teaches: str = ""
    """What is said at the end that others should know, too."""

    is_told: bool = False
    """Whether the session is told what those before it have taught."""


HABITS = (
    Habit(
        "Good: one head, everything appended",
        "anthropic:claude-sonnet-5-5",
        (40.0, 90.0, 60.0, 30.0),
        teaches="Always say what happens next, and when.",
        is_told=True,
    ),
    Habit(
        "Bad: the time stands in front of the history",
        "anthropic:claude-sonnet-5-5",
        (40.0, 90.0, 60.0, 30.0),
        layout="seed",
        clock_in_prompt=True,
    ),
    Habit("Bad: away for hours between questions", "anthropic:claude-haiku-4-5", (2 * HOUR, 60.0, 3 * HOUR, 40.0)),
    Habit(
        "Good: kept by OpenAI of its own accord",
        "openai:gpt-6-luna",
        (30.0, 45.0, 20.0, 30.0),
        teaches="Never promise the day a parcel arrives.",
    ),
    Habit(
        "Good: a Gemini session",
        "gemini:gemini-3.8-flash",
        (30.0, 45.0, 20.0, 30.0),
        teaches="The list of brokers is in docs/brokers.md.",
    ),
    Habit(
        "Bad: another model in the middle",
        "anthropic:claude-haiku-4-5",
        (30.0, 45.0, 20.0, 30.0),
        switches_to="anthropic:claude-sonnet-5-5",
    ),
)


class SamplePlayer:
    """Plays all habits, one after the other, into a store.

    Where there is a library, instructions come first; where there is a workspace, what was taught is known there.
    """

    def __init__(
        self,
        log: Log,
        models: Models,
        *,
        clock: Clock = system_clock,
        pause: float = PAUSE_SECONDS,
        library: Library | None = None,
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
    def playing(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if not self.playing:
            self._task = asyncio.get_running_loop().create_task(self.play())
            self._task.add_done_callback(_tell_failure)

    async def play(self) -> None:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="holdfast-sample-"))
        try:
            await asyncio.to_thread(_write_skill, folder)
            if self._library is not None:
                await asyncio.to_thread(furnish_sample, self._library, clock=self._clock, new_id=new_ulid)
            # The best comes last, so that it is on top, and still cached when somebody looks at it.
            for habit in reversed(HABITS):
                if habit.is_told:
                    await self._harvest()
                await self._play(habit, folder)
            await self._harvest()
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _harvest(self) -> None:
        """What the sessions have taught is known from now on, to those that begin later."""
        if self._workspace is not None:
            known = knowledge_folder(self._workspace, self._workspace)
            spoken = spoken_in(self._log, at=self._clock(), workspace=self._workspace, quiet_seconds=0, simulated=True)
            await asyncio.to_thread(apply_harvest, known, spoken)

    async def _play(self, habit: Habit, skills: Path) -> None:
        clock = ManualClock(self._clock() - sum(habit.pauses_seconds))
        async with Session.create(**self._options(habit, clock, skills)) as session:
            for number, ask in enumerate(ASKS):
                await session.send(f"{ask} {habit.teaches}".strip() if number == len(ASKS) - 1 else ask)
                if number == 2 and habit.switches_to:
                    await session.switch_model(habit.switches_to)
                if number < len(habit.pauses_seconds):
                    clock.advance(habit.pauses_seconds[number])
                await asyncio.sleep(self._pause_seconds)

    def _options(self, habit: Habit, clock: ManualClock, skills: Path) -> Options:
        options: Options = {
            "model": habit.model,
            "name": habit.name,
            "system_prompt": _long_prompt(habit, self._models),
            "tools": [tool(look_up, side_effects="read")],
            "skills": skills,
            "store": self._log,
            "wire": SimulatedProvider(clock=clock, script=improvised, models=self._models),
            "clock": clock,
            "layout": habit.layout,
            "profile": "default",
            "allow_uncached": True,
            "simulated": True,
            "gate": False,
            "steps_max": 20,
            "spend_max_usd": SPEND_MAX_USD,
        }
        if self._workspace is not None and habit.teaches:
            options["workspace"] = self._workspace
            options["knowledge"] = habit.is_told
        if habit.switches_to:
            options["models"] = [habit.model, habit.switches_to]
        if habit.clock_in_prompt:
            options["system_prompt_volatile"] = _time_of(clock)
        return options


def look_up(what: str) -> str:
    """Look something up about an order: `order`, `letter` or `stock`."""
    if what not in FACTS:
        return "nothing is known of that"
    # As long as such answers are: a history that is worth a cache.
    trail = (f"{number:03d} {what} file, entry {number}: seen, checked and passed on." for number in range(1, 61))
    return "\n".join((FACTS[what], *trail))


def improvised(messages: Sequence[Message]) -> ScriptedReply:
    """A look at the facts before each answer, and at the skill where money is asked back."""
    newest = messages[-1].content if messages else ()
    if any(isinstance(block, ToolResult) for block in newest):
        return ScriptedReply((Text("Thank you for waiting. Here is what I found, and what I would do next about it."),))
    said = " ".join(block.text for block in newest if isinstance(block, Text))
    for word, call in _CALLS:
        if word in said:
            return ScriptedReply((Text("I look it up."), call))
    return ScriptedReply((Text("Dear customer, we are sorry for the trouble; a new lamp is on its way to you."),))


_CALLS = (
    ("refund", ToolUse("", "skill_load", '{"name":"refunds"}')),
    ("Where is order", ToolUse("", "look_up", '{"what":"order"}')),
    ("customer write", ToolUse("", "look_up", '{"what":"letter"}')),
    ("in stock", ToolUse("", "look_up", '{"what":"stock"}')),
)


def _long_prompt(habit: Habit, models: Models) -> str:
    """Guidance as often as it takes to be worth a cache with every model that the session uses."""
    rows = [find_model(name, models) for name in (habit.model, habit.switches_to) if name]
    guidance = "\n\n".join(part.text for segment in SystemPromptBuilder().segments() for part in segment.system)
    wanted = max(3 * row.cache.tokens_min for row in rows)
    times = max(1, -(-wanted // max(1, count_tokens(guidance, rows[0].tokens_factor))))
    return "\n\n".join(f"# Part {number}\n\n{guidance}" for number in range(1, times + 1))


def _time_of(clock: Clock) -> Callable[[], str]:
    return lambda: f"The time is {clock():.0f}."


def _write_skill(folder: Path) -> None:
    (folder / "refunds").mkdir()
    (folder / "refunds" / "SKILL.md").write_text(SKILL, encoding="utf-8")


def _tell_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logging.getLogger(__name__).error("the sample failed: %s", type(error).__name__)
