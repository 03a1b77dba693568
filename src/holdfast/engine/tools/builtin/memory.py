"""The tools with which a model edits its memory files: add a line, replace a passage, rewrite the file."""

from collections.abc import Callable, Sequence
from typing import Literal

from holdfast.engine.tools.definition import Tool, ToolContext, ToolError, tool
from holdfast.errors import UserError
from holdfast.events.payloads.session import MemoryEviction, MemoryUpdated
from holdfast.sources.memory_files import MemoryEdit, MemoryFile, add_entry, consolidate, replace_entry
from holdfast.types.blocks import Json, replace_surrogates
from holdfast.types.json_encoding import sha256_hex

MEMORY_TOOL_NAMES = ("memory_add", "memory_consolidate", "memory_replace")


def memory_tools(files: Sequence[MemoryFile]) -> tuple[Tool, ...]:
    """The tools that edit these files; the first one is the default."""
    by_name = {file.name: file for file in files}

    def memory_add(text: str, context: ToolContext, file: str = files[0].name) -> str:
        return _apply_edit(add_entry, by_name[file], context, text)

    def memory_replace(old_text: str, new_text: str, context: ToolContext, file: str = files[0].name) -> str:
        return _apply_edit(replace_entry, by_name[file], context, old_text, new_text)

    def memory_consolidate(text: str, context: ToolContext, file: str = files[0].name) -> str:
        return _apply_edit(consolidate, by_name[file], context, text)

    about = "; ".join(_purpose(file) for file in files)
    old_text = "What to replace, exactly as it stands there; it must occur once."
    new_text = "What to put in its place; empty to remove it."

    def memory_tool(function: Callable[..., str], purpose: str, **texts: str) -> Tool:
        description, input_schema = f"{purpose} {about}.", _schema(files, **texts)
        return tool(function, description=description, input_schema=input_schema, side_effects="write")

    return (
        memory_tool(
            memory_add,
            "Remember something in later sessions too: add one line to a memory file.",
            text="One short line.",
        ),
        memory_tool(memory_consolidate, "Rewrite a memory file to make it shorter.", text="The whole new content."),
        memory_tool(
            memory_replace, "Correct or remove a passage of a memory file.", old_text=old_text, new_text=new_text
        ),
    )


def _purpose(file: MemoryFile) -> str:
    of_user = "what is true of the user" if file.name == "USER.md" else "what is true of this workspace"
    return f"{file.name} holds {of_user}, {file.hard_bytes_max} bytes at most"


def _schema(files: Sequence[MemoryFile], **texts: str) -> dict[str, Json]:
    names: list[Json] = [file.name for file in files]
    properties: dict[str, Json] = {name: {"type": "string", "description": text} for name, text in texts.items()}
    properties["file"] = {"type": "string", "enum": names, "default": names[0]}
    required: list[Json] = list(texts)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _normalize(text: str) -> str:
    return replace_surrogates(text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _apply_edit(edit: Callable[..., MemoryEdit], file: MemoryFile, context: ToolContext, *texts: str) -> str:
    """Apply an edit, record it if it changed something, and describe the outcome for the model."""
    if context.stopped.is_set():
        raise ToolError("The call was stopped before anything was written.", kind="cancelled")
    try:
        result = edit(file, *map(_normalize, texts))
    except UserError as error:
        text = str(error)
        raise ToolError(f"{text[0].upper()}{text[1:]}.") from None
    before, after = len(result.before), len(result.after)
    # No event: MemoryUpdated records a change of bytes.
    if result.before == result.after:
        return f"{file.name} says so already; nothing was changed."
    digests = sha256_hex(result.before), sha256_hex(result.after)
    context.record_event(MemoryUpdated(file.name, result.operation, *digests, before, after))
    if result.operation == "consolidate" and result.entries_evicted:
        too_large = before > file.soft_bytes_max
        trigger: Literal["size_cap_exceeded", "manual"] = "size_cap_exceeded" if too_large else "manual"
        context.record_event(MemoryEviction(file.name, trigger, result.entries_evicted, before, after))
    context.files_modified.append(file.path.shown)
    text = f"{file.name} now has {after} bytes."
    if after <= file.soft_bytes_max:
        return text
    excess = f"That is more than the {file.soft_bytes_max} bytes it should have"
    return f"{text} {excess}; consolidate it before it reaches {file.hard_bytes_max}."
