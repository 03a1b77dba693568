"""How a request to the Responses API is spelled: tools, then one list of items, behind everything that is not cached.

The system prompt is the first item, because a mark cannot stand in `instructions`. A limit of 0 on the output is one
that is not written, and none that is read.
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
"""Nothing is kept by the provider, so its reasoning comes to us; a request can say otherwise in `extra`."""

PARAMETER_NAMES = frozenset({"model", "max_output_tokens", "stream", "temperature", "reasoning"})
PROMPT_NAMES = frozenset({"tools", "input", "instructions"})

CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ERROR = Text("Error:")
"""Stands first in the result of a tool that failed: the wire has no word for it."""

_IMAGE_SAID = Text("[image]")
_DEVELOPER = message_start("developer")
_MARKS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}


def lower(passage: Passage) -> Passage | None:
    """Thinking that is not OpenAI's cannot be told; that a tool failed, or that a model drew, is said in words."""
    told = tuple(_lower_block(block, passage.role) for block in passage.content if _can_be_told(block))
    if not told:
        return None
    kept = passage if told == passage.content else msgspec.structs.replace(passage, content=told)
    return with_fitting_ids(kept, CALL_ID)


def _can_be_told(block: Block) -> bool:
    if isinstance(block, Thinking):
        return is_sealed(block)
    return not isinstance(block, THINKING_KINDS)


def _lower_block(block: Block, role: Role) -> Block:
    match block:
        case Image():
            return _IMAGE_SAID if role == "assistant" else lowered_image(block)
        case ToolResult(content=content, is_error=is_error):
            told = tuple(lowered_image(part) if isinstance(part, Image) else part for part in content)
            if is_error and told[:1] != (ERROR,):
                told = (ERROR, *told)
            return block if told == content and not is_error else ToolResult(block.tool_use_id, told)
        case _:
            return block


def spell_segment(segment: Segment) -> tuple[Piece, ...]:
    """One piece per tool, system text or message block, without mark."""
    tools = (
        Piece(segment.name, "tools", segment.stability, spell_tool(tool), markable=False) for tool in segment.tools
    )
    system = (
        Piece(segment.name, "system", segment.stability, spell_input(text), markable=is_markable(text))
        for text in segment.system
    )
    lowered = (lower(passage) for passage in segment.passages)
    messages = (piece for passage in lowered if passage is not None for piece in spell_passage(passage))
    return (*tools, *system, *messages)


def spell_tool(tool: ToolSpec) -> bytes:
    if tool.wire_json is not None:
        return spliced(tool.wire_json.strip())
    return b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":false}' % (
        quoted(tool.name),
        quoted(tool.description),
        spliced(tool.input_schema_json),
    )


def lead(before: Piece | None, piece: Piece) -> bytes:
    check_order(before, piece)
    if piece.place == "tools":
        return b',"tools":[' if before is None else b","
    if before is None or before.place == "tools":
        return (b"" if before is None else b"]") + b',"input":[' + _first_start(piece)
    if before.place == piece.place and not piece.opens:
        return b","
    return _end(before) + b"," + piece.opens


def _first_start(piece: Piece) -> bytes:
    """A first message to the developer is the system prompt, so what only follows none is of the other role."""
    if piece.place == "system":
        return _DEVELOPER
    return message_start("system") if piece.opens == _DEVELOPER else piece.opens


def _end(piece: Piece) -> bytes:
    return b"" if piece.opens == ALONE else b"]}"


def close(last: Piece | None) -> bytes:
    if last is None:
        return b',"input":[]}'
    return b'],"input":[]}' if last.place == "tools" else _end(last) + b"]}"


def mark(ttl: Ttl) -> bytes:
    if ttl not in _MARKS:
        raise UserError(f"OpenAI keeps a prefix for {' or '.join(_MARKS)}, not for {ttl}")
    return _MARKS[ttl]


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
    said_otherwise = {name for name, _ in parameters.extra}
    members |= {name: value for name, value in DEFAULTS.items() if name not in said_otherwise}
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
