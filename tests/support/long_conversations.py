"""Growing conversations: a simulated model that reads one long file per turn, and sessions with it."""

from collections.abc import Callable, Sequence

from holdfast.clock import ManualClock
from holdfast.compaction.models import CompactionConfig
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import ScriptedReply
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Block, Message, Text, ToolUse
from holdfast.types.json_encoding import encode_json

MODEL = "anthropic:claude-sonnet-4-6"
PROMPT = "Follow the rules of the house, and never guess. " * 300
GOAL = "Port the parser to the new lexer.\nNever touch tests/golden; use the module names of docs/names.md."
BY_HAND = CompactionConfig(mode="off")


def make_read_file(lines: int) -> Callable[[str], str]:
    def read_file(path: str) -> str:
        """Reads a file."""
        return f"# {path}\n" + "\n".join(
            f"def step_{number}(token): return token + {number}  # of {path}" for number in range(lines)
        )

    return read_file


read_file = make_read_file(60)


def read_one_file_a_turn(messages: Sequence[Message]) -> ScriptedReply:
    """One call that reads a file named after the length of the conversation, then a short reply."""
    results = sum(block_kind(block) == "tool_result" for block in messages[-1].content)
    if results:
        return ScriptedReply((Text("It is as expected; next is the one behind it."),))
    characters = sum(len(str(message.content)) for message in messages)
    path = f"src/part_{characters % 9973}/lexer.py"
    return ScriptedReply((ToolUse("", "read_file", encode_json({"path": path}).decode()),))


def block_kind(block: Block) -> str:
    return str(type(block).__struct_config__.tag)


class LongConversation:
    """A session on a memory store with a simulated provider, and the options to resume it with."""

    def __init__(self, **options: object) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.provider = SimulatedProvider(clock=self.clock, script=read_one_file_a_turn)
        self.options: Options = {
            "model": MODEL,
            "system_prompt": PROMPT,
            "store": self.store,
            "transport": self.provider,
            "simulated": False,  # Stands for a session that is billed.
            "clock": self.clock,
            "tools": (read_file,),
            "compaction": BY_HAND,
            **options,  # type: ignore[typeddict-item]  # whatever a test gives is checked by the session
        }

    def create(self) -> Session:
        return Session.create(**self.options)

    def resume(self, session_id: str) -> Session:
        options: Options = {
            "store": self.store,
            "transport": self.provider,
            "simulated": False,  # Stands for a session that is billed.
            "clock": self.clock,
            "tools": self.options["tools"],
            "compaction": self.options["compaction"],
        }
        return Session.resume(session_id, **options)

    async def send_turns(self, session: Session, turns: int, *, gap_seconds: float = 10.0) -> None:
        for number in range(turns):
            self.clock.advance(gap_seconds)
            await session.send(
                GOAL if not number and not session.turn_count else f"Go on with part {session.turn_count}."
            )
