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
        return _apply_edit(by_name[file], context, lambda: add_entry(by_name[file], _normalize(text)))

    def memory_replace(old_text: str, new_text: str, context: ToolContext, file: str = files[0].name) -> str:
        return _apply_edit(
            by_name[file], context, lambda: replace_entry(by_name[file], _normalize(old_text), _normalize(new_text))
        )

    def memory_consolidate(text: str, context: ToolContext, file: str = files[0].name) -> str:
        return _apply_edit(by_name[file], context, lambda: consolidate(by_name[file], _normalize(text)))

    about = "; ".join(_purpose(file) for file in files)
    return (
        tool(
            memory_add,
            description=f"Remember something in later sessions too: add one line to a memory file. {about}.",
            input_schema=_schema(files, text="One short line."),
            side_effects="write",
        ),
        tool(
            memory_consolidate,
            description=f"Rewrite a memory file to make it shorter. {about}.",
            input_schema=_schema(files, text="The whole new content."),
            side_effects="write",
        ),
        tool(
            memory_replace,
            description=f"Correct or remove a passage of a memory file. {about}.",
            input_schema=_schema(
                files,
                old_text="What to replace, exactly as it stands there; it must occur once.",
                new_text="What to put in its place; empty to remove it.",
            ),
            side_effects="write",
        ),
    )


def _purpose(file: MemoryFile) -> str:
    of_user = "what is true of the user" if file.name == "USER.md" else "what is true of this workspace"
    return f"{file.name} holds {of_user}, {file.hard_bytes_max} bytes at most"


def _schema(files: Sequence[MemoryFile], **texts: str) -> dict[str, Json]:
    names: list[Json] = [file.name for file in files]
    properties: dict[str, Json] = {
        name: {"type": "string", "description": description} for name, description in texts.items()
    }
    properties["file"] = {"type": "string", "enum": names, "default": names[0]}
    required: list[Json] = list(texts)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _normalize(text: str) -> str:
    return replace_surrogates(text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _apply_edit(file: MemoryFile, context: ToolContext, edit: Callable[[], MemoryEdit]) -> str:
    """Apply an edit, record it if it changed something, and describe the outcome for the model."""
    if context.stopped.is_set():
        raise ToolError("The call was stopped before anything was written.", kind="cancelled")
    try:
        result = edit()
    except UserError as error:
        text = str(error)
        raise ToolError(f"{text[0].upper()}{text[1:]}.") from None
    before, after = len(result.before), len(result.after)
    # No event: MemoryUpdated records a change of bytes.
    if result.before == result.after:
        return f"{file.name} says so already; nothing was changed."
    context.record_event(
        MemoryUpdated(file.name, result.operation, sha256_hex(result.before), sha256_hex(result.after), before, after)
    )
    if result.operation == "consolidate" and result.entries_evicted:
        too_large = before > file.soft_bytes_max
        trigger: Literal["size_cap_exceeded", "manual"] = "size_cap_exceeded" if too_large else "manual"
        context.record_event(MemoryEviction(file.name, trigger, result.entries_evicted, before, after))
    context.files_modified.append(file.path.shown)
    hint = ""
    if after > file.soft_bytes_max:
        hint = (
            f" That is more than the {file.soft_bytes_max} bytes it should have; consolidate it before it reaches "
            f"{file.hard_bytes_max}."
        )
    return f"{file.name} now has {after} bytes.{hint}"
