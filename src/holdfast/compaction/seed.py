"""Compaction by the rules of seed 002: a summary of what was said, and the last messages as they are.

Its cuts, sections and limits are the seed's; what it gets wrong is not: marks do not multiply when a summary is merged,
the first request stays, and no result loses its call.
"""

import re
from collections.abc import Sequence

from holdfast.canonical.blocks import (
    Block,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    text_of,
)
from holdfast.canonical.transcript import exchange_groups
from holdfast.compaction.values import SOFT_TOKENS, CompactionConfig, CompactionResult
from holdfast.extraction.calls import Task, action_of, plain_text, result_text
from holdfast.extraction.facts import DONE

PREAMBLE = (
    "This session is being continued from a previous conversation that ran out of context. The summary below covers "
    "the earlier portion of the conversation."
)
RECENT = "Recent messages are preserved verbatim."
RESUME = (
    "Continue the conversation from where it left off without asking the user any further questions. Resume directly: "
    "do not acknowledge the summary, do not recap what was happening, and do not preface with continuation text."
)
NEWLY = "Newly compacted context:"
BLOCK_CHARS_MAX = 160
CURRENT_CHARS_MAX = 200
REQUESTS_MAX = 3
FILES_MAX = 8
SUMMARY_CHARS_MAX = 12_000
_FILE_NAME = re.compile(r"\.(rs|ts|tsx|js|json|md|py|toml|go)$")
_PENDING = re.compile(r"to_?do|next|pending|follow up|remaining", re.IGNORECASE)


def threshold_of(text: str | None) -> int:
    """From which size on a session is compacted by itself, as an environment says it, or by default."""
    try:
        return int(text or "") if int(text or "") > 0 else SOFT_TOKENS
    except ValueError:
        return SOFT_TOKENS


def estimated_tokens(messages: Sequence[Message]) -> int:
    """The seed's estimate: a quarter of the bytes of each block, and one."""
    return sum(_block_tokens(block) for message in messages for block in message.content)


def _block_tokens(block: Block) -> int:
    match block:
        case Text():
            return len(block.text.encode()) // 4 + 1
        case ToolUse():
            return len((block.name + block.arguments_json).encode()) // 4 + 1
        case ToolResult():
            return len((block.name + result_text(block)).encode()) // 4 + 1
        case Thinking():
            signed = len((block.signature or "").encode()) // 4 + 1 if block.signature else 0
            return len(block.text.encode()) // 4 + signed
        case RedactedThinking() | Image() | Opaque():
            return 1


def should_compact(messages: Sequence[Message], config: CompactionConfig) -> bool:
    """A summary in front counts for nothing: more messages than are kept, and enough tokens in them."""
    rest = messages[1:] if summary_in(messages) is not None else messages
    return len(rest) > config.preserve_recent_messages and estimated_tokens(rest) >= config.max_estimated_tokens


def compact_messages(messages: Sequence[Message], config: CompactionConfig) -> CompactionResult:
    """The messages with a summary in front of the last ones; as they were where there is too little to compact."""
    before = estimated_tokens(messages)
    if not should_compact(messages, config):
        return CompactionResult(tuple(messages), tokens_before=before, tokens_after=before, reason="below the limits")
    known = summary_in(messages)
    front = 0 if known is None else 1
    start = boundary(messages, config.preserve_recent_messages, front=front)
    removed = messages[front:start]
    if not removed:
        return CompactionResult(tuple(messages), tokens_before=before, tokens_after=before, reason="nothing to remove")
    summary = merged(known, summarize(removed))
    text = continuation(summary, recent=start < len(messages))
    kept = (Message("system", (Text(text),)), *messages[start:])
    return CompactionResult(
        kept,
        removed_message_count=len(removed),
        summary=summary,
        formatted_summary=format_summary(summary),
        tokens_before=before,
        tokens_after=estimated_tokens(kept),
    )


def boundary(messages: Sequence[Message], keep: int, *, front: int = 0) -> int:
    """Where the kept messages begin: at the start of a group, so that no result is parted from its call."""
    wanted = max(front, len(messages) - keep)
    starts = [start for start, _ in exchange_groups(messages)]
    return max((start for start in starts if start <= wanted), default=front) if wanted < len(messages) else wanted


def summary_in(messages: Sequence[Message]) -> str | None:
    """The summary that a compaction has put in front, without what stood around it."""
    if not messages or messages[0].role not in ("system", "user"):
        return None
    text = text_of(messages[0].content).strip()
    if not text.startswith(PREAMBLE):
        return None
    return text.removeprefix(PREAMBLE).removesuffix(RESUME).strip().removesuffix(RECENT).strip()


