"""Encodes a request for Anthropic: the parameters, which are not cached, then tools, system and messages.

The order is the one in which Anthropic hashes a prompt (Anthropic, "Prompt caching").
"""

import re

from holdfast.canonical.encoding import plain_json
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Parameters, Passage, Segment, Ttl
from holdfast.canonical.tools import ToolSpec
from holdfast.errors import UserError
from holdfast.providers.adapter import Endpoint
from holdfast.providers.anthropic.blocks import is_markable, spell_block
from holdfast.providers.ids import with_fitting_ids
from holdfast.providers.members import quoted, spliced
from holdfast.providers.places import check_order

# The version that Anthropic's SDK sends from 2.0.0 on; older SDKs send 2023-06-01.
API_VERSION = "2026-10-21"
PATH = "/v1/messages"
BETA_HEADER = "anthropic-beta"

PARAMETER_NAMES = frozenset(
    {"model", "max_tokens", "stream", "temperature", "stop_sequences", "thinking", "tool_choice"}
)
PROMPT_NAMES = frozenset({"tools", "system", "messages"})

CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,200}")
_BETA = re.compile(r"[A-Za-z0-9._:-]+")
# 5m is the API's default and needs no `ttl`.
_BREAKPOINTS: dict[Ttl, bytes] = {
    "5m": b',"cache_control":{"type":"ephemeral"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}


def lower(entry: Passage) -> Passage:
    """Every block can be represented; only call ids that other providers assigned may have to be rewritten."""
    return with_fitting_ids(entry, CALL_ID)


def spell_segment(segment: Segment) -> tuple[Piece, ...]:
    """One encoded block per tool, system text or message block, each a JSON object without a breakpoint."""
    tools = (Piece(segment.name, "tools", segment.stability, spell_tool(tool), markable=True) for tool in segment.tools)
    system = (
        Piece(segment.name, "system", segment.stability, spell_block(text), markable=is_markable(text))
        for text in segment.system
    )
    messages = (block for entry in segment.passages for block in _encode_entry(lower(entry)))
    return (*tools, *system, *messages)


def spell_tool(tool: ToolSpec) -> bytes:
    if tool.wire_json is not None:
        # A breakpoint is spliced in before the last byte, which must therefore be the closing brace.
        return spliced(tool.wire_json.strip())
    return b'{"name":%b,"description":%b,"input_schema":%b}' % (
        quoted(tool.name),
        quoted(tool.description),
        spliced(tool.input_schema_json),
    )


def _encode_entry(entry: Passage) -> tuple[Piece, ...]:
    return tuple(
        Piece(
            entry.layer,
            "messages",
            entry.stability,
            spell_block(block),
            markable=is_markable(block),
            role=entry.role,
            ephemeral=entry.ephemeral,
        )
        for block in entry.content
    )


def lead(before: Piece | None, block: Piece) -> bytes:
    if before is not None and before.place == block.place:
        # Adjacent entries of one role share a message: Anthropic's roles have to alternate.
        if before.role == block.role:
            return b","
        return b"]}," + _message_start(block)
    check_order(before, block)
    start = b'%b,"%b":[' % (b"" if before is None else b"]", block.place.encode())
    return start + _message_start(block) if block.place == "messages" else start


def _message_start(block: Piece) -> bytes:
    return f'{{"role":"{block.role}","content":['.encode()


def close(last: Piece | None) -> bytes:
    if last is None:
        return b',"messages":[]}'
    return b"]}]}" if last.place == "messages" else b'],"messages":[]}'


def mark(ttl: Ttl) -> bytes:
    if ttl not in _BREAKPOINTS:
        raise UserError(f"Anthropic's cache TTL is {' or '.join(_BREAKPOINTS)}, not {ttl}")
    return _BREAKPOINTS[ttl]


def opening(parameters: Parameters) -> bytes:
    """Betas are not in the body: they are sent in the header `anthropic-beta`."""
    members = [
        b'"model":' + quoted(parameters.model),
        b'"max_tokens":%d' % parameters.output_tokens_max,
    ]
    if parameters.stream:
        members.append(b'"stream":true')
    if parameters.temperature is not None:
        members.append(b'"temperature":' + plain_json(parameters.temperature))
    if parameters.stop_sequences:
        members.append(b'"stop_sequences":[' + b",".join(map(quoted, parameters.stop_sequences)) + b"]")
    if parameters.thinking_json is not None:
        members.append(b'"thinking":' + spliced(parameters.thinking_json))
    if parameters.tool_choice_json is not None:
        members.append(b'"tool_choice":' + spliced(parameters.tool_choice_json))
    for name, value in parameters.extra:
        if name in PARAMETER_NAMES | PROMPT_NAMES:
            raise UserError(f"extra field {name!r} has a place of its own in the request; set it there")
        members.append(quoted(name) + b":" + spliced(value))
    return b"{" + b",".join(members)


def endpoint(parameters: Parameters) -> Endpoint:
    for beta in parameters.betas:
        if not _BETA.fullmatch(beta):
            raise UserError(f"beta {beta!r} is not valid in a header; use a name like 'context-1m-2025-08-07'")
    betas = ((BETA_HEADER, ",".join(parameters.betas)),) if parameters.betas else ()
    headers = (("content-type", "application/json"), ("anthropic-version", API_VERSION), *betas)
    return Endpoint(PATH, headers)
