"""How Anthropic spells a request: tools, then system, then messages, behind everything that is not cached."""

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

API_VERSION = "2026-10-21"
PATH = "/v1/messages"
BETA_HEADER = "anthropic-beta"

PARAMETER_NAMES = frozenset(
    {"model", "max_tokens", "stream", "temperature", "stop_sequences", "thinking", "tool_choice"}
)
PROMPT_NAMES = frozenset({"tools", "system", "messages"})

CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,200}")
_BETA = re.compile(r"[A-Za-z0-9._:-]+")
_MARKS: dict[Ttl, bytes] = {
    "5m": b',"cache_control":{"type":"ephemeral"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}


def lower(passage: Passage) -> Passage:
    """Everything can be said; only ids that other providers gave to calls may have to be spelled anew."""
    return with_fitting_ids(passage, CALL_ID)


def spell_segment(segment: Segment) -> tuple[Piece, ...]:
    """One piece per tool, system text or message block, each a JSON object without mark."""
    tools = (Piece(segment.name, "tools", segment.stability, spell_tool(tool), markable=True) for tool in segment.tools)
    system = (
        Piece(segment.name, "system", segment.stability, spell_block(text), markable=is_markable(text))
        for text in segment.system
    )
    messages = (piece for passage in segment.passages for piece in _spell_passage(lower(passage)))
    return (*tools, *system, *messages)


def spell_tool(tool: ToolSpec) -> bytes:
    if tool.wire_json is not None:
        # A mark goes in front of the last byte, so that must be the brace.
        return spliced(tool.wire_json.strip())
    return b'{"name":%b,"description":%b,"input_schema":%b}' % (
        quoted(tool.name),
        quoted(tool.description),
        spliced(tool.input_schema_json),
    )


def _spell_passage(passage: Passage) -> tuple[Piece, ...]:
    return tuple(
        Piece(
            passage.layer,
            "messages",
            passage.stability,
            spell_block(block),
            markable=is_markable(block),
            role=passage.role,
            ephemeral=passage.ephemeral,
        )
        for block in passage.content
    )


def lead(before: Piece | None, piece: Piece) -> bytes:
    if before is not None and before.place == piece.place:
        if before.role == piece.role:
            return b","
        return b"]}," + _message_start(piece)
    check_order(before, piece)
    start = b'%b,"%b":[' % (b"" if before is None else b"]", piece.place.encode())
    return start + _message_start(piece) if piece.place == "messages" else start


def _message_start(piece: Piece) -> bytes:
    return f'{{"role":"{piece.role}","content":['.encode()


def close(last: Piece | None) -> bytes:
    if last is None:
        return b',"messages":[]}'
    return b"]}]}" if last.place == "messages" else b'],"messages":[]}'


def mark(ttl: Ttl) -> bytes:
    if ttl not in _MARKS:
        raise UserError(f"Anthropic keeps a prefix for {' or '.join(_MARKS)}, not for {ttl}")
    return _MARKS[ttl]


def opening(parameters: Parameters) -> bytes:
    """Betas are left out on purpose: they travel in a header."""
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
            raise UserError(f"beta {beta!r} cannot stand in a header; a name like 'context-1m-2025-08-07' can")
    betas = ((BETA_HEADER, ",".join(parameters.betas)),) if parameters.betas else ()
    headers = (("content-type", "application/json"), ("anthropic-version", API_VERSION), *betas)
    return Endpoint(PATH, headers)
