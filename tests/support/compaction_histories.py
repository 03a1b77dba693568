"""Random conversations as events of a session, and the snapshot that a compaction works on."""

import random

from holdfast.catalog.lookup import find_model
from holdfast.catalog.schema import Model
from holdfast.compaction.models import CompactionConfig
from holdfast.engine.compaction.compact import CompactionSnapshot
from holdfast.engine.compaction.history import LoggedMessages
from holdfast.engine.reducer import apply_event
from holdfast.engine.request_draft import RequestDraft, build_sent_view
from holdfast.engine.state import SessionState
from holdfast.events.log import Event
from holdfast.events.payloads.session import ContextInjected, EpochOpened, MessageAppended, SessionStarted, TurnStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.learned import NOTHING_LEARNED
from holdfast.providers.registry import get_adapter
from holdfast.replay.playback import find_newest_price
from holdfast.types.blocks import Block, Message, Text, Thinking, ToolResult, ToolUse
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import LayerText

MODEL: Model = find_model("anthropic:claude-sonnet-4-6")
BINDING: Model = find_model("anthropic:claude-sonnet-5-5")
ADAPTER = get_adapter("anthropic")
SMALL = CompactionConfig(summary_tokens_max=900, tail_tokens_max=900, files_tokens_max=0)
WITH_FILES = CompactionConfig(summary_tokens_max=900, tail_tokens_max=900, files_tokens_max=3_000)
RULES = ("Never touch tests/golden.", "Always run make check.", "You must not push.", "Use tabs in Makefile.")
WORDS = (
    "parser",
    "lexer",
    "src/lexer.py",
    "TokenStream",
    "read_file",
    "3.11.2",
    "cache",
    "4WQ150",
    "café",
    "🙂",
    "v1.2.3",
)


class History:
    """A session that grows turn by turn, with ids and text from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._calls = 0
        self._events = 0
        self.questions: list[str] = []
        self.events: list[Event] = []
        self._state = SessionState("s1")
        self.logged = LoggedMessages(self.events_after)
        self.add(
            SessionStarted(MODEL.id), EpochOpened(1, (LayerText("preset", "Keep to the rules of the house."),), ())
        )

    def add(self, *payloads: AnyPayload) -> None:
        for payload in payloads:
            self._events += 1
            event = Event(f"e{self._events:09}", float(self._events), "s1", "system", payload)
            self.events.append(event)
            self._state = apply_event(self._state, event)

    def events_after(self, after: str | None) -> list[Event]:
        return self.events[int(after[1:]) if after else 0 :]

    def words(self, count: int) -> str:
        return " ".join(self.dice.choice(WORDS) + str(self.dice.randrange(50)) for _ in range(count))

    def turn(self, *, ends: bool = True) -> None:
        """A user message, tool calls, and a final reply unless the turn does not end."""
        self.add(TurnStarted("", 0))
        if self.dice.random() < 0.3:
            self.add(ContextInjected("git", self.words(4)))
        rule = f"\n{self.dice.choice(RULES)}" if self.dice.random() < 0.3 else ""
        self.questions.append(f"Ask {len(self.questions)}: {self.words(self.dice.randrange(1, 30))}{rule}")
        self.add(MessageAppended(Message("user", (Text(self.questions[-1]),))))
        for _ in range(self.dice.randrange(0, 4)):
            self.exchange()
        if ends:
            self.add(MessageAppended(Message("assistant", self._assistant_blocks())))

    def exchange(self) -> None:
        """Parallel tool calls and their results in any order."""
        calls = tuple(self._call() for _ in range(self.dice.randrange(1, 4)))
        self.add(MessageAppended(Message("assistant", (*self._assistant_blocks()[:-1], *calls))))
        results = [self._result(call) for call in calls]
        self.dice.shuffle(results)
        self.add(MessageAppended(Message("user", tuple(results))))
        if self.dice.random() < 0.2:
            self.add(ContextInjected("git", self.words(4)))

    def _assistant_blocks(self) -> tuple[Block, ...]:
        thought = (Thinking(self.words(3), "sig"),) if self.dice.random() < 0.3 else ()
        return (*thought, Text(self.words(self.dice.randrange(1, 12))))

    def _call(self) -> ToolUse:
        self._calls += 1
        path = f"src/{self.dice.choice(('a', 'b', 'c'))}.py"
        return self.dice.choice(
            (
                ToolUse(f"c{self._calls}", "read_file", encode_json({"path": path}).decode()),
                ToolUse(f"c{self._calls}", "edit_file", encode_json({"path": path, "old": "x", "new": "y"}).decode()),
                ToolUse(f"c{self._calls}", "bash", encode_json({"command": f"make check {self._calls % 3}"}).decode()),
                ToolUse(f"c{self._calls}", "odd", self.dice.choice(("{}", "not json", "[1, 2]"))),
            )
        )

    def _result(self, call: ToolUse) -> ToolResult:
        bad = self.dice.random() < 0.2
        text = "ValueError: no such token 17" if bad else self.words(self.dice.choice((2, 20, 120)))
        return ToolResult(call.id, (Text(text),), is_error=bad, name=call.name)

    def state(self) -> SessionState:
        return self._state


def snapshot_of(history: History, model: Model = MODEL) -> CompactionSnapshot:
    state = history.state()
    draft = new_draft()
    draft.update(assemble_prompt(build_sent_view(state)))
    return CompactionSnapshot(
        state=state,
        draft=draft,
        model=model,
        price=find_newest_price(model, 10_000),
        at=1e6,
        learned=NOTHING_LEARNED,
        output_tokens_max=4_096,
        logged=history.logged,
        new_draft=new_draft,
    )


def new_draft() -> RequestDraft:
    return RequestDraft(ADAPTER, lambda data: len(data) // 4 + 1)