def summarize(messages: Sequence[Message]) -> str:
    """Scope, tools, requests, pending work, key files, current work and the timeline of some messages."""
    roles = [_role(message) for message in messages]
    counts = ", ".join(f"{role}={roles.count(role)}" for role in ("user", "assistant", "tool"))
    lines = ["Conversation summary:", f"- Scope: {len(messages)} earlier messages compacted ({counts})."]
    if tools := sorted({block.name for one in messages for block in one.content if isinstance(block, ToolUse)}):
        lines.append(f"- Tools mentioned: {', '.join(tools)}.")
    lines += _listed("Recent user requests", requests(messages))
    lines += _listed("Pending work", pending_work(messages))
    if files := key_files(messages):
        lines.append(f"- Key files referenced: {', '.join(files)}.")
    if current := _current_work(messages):
        lines.append(f"- Current work: {current}")
    lines.append("- Key timeline:")
    lines += [f"  - {role}: {_timeline(one)}" for role, one in zip(roles, messages, strict=True)]
    return "\n".join(lines)


def _role(message: Message) -> str:
    return "tool" if any(isinstance(block, ToolResult) for block in message.content) else message.role


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"- {title}:", *(f"  - {item}" for item in items)] if items else []


def requests(messages: Sequence[Message]) -> list[str]:
    """The first request and the newest ones, oldest first."""
    texts = (text_of(one.content) for one in messages if _role(one) == "user")
    asked = [cut_block(text) for text in texts if text.strip()]
    return asked if len(asked) <= REQUESTS_MAX else [asked[0], *asked[-REQUESTS_MAX + 1 :]]


def pending_work(messages: Sequence[Message]) -> list[str]:
    """Calls without a result and open tasks; else what the newest texts say is still to be done."""
    answered = {block.tool_use_id for one in messages for block in one.content if isinstance(block, ToolResult)}
    calls = [block for one in messages for block in one.content if isinstance(block, ToolUse)]
    waiting = [cut_block(f"{call.name} {call.arguments_json}") for call in calls if call.id not in answered]
    planned: tuple[Task, ...] = ()
    for call in calls:
        action = action_of(call)
        planned = action.tasks if action.kind == "plan" and action.tasks else planned
    tasks = [cut_block(task.text) for task in planned if task.status.lower() not in DONE]
    if found := waiting + tasks:
        return found[-REQUESTS_MAX:]
    texts = (text_of(one.content) for one in messages)
    return [cut_block(text) for text in texts if _PENDING.search(text)][-REQUESTS_MAX:]


def key_files(messages: Sequence[Message]) -> list[str]:
    """Words with a slash that end like a file, sorted."""
    found = set()
    for message in messages:
        for word in plain_text(message.content).split():
            bare = word.strip(",.:;()\"'`")
            if "/" in bare and _FILE_NAME.search(bare):
                found.add(bare)
    return sorted(found)[:FILES_MAX]


def _current_work(messages: Sequence[Message]) -> str:
    texts = [text for one in messages if (text := text_of(one.content)).strip()]
    return cut_block(texts[-1], CURRENT_CHARS_MAX) if texts else ""


def _timeline(message: Message) -> str:
    return " | ".join(_block_line(block) for block in message.content)


def _block_line(block: Block) -> str:
    match block:
        case Text():
            return cut_block(block.text)
        case ToolUse():
            return cut_block(f"tool_use {block.name}({block.arguments_json})")
        case ToolResult():
            failed = "error " if block.is_error else ""
            return cut_block(f"tool_result {block.name}: {failed}{result_text(block)}")
        case Thinking():
            return f"thinking ({len(block.text)} chars)"
        case RedactedThinking() | Image() | Opaque():
            return type(block).__name__.lower()


def cut_block(text: str, chars_max: int = BLOCK_CHARS_MAX) -> str:
    line = " ".join(text.split())
    return line if len(line) <= chars_max else f"{line[:chars_max]}…"


def merged(before: str | None, after: str) -> str:
    """The highlights of a summary before this one, those that are new, and the new timeline.

    Old highlights are taken as they are: a summary that is merged again and again gains no marks, and keeps its size.
    """
    if before is None:
        return after
    old = [line for line in before.splitlines() if line.strip() not in ("Summary:", "Conversation summary:", NEWLY)]
    highlights = _highlights("\n".join(old))
    new, timeline = _highlights(after)[1:], after[after.index("- Key timeline:") :]
    room = SUMMARY_CHARS_MAX
    kept: list[str] = []
    for line in dict.fromkeys(highlights):
        if line in new or room < len(line):
            continue
        kept.append(line)
        room -= len(line) + 1
    return "\n".join(["Conversation summary:", *kept, NEWLY, *new, timeline])


def _highlights(summary: str) -> list[str]:
    return [line for line in summary.partition("- Key timeline:")[0].splitlines() if line.strip()]


def format_summary(summary: str) -> str:
    """Without what the writer thought to itself, and under one heading."""
    text = re.sub(r"<analysis>.*?</analysis>", "", summary, flags=re.DOTALL)
    text = re.sub(
        r"<summary>(.*?)</summary>", lambda found: f"Summary:\n{found.group(1).strip()}", text, flags=re.DOTALL
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def continuation(summary: str, *, recent: bool) -> str:
    """The message that stands for what was removed."""
    parts = [PREAMBLE, format_summary(summary), *([RECENT] if recent else []), RESUME]
    return "\n\n".join(parts)
