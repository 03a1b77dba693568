"""Encodes a request to the Responses API: the parameters, which are not cached, then tools and one list of items.

The system prompt is the first item, because `instructions` cannot have a breakpoint (OpenAI, "Prompt caching"). An
output limit of 0 stands for a request without one.
"""

import re

import msgspec

from holdfast.canonical.blocks import THINKING_KINDS, Block, Image, Role, Text, Thinking, ToolResult
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Parameters, Passage, Segment, Ttl
from holdfast.canonical.tools import ToolSpec
from holdfast.errors import UserError
from holdfast.providers.adapter import Endpoint
from holdfast.providers.ids import with_fitting_ids
from holdfast.providers.members import quoted, spliced
from holdfast.providers.openai_choice import spell_choice
from holdfast.providers.openai_responses.items import ALONE, message_start, spell_passage
from holdfast.providers.openai_responses.parts import is_markable, lowered_image, spell_input
from holdfast.providers.openai_responses.reasoning import is_sealed
from holdfast.providers.places import check_order

PATH = "/responses"

DEFAULTS = {"store": b"false", "include": b'["reasoning.encrypted_content"]'}
"""The provider stores nothing, so it has to return its encrypted reasoning. `extra` can override both."""

PARAMETER_NAMES = frozenset({"model", "max_output_tokens", "stream", "temperature", "reasoning"})
PROMPT_NAMES = frozenset({"tools", "input", "instructions"})

CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ERROR = Text("Error:")
"""The first text in the result of a failed tool call: the API has no error flag."""

_IMAGE_TEXT = Text("[image]")
_DEVELOPER = message_start("developer")
# 30m is the API's default and needs no `ttl`.
_BREAKPOINTS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}


def lower(entry: Passage) -> Passage | None:
    """Drop other providers' thinking; represent failed tool calls and assistant images by text."""
    content = tuple(_lower_block(block, entry.role) for block in entry.content if _is_representable(block))
    if not content:
        return None
    lowered = entry if content == entry.content else msgspec.structs.replace(entry, content=content)
    return with_fitting_ids(lowered, CALL_ID)


def _is_representable(block: Block) -> bool:
    if isinstance(block, Thinking):
        return is_sealed(block)
    return not isinstance(block, THINKING_KINDS)


def _lower_block(block: Block, role: Role) -> Block:
    match block:
        case Image():
            return _IMAGE_TEXT if role == "assistant" else lowered_image(block)
        case ToolResult(content=content, is_error=is_error):
            parts = tuple(lowered_image(part) if isinstance(part, Image) else part for part in content)
            if is_error and parts[:1] != (ERROR,):
                parts = (ERROR, *parts)
            return block if parts == content and not is_error else ToolResult(block.tool_use_id, parts)
        case _:
            return block


def spell_segment(segment: Segment) -> tuple[Piece, ...]:
    """One encoded block per tool, system text or message block, without breakpoints."""
    tools = (
        Piece(segment.name, "tools", segment.stability, spell_tool(tool), markable=False) for tool in segment.tools
    )
    system = (
        Piece(segment.name, "system", segment.stability, spell_input(text), markable=is_markable(text))
        for text in segment.system
    )
    lowered = (lower(entry) for entry in segment.passages)
    messages = (block for entry in lowered if entry is not None for block in spell_passage(entry))
    return (*tools, *system, *messages)


def spell_tool(tool: ToolSpec) -> bytes:
    if tool.wire_json is not None:
        return spliced(tool.wire_json.strip())
    return b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":false}' % (
        quoted(tool.name),
        quoted(tool.description),
        spliced(tool.input_schema_json),
    )


def lead(before: Piece | None, block: Piece) -> bytes:
    check_order(before, block)
    if block.place == "tools":
        return b',"tools":[' if before is None else b","
    if before is None or before.place == "tools":
        return (b"" if before is None else b"]") + b',"input":[' + _first_start(block)
    if before.place == block.place and not block.opens:
        return b","
    return _end(before) + b"," + block.opens


def _first_start(block: Piece) -> bytes:
    """A first developer message is the system prompt, so a system entry in that place gets the role `system`."""
    if block.place == "system":
        return _DEVELOPER
    return message_start("system") if block.opens == _DEVELOPER else block.opens


def _end(block: Piece) -> bytes:
    return b"" if block.opens == ALONE else b"]}"


def close(last: Piece | None) -> bytes:
    if last is None:
        return b',"input":[]}'
    return b'],"input":[]}' if last.place == "tools" else _end(last) + b"]}"


def mark(ttl: Ttl) -> bytes:
    if ttl not in _BREAKPOINTS:
        raise UserError(f"OpenAI's cache TTL is {' or '.join(_BREAKPOINTS)}, not {ttl}")
    return _BREAKPOINTS[ttl]


def opening(parameters: Parameters) -> bytes:
    if parameters.stop_sequences:
        raise UserError("OpenAI's Responses API takes no stop sequences; leave them out")
    if parameters.betas:
        raise UserError("OpenAI has no betas to name; leave them out")
    members = {"model": quoted(parameters.model)}
    if parameters.output_tokens_max:
        members["max_output_tokens"] = b"%d" % parameters.output_tokens_max
    if parameters.stream:
        members["stream"] = b"true"
    if parameters.temperature is not None:
        members["temperature"] = plain_json(parameters.temperature)
    overridden = {name for name, _ in parameters.extra}
    members |= {name: value for name, value in DEFAULTS.items() if name not in overridden}
    if parameters.thinking_json is not None:
        members["reasoning"] = spliced(parameters.thinking_json)
    if parameters.tool_choice_json is not None:
        members |= spell_choice(parameters.tool_choice_json, nested=False)
    for name, value in parameters.extra:
        if name in members or name in PARAMETER_NAMES | PROMPT_NAMES:
            raise UserError(f"extra field {name!r} has a place of its own in the request; set it there")
        members[name] = spliced(value)
    return b"{" + b",".join(quoted(name) + b":" + value for name, value in members.items())


def endpoint(parameters: Parameters) -> Endpoint:
    return Endpoint(PATH, (("content-type", "application/json"),))
