"""Transcripts of every kind, valid and broken, and every combination of transcript rules."""

from itertools import product

from hypothesis import strategies as st

from holdfast.types.blocks import (
    Block,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
)
from holdfast.types.transcript import SystemMessages, TranscriptRules

IDS = ("a", "b", "c")
BLOCKS: list[Block] = [
    *map(Text, ("", " \n", "hello", "more")),
    *(ToolUse(id, "read", "{}") for id in IDS),
    *(ToolResult(id, (Text(text),)) for id in IDS for text in ("done", "")),
    *(Opaque("tool_use", f'{{"type":"tool_use","id":"{id}","caller":1}}'.encode()) for id in IDS),
    *(Opaque("tool_result", f'{{"tool_use_id":"{id}","new":1}}'.encode()) for id in IDS),
    *(Thinking("hm", "sig"), RedactedThinking("x"), Image(UrlSource("u")), Opaque("tool_result", b"?")),
]
ROLES: tuple[Role, ...] = ("user", "assistant", "user", "assistant", "system")
SYSTEM_MESSAGES: tuple[SystemMessages, ...] = ("refused", "after_user", "anywhere")
RULES = [
    TranscriptRules(alternate, first, last, ordered, blank, system_messages)
    for alternate, first, last, ordered, blank in product((True, False), repeat=5)
    for system_messages in SYSTEM_MESSAGES
]

contents = st.lists(st.sampled_from(BLOCKS), max_size=3).map(tuple)
transcripts = st.lists(st.builds(Message, st.sampled_from(ROLES), contents), max_size=6)
all_rules = st.sampled_from(RULES)


def result(id: str, *texts: str) -> ToolResult:
    return ToolResult(id, tuple(map(Text, texts or ("done",))))


def system(*texts: str) -> Message:
    return Message("system", tuple(map(Text, texts)))
