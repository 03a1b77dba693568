"""Encodes a request for Anthropic: the parameters, which are not cached, then tools, system and messages.

The order is the one in which Anthropic hashes a prompt (Anthropic, "Prompt caching"). A ping is a request for
zero output: it writes and refreshes the cache.
"""

import re
from collections.abc import Sequence

import msgspec

from holdfast.errors import UserError
from holdfast.providers.adapter import Endpoint, encode_stable_blocks
from holdfast.providers.anthropic.blocks import accepts_anthropic_breakpoint, encode_anthropic_block
from holdfast.providers.json_splice import (
    decode_json_or_none,
    encode_json_text,
    encode_string,
    extra_field,
    nested_field,
)
from holdfast.providers.wire_request import (
    check_section_order,
    encode_tool_spec,
)
from holdfast.types.blocks import Role
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import HistoryEntry, Parameters, Segment, Ttl, fit_call_ids
from holdfast.types.request_buffer import EncodedBlock, make_message_block

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

PREFIX_BLOCKS_MAX = 3
"""A request may have 4 breakpoints (Anthropic, "Prompt caching"); one stays free for the caller."""


def lower_anthropic_entry(entry: HistoryEntry) -> HistoryEntry:
    """Every block can be represented; only call ids that other providers assigned may have to be rewritten."""
    return fit_call_ids(entry, CALL_ID)


def encode_anthropic_segment(segment: Segment) -> tuple[EncodedBlock, ...]:
    """One encoded block per tool, system text or message block, each a JSON object without a breakpoint."""
    stable = encode_stable_blocks(
        segment,
        lambda tool: encode_tool_spec(tool, b'{"name":%b,"description":%b,"input_schema":%b}'),
        encode_anthropic_block,
        tool_breakpoints=True,
        accepts_breakpoint=accepts_anthropic_breakpoint,
    )
    messages = (
        make_message_block(
            entry,
            encode_anthropic_block(block),
            accepts_breakpoint=accepts_anthropic_breakpoint(block),
            container_start=_encode_message_start(entry.role, entry.fields) if entry.fields and not index else b"",
        )
        for entry in map(lower_anthropic_entry, segment.entries)
        for index, block in enumerate(entry.content)
    )
    return (*stable, *messages)


def anthropic_separator(before: EncodedBlock | None, block: EncodedBlock) -> bytes:
    if before is not None and before.section == block.section:
        # Adjacent entries of one role share a message: Anthropic's roles have to alternate.
        if before.role == block.role and not block.container_start:
            return b","
        return b"]}," + _message_start(block)
    check_section_order(before, block)
    start = b'%b,"%b":[' % (b"" if before is None else b"]", block.section.encode())
    return start + _message_start(block) if block.section == "messages" else start


def _message_start(block: EncodedBlock) -> bytes:
    return block.container_start or _encode_message_start(block.role)


def _encode_message_start(role: Role | None, fields: tuple[tuple[str, str], ...] = ()) -> bytes:
    members = b"".join(b"%b:%b," % (encode_string(name), encode_json_text(value)) for name, value in fields)
    return b'{"role":"%b",%b"content":[' % (str(role).encode(), members)


def anthropic_suffix(last: EncodedBlock | None) -> bytes:
    if last is None:
        return b',"messages":[]}'
    return b"]}]}" if last.section == "messages" else b'],"messages":[]}'


def encode_anthropic_breakpoint(ttl: Ttl) -> bytes:
    if ttl not in _BREAKPOINTS:
        raise UserError(f"Anthropic's cache TTL is {' or '.join(_BREAKPOINTS)}, not {ttl}")
    return _BREAKPOINTS[ttl]


def anthropic_request_head(parameters: Parameters) -> bytes:
    """Betas are not in the body: they are sent in the header `anthropic-beta`."""
    members = [
        b'"model":' + encode_string(parameters.model),
        b'"max_tokens":%d' % parameters.output_tokens_max,
    ]
    if parameters.stream:
        members.append(b'"stream":true')
    if parameters.temperature is not None:
        members.append(b'"temperature":' + encode_json(parameters.temperature))
    if parameters.stop_sequences:
        members.append(b'"stop_sequences":[' + b",".join(map(encode_string, parameters.stop_sequences)) + b"]")
    if parameters.thinking_json is not None:
        members.append(b'"thinking":' + encode_json_text(parameters.thinking_json))
    if parameters.tool_choice_json is not None:
        members.append(b'"tool_choice":' + encode_json_text(parameters.tool_choice_json))
    for name, value in parameters.extra:
        if name in PARAMETER_NAMES | PROMPT_NAMES:
            raise UserError(f"extra field {name!r} has a place of its own in the request; set it there")
        members.append(encode_string(name) + b":" + encode_json_text(value))
    return b"{" + b",".join(members)


def anthropic_endpoint(parameters: Parameters) -> Endpoint:
    for beta in parameters.betas:
        if not _BETA.fullmatch(beta):
            raise UserError(f"beta {beta!r} is not valid in a header; use a name like 'context-1m-2025-08-07'")
    betas = ((BETA_HEADER, ",".join(parameters.betas)),) if parameters.betas else ()
    headers = (("content-type", "application/json"), ("anthropic-version", API_VERSION), *betas)
    return Endpoint(PATH, headers)


def cache_prefix_blocks(message: str, cache_boundaries: Sequence[int]) -> str | list[dict[str, object]]:
    """The message as content blocks split at the character offsets; all but the last have a breakpoint.

    The plain string if no boundary lies inside the message. Only the first three boundaries are used.
    """
    points = sorted({point for point in cache_boundaries if 0 < point < len(message)})[:PREFIX_BLOCKS_MAX]
    if not points:
        return message
    blocks: list[dict[str, object]] = [
        {"type": "text", "text": message[start:end], "cache_control": {"type": "ephemeral"}}
        for start, end in zip([0, *points], points, strict=False)
    ]
    return [*blocks, {"type": "text", "text": message[points[-1] :]}]


def anthropic_ping_parameters(parameters: Parameters) -> Parameters:
    return msgspec.structs.replace(parameters, output_tokens_max=0, stream=False)


def find_anthropic_ping_conflict(parameters: Parameters) -> str | None:
    """The first parameter that the provider refuses together with `max_tokens` 0, named as in its documentation."""
    thinking_type = nested_field(decode_json_or_none(parameters.thinking_json), "type")
    choice_type = nested_field(decode_json_or_none(parameters.tool_choice_json), "type")
    # Each of these is answered with 400; so is `max_tokens` 0 in a batch, which we never send.
    conflicts = {
        "stream: true": parameters.stream,
        'thinking.type "enabled"': thinking_type == "enabled",
        "output_config.format": nested_field(extra_field(parameters, "output_config"), "format") is not None,
        f"tool_choice.type {choice_type!r}": choice_type in ("any", "tool"),
    }
    return next((name for name, is_present in conflicts.items() if is_present), None)
