"""Renders messages as plain text, every block under its message's number. The recall tool returns this text."""

from collections.abc import Iterable

from holdfast.canonical.blocks import Block, Image, Opaque, RedactedThinking, Text, Thinking, ToolResult, ToolUse
from holdfast.canonical.prompt import Passage
from holdfast.extraction.calls import result_text


def told(entries: Iterable[Passage]) -> str:
    """The messages verbatim; thinking is represented by its length."""
    return "\n\n".join(_message(entry) for entry in entries)


def _message(entry: Passage) -> str:
    speaker = f"{entry.layer} layer" if entry.injected else entry.role
    return f"[m{entry.number}] {speaker}\n" + "\n".join(_block(block) for block in entry.content)


def _block(block: Block) -> str:
    match block:
        case Text():
            return block.text
        case ToolUse():
            return f"calls {block.name} {block.arguments_json}"
        case ToolResult():
            failed = " (error)" if block.is_error else ""
            return f"result{failed}:\n{result_text(block)}"
        case Thinking():
            return f"({len(block.text)} characters of thinking)"
        case RedactedThinking():
            return "(thinking, redacted)"
        case Image():
            return "(an image)"
        case Opaque():
            return f"({block.kind}, {len(block.raw)} bytes)"
