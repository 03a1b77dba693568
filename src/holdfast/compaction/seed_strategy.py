"""Compaction by the rules of seed 002: a summary of the earlier messages, and the last messages unchanged.

Cuts, sections and limits are the seed's. Its bugs are fixed: headings do not multiply when a summary is merged, the
first request is kept, and no tool result loses its call.
"""

import re
from collections.abc import Sequence

from holdfast.compaction.models import SOFT_LIMIT_TOKENS, CompactionConfig, CompactionResult
from holdfast.extraction.facts import DONE_STATUSES
from holdfast.extraction.tool_calls import PlannedTask, extract_plain_text, interpret_call, result_text
from holdfast.types.blocks import (
    Block,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    join_text_blocks,
)
from holdfast.types.transcript import split_into_exchanges

PREAMBLE = (
    "This session is being continued from a previous conversation that ran out of context. The summary below covers "
    "the earlier portion of the conversation."
)
RECENT = "Recent messages are preserved verbatim."
RESUME = (
    "Continue the conversation from where it left off without asking the user any further questions. Resume directly: "
    "do not acknowledge the summary, do not recap what was happening, and do not preface with continuation text."
)
NEWLY_COMPACTED = "Newly compacted context:"
# Limits of seed 002's summary, in characters and items; SUMMARY_CHARS_MAX is ours, because the seed's merged summaries
# grow without bound.
BLOCK_CHARS_MAX = 160
CURRENT_CHARS_MAX = 200
REQUESTS_MAX = 3
FILES_MAX = 8
SUMMARY_CHARS_MAX = 12_000
_FILE_NAME = re.compile(r"\.(rs|ts|tsx|js|json|md|py|toml|go)$")
_PENDING = re.compile(r"to_?do|next|pending|follow up|remaining", re.IGNORECASE)


def parse_threshold(text: str | None) -> int:
    """The automatic compaction threshold from an environment variable's text; the default if it is not positive."""
    try:
        return int(text or "") if int(text or "") > 0 else SOFT_LIMIT_TOKENS
    except ValueError:
        return SOFT_LIMIT_TOKENS


def estimate_seed_tokens(messages: Sequence[Message]) -> int:
    """The seed's estimate: bytes // 4 + 1 per block."""
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
            signature_tokens = len((block.signature or "").encode()) // 4 + 1 if block.signature else 0
            return len(block.text.encode()) // 4 + signature_tokens
        case RedactedThinking() | Image() | Opaque():
            return 1


def should_compact(messages: Sequence[Message], config: CompactionConfig) -> bool:
    """Whether there are more messages than are kept and enough tokens in them; a leading summary does not count."""
    rest = messages[1:] if extract_summary(messages) is not None else messages
    return len(rest) > config.preserve_recent_messages and estimate_seed_tokens(rest) >= config.max_estimated_tokens


def compact_messages(messages: Sequence[Message], config: CompactionConfig) -> CompactionResult:
    """The last messages with a summary before them; unchanged if there is too little to compact."""
    before = estimate_seed_tokens(messages)
    if not should_compact(messages, config):
        return CompactionResult(tuple(messages), tokens_before=before, tokens_after=before, reason="below the limits")
    earlier_summary = extract_summary(messages)
    summary_count = 0 if earlier_summary is None else 1
    start = find_boundary(messages, config.preserve_recent_messages, front=summary_count)
    covered = messages[summary_count:start]
    if not covered:
        return CompactionResult(tuple(messages), tokens_before=before, tokens_after=before, reason="nothing to remove")
    summary = merge_summaries(earlier_summary, summarize_messages(covered))
    text = render_continuation(summary, recent=start < len(messages))
    compacted = (Message("system", (Text(text),)), *messages[start:])
    return CompactionResult(
        compacted,
        removed_message_count=len(covered),
        summary=summary,
        formatted_summary=format_summary(summary),
        tokens_before=before,
        tokens_after=estimate_seed_tokens(compacted),
    )


def find_boundary(messages: Sequence[Message], keep: int, *, front: int = 0) -> int:
    """The index of the first kept message: the start of a group, so that no result is separated from its call."""
    target = max(front, len(messages) - keep)
    starts = [start for start, _ in split_into_exchanges(messages)]
    # Move back to the start of the group: a provider rejects a tool result whose call was removed.
    return max((start for start in starts if start <= target), default=front) if target < len(messages) else target


def extract_summary(messages: Sequence[Message]) -> str | None:
    """The summary of an earlier compaction, without preamble and instructions; None if there is none."""
    if not messages or messages[0].role not in ("system", "user"):
        return None
    text = join_text_blocks(messages[0].content).strip()
    if not text.startswith(PREAMBLE):
        return None
    return text.removeprefix(PREAMBLE).removesuffix(RESUME).strip().removesuffix(RECENT).strip()


def summarize_messages(messages: Sequence[Message]) -> str:
    """Scope, tools, requests, pending work, key files, current work and timeline of the messages."""
    roles = [_summary_role(message) for message in messages]
    counts = ", ".join(f"{role}={roles.count(role)}" for role in ("user", "assistant", "tool"))
    lines = ["Conversation summary:", f"- Scope: {len(messages)} earlier messages compacted ({counts})."]
    if tools := sorted({block.name for message in messages for block in message.content if isinstance(block, ToolUse)}):
        lines.append(f"- Tools mentioned: {', '.join(tools)}.")
    lines += _list_lines("Recent user requests", recent_requests(messages))
    lines += _list_lines("Pending work", find_pending_work(messages))
    if files := find_key_files(messages):
        lines.append(f"- Key files referenced: {', '.join(files)}.")
    if texts := [text for message in messages if (text := join_text_blocks(message.content)).strip()]:
        lines.append(f"- Current work: {truncate_block(texts[-1], CURRENT_CHARS_MAX)}")
    lines.append("- Key timeline:")
    for role, message in zip(roles, messages, strict=True):
        lines.append(f"  - {role}: {' | '.join(map(_block_line, message.content))}")
    return "\n".join(lines)


