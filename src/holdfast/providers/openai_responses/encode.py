"""Encodes a request to the Responses API: the parameters, which are not cached, then tools and one list of items.

The system prompt is the first item, because `instructions` cannot have a breakpoint (OpenAI, "Prompt caching"). An
output limit of 0 stands for a request without one.
"""

import re

import msgspec

from holdfast.errors import UserError
from holdfast.providers.adapter import Endpoint, encode_stable_blocks
from holdfast.providers.json_splice import encode_json_text, encode_string, join_object
from holdfast.providers.openai_common import ERROR_TEXT, IMAGE_TEXT, encode_openai_tool_choice, normalize_image
from holdfast.providers.openai_responses.items import (
    ITEM_START,
    encode_responses_entry,
    has_openai_signature,
    message_start,
)
from holdfast.providers.openai_responses.parts import accepts_responses_breakpoint, encode_input_part
from holdfast.providers.wire_request import check_section_order, encode_tool_spec
from holdfast.types.blocks import THINKING_TYPES, Block, Image, Role, Thinking, ToolResult
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import HistoryEntry, Parameters, Segment, Ttl, fit_call_ids
from holdfast.types.request_buffer import EncodedBlock

PATH = "/responses"

REQUEST_DEFAULTS = {"store": b"false", "include": b'["reasoning.encrypted_content"]'}
"""The provider stores nothing, so it has to return its encrypted reasoning. `extra` can override both."""

PARAMETER_NAMES = frozenset({"model", "max_output_tokens", "stream", "temperature", "reasoning"})
PROMPT_NAMES = frozenset({"tools", "input", "instructions"})
CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TOOL = b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":false}'
_DEVELOPER = message_start("developer")
# 30m is the API's default and needs no `ttl`.
_BREAKPOINTS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}


def lower_responses_entry(entry: HistoryEntry) -> HistoryEntry | None:
    """Drop other providers' thinking; represent failed tool calls and assistant images by text."""
    ours = (
        block
        for block in entry.content
        if not isinstance(block, THINKING_TYPES) or (isinstance(block, Thinking) and has_openai_signature(block))
    )
    content = tuple(_lower_block(block, entry.role) for block in ours)
    if not content:
        return None
    lowered = entry if content == entry.content else msgspec.structs.replace(entry, content=content)
    return fit_call_ids(lowered, CALL_ID)


def _lower_block(block: Block, role: Role) -> Block:
    match block:
        case Image():
            return IMAGE_TEXT if role == "assistant" else normalize_image(block)
        case ToolResult(content=content, is_error=is_error):
            parts = tuple(normalize_image(part) if isinstance(part, Image) else part for part in content)
            if is_error and parts[:1] != (ERROR_TEXT,):
                parts = (ERROR_TEXT, *parts)
            return block if parts == content and not is_error else ToolResult(block.tool_use_id, parts)
        case _:
            return block


def encode_responses_segment(segment: Segment) -> tuple[EncodedBlock, ...]:
    """One encoded block per tool, system text or message block, without breakpoints."""
    stable = encode_stable_blocks(
        segment,
        lambda tool: encode_tool_spec(tool, _TOOL),
        encode_input_part,
        accepts_breakpoint=accepts_responses_breakpoint,
    )
    lowered = map(lower_responses_entry, segment.entries)
    messages = (block for entry in lowered if entry is not None for block in encode_responses_entry(entry))
    return (*stable, *messages)


def responses_separator(before: EncodedBlock | None, block: EncodedBlock) -> bytes:
    check_section_order(before, block)
    if block.section == "tools":
        return b',"tools":[' if before is None else b","
    if before is None or before.section == "tools":
        return (b"" if before is None else b"]") + b',"input":[' + _first_start(block)
    if before.section == block.section and not block.container_start:
        return b","
    return _end(before) + b"," + block.container_start


def _first_start(block: EncodedBlock) -> bytes:
    """A first developer message is the system prompt, so a system entry in that place gets the role `system`."""
    if block.section == "system":
        return _DEVELOPER
    return message_start("system") if block.container_start == _DEVELOPER else block.container_start


def _end(block: EncodedBlock) -> bytes:
    return b"" if block.container_start == ITEM_START else b"]}"


def responses_suffix(last: EncodedBlock | None) -> bytes:
    if last is None:
        return b',"input":[]}'
    return b'],"input":[]}' if last.section == "tools" else _end(last) + b"]}"


def encode_responses_breakpoint(ttl: Ttl) -> bytes:
    if ttl not in _BREAKPOINTS:
        raise UserError(f"OpenAI's cache TTL is {' or '.join(_BREAKPOINTS)}, not {ttl}")
    return _BREAKPOINTS[ttl]


def responses_request_head(parameters: Parameters) -> bytes:
    if parameters.stop_sequences:
        raise UserError("OpenAI's Responses API takes no stop sequences; leave them out")
    if parameters.betas:
        raise UserError("OpenAI has no betas to name; leave them out")
    members = {"model": encode_string(parameters.model)}
    if parameters.output_tokens_max:
        members["max_output_tokens"] = b"%d" % parameters.output_tokens_max
    if parameters.stream:
        members["stream"] = b"true"
    if parameters.temperature is not None:
        members["temperature"] = encode_json(parameters.temperature)
    overridden = {name for name, _ in parameters.extra}
    members |= {name: value for name, value in REQUEST_DEFAULTS.items() if name not in overridden}
    if parameters.thinking_json is not None:
        members["reasoning"] = encode_json_text(parameters.thinking_json)
    if parameters.tool_choice_json is not None:
        members |= encode_openai_tool_choice(parameters.tool_choice_json, nested=False)
    for name, value in parameters.extra:
        if name in members or name in PARAMETER_NAMES | PROMPT_NAMES:
            raise UserError(f"extra field {name!r} has a place of its own in the request; set it there")
        members[name] = encode_json_text(value)
    return join_object(members).removesuffix(b"}")


def responses_endpoint(parameters: Parameters) -> Endpoint:
    return Endpoint(PATH, (("content-type", "application/json"),))