def _summary_role(message: Message) -> str:
    return "tool" if any(isinstance(block, ToolResult) for block in message.content) else message.role


def _list_lines(title: str, items: Sequence[str]) -> list[str]:
    return [f"- {title}:", *(f"  - {item}" for item in items)] if items else []


def recent_requests(messages: Sequence[Message]) -> list[str]:
    """The first request and the newest ones, oldest first."""
    texts = (join_text_blocks(message.content) for message in messages if _summary_role(message) == "user")
    user_requests = [truncate_block(text) for text in texts if text.strip()]
    if len(user_requests) <= REQUESTS_MAX:
        return user_requests
    return [user_requests[0], *user_requests[-REQUESTS_MAX + 1 :]]


def find_pending_work(messages: Sequence[Message]) -> list[str]:
    """Calls without a result and open tasks; if there are none, the newest texts that mention pending work."""
    blocks = [block for message in messages for block in message.content]
    answered_ids = {block.tool_use_id for block in blocks if isinstance(block, ToolResult)}
    calls = [block for block in blocks if isinstance(block, ToolUse)]
    open_calls = [truncate_block(f"{call.name} {call.arguments_json}") for call in calls if call.id not in answered_ids]
    latest_tasks: tuple[PlannedTask, ...] = ()
    for call in calls:
        action = interpret_call(call)
        latest_tasks = action.tasks if action.kind == "plan" and action.tasks else latest_tasks
    tasks = [truncate_block(task.text) for task in latest_tasks if task.status.lower() not in DONE_STATUSES]
    if pending := open_calls + tasks:
        return pending[-REQUESTS_MAX:]
    texts = (join_text_blocks(message.content) for message in messages)
    return [truncate_block(text) for text in texts if _PENDING.search(text)][-REQUESTS_MAX:]


def find_key_files(messages: Sequence[Message]) -> list[str]:
    """Words with a slash and a known file suffix, sorted."""
    paths = set()
    for message in messages:
        for word in extract_plain_text(message.content).split():
            path = word.strip(",.:;()\"'`")
            if "/" in path and _FILE_NAME.search(path):
                paths.add(path)
    return sorted(paths)[:FILES_MAX]


def _block_line(block: Block) -> str:
    match block:
        case Text():
            return truncate_block(block.text)
        case ToolUse():
            return truncate_block(f"tool_use {block.name}({block.arguments_json})")
        case ToolResult():
            failed = "error " if block.is_error else ""
            return truncate_block(f"tool_result {block.name}: {failed}{result_text(block)}")
        case Thinking():
            return f"thinking ({len(block.text)} chars)"
        case RedactedThinking() | Image() | Opaque():
            return type(block).__name__.lower()


def truncate_block(text: str, chars_max: int = BLOCK_CHARS_MAX) -> str:
    line = " ".join(text.split())
    return line if len(line) <= chars_max else f"{line[:chars_max]}…"


def merge_summaries(before: str | None, after: str) -> str:
    """The highlights of the earlier summary, the new highlights, and the new timeline.

    Old highlights are taken over unchanged, each under its heading, and bounded, so that repeated merging adds no
    headings and does not grow.
    """
    if before is None:
        return after
    headings = ("Summary:", "Conversation summary:", NEWLY_COMPACTED)
    earlier = _highlights("\n".join(line for line in before.splitlines() if line.strip() not in headings))
    new, timeline = _highlights(after)[1:], after[after.index("- Key timeline:") :]
    new_sections, room = _sections(new), SUMMARY_CHARS_MAX
    earlier_lines: list[str] = []
    for heading, items in _sections(earlier).items():
        if not items and heading in new_sections:
            continue
        kept = [heading]
        room -= len(heading) + 1
        for item in items:
            # Only what the new summary repeats under the same heading is left out.
            if item not in new_sections.get(heading, {}) and len(item) < room:
                kept.append(item)
                room -= len(item) + 1
        if room >= 0 and (len(kept) > 1 or not items):
            earlier_lines += kept
        else:
            room += len(heading) + 1
    return "\n".join(["Conversation summary:", *earlier_lines, NEWLY_COMPACTED, *new, timeline])


def _sections(highlights: Sequence[str]) -> dict[str, dict[str, None]]:
    """Each highlight with the items below it, in order; items of headings that are repeated come together."""
    sections: dict[str, dict[str, None]] = {}
    heading = ""
    for line in highlights:
        if line.startswith("  ") and heading:
            sections[heading][line] = None
        else:
            heading = line
            sections.setdefault(heading, {})
    return sections


def _highlights(summary: str) -> list[str]:
    return [line for line in summary.partition("- Key timeline:")[0].splitlines() if line.strip()]


def format_summary(summary: str) -> str:
    """Remove the `<analysis>` block and put the `<summary>` under one heading."""
    text = re.sub(r"<analysis>.*?</analysis>", "", summary, flags=re.DOTALL)
    text = re.sub(r"<summary>(.*?)</summary>", lambda match: f"Summary:\n{match[1].strip()}", text, flags=re.DOTALL)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def render_continuation(summary: str, *, recent: bool) -> str:
    """The text of the message that replaces the removed ones."""
    return "\n\n".join((PREAMBLE, format_summary(summary), *((RECENT,) if recent else ()), RESUME))
