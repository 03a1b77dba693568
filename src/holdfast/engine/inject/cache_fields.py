"""Adds breakpoints and a cache key to the decoded body of a request, by that request alone."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.catalog.schema import Model
from holdfast.engine.inject.openai_body import CACHE_KEY_FIELD, CACHE_OPTIONS_FIELD
from holdfast.errors import UserError
from holdfast.planning.breakpoints import can_carry_breakpoint, place_breakpoints
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.providers.anthropic.blocks import CACHE_CONTROL
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Breakpoint, Plan, Ttl
from holdfast.types.request_buffer import RequestBuffer

BREAKPOINT_FIELD = "prompt_cache_breakpoint"
_SYSTEM_ROLES = ("system", "developer")


class ClientRequest(NamedTuple):
    """A client's request, decoded and encoded by us.

    `previous_tail` is the last breakpoint's block in the previous request, if this request is unchanged up to it.
    """

    body: Mapping[str, Json]
    wire_request: WireRequest
    buffer: RequestBuffer
    model: Model
    session: str
    previous_tail: int | None = None


class RewrittenRequest(NamedTuple):
    """The body to send, and its decoded form: the same prompt with all breakpoints."""

    body: dict[str, Json]
    wire_request: WireRequest


def as_list(value: Json | None) -> list[Json]:
    if not isinstance(value, list):
        raise UserError(f"expected a list, got {type(value).__name__}")
    return value


def as_object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise UserError(f"expected an object, got {type(value).__name__}")
    return value


BreakpointTtls = Mapping[int, Ttl]
"""The TTLs of the new breakpoints, by block; blocks are counted from the first tool."""


def add_anthropic_breakpoints(
    body: dict[str, Json], request: ClientRequest, *, text_follows: bool = False
) -> RewrittenRequest:
    """Add our breakpoints in the slots that the client's own leave free; the client's stay unchanged.

    `text_follows`: text will be appended after the conversation that the next request will not repeat.
    """
    existing = request.wire_request.plan.breakpoints
    ours = missing_breakpoints(request, existing, text_follows=text_follows)
    breakpoints = tuple(sorted((*existing, *ours), key=lambda breakpoint: breakpoint.block_index))
    changed = _with_breakpoints(body, {breakpoint.block_index: breakpoint.ttl for breakpoint in ours}, request)
    return RewrittenRequest(changed, replace(request.wire_request, plan=Plan(breakpoints)))


def missing_breakpoints(
    request: ClientRequest, existing: Sequence[Breakpoint], *, text_follows: bool = False
) -> tuple[Breakpoint, ...]:
    """The planned breakpoints that are missing, as many as there are free slots."""
    automatic = request.body.get(CACHE_CONTROL)
    end_has_breakpoint = automatic is not None and not text_follows
    used = _count(request.body) + (automatic is not None)
    slots_left = max(0, request.model.cache.breakpoints_max - used)
    blocks = request.buffer.blocks
    taken = {breakpoint.block_index for breakpoint in existing}
    if end_has_breakpoint:
        # The provider's automatic breakpoint is already at the end of the conversation, or on what follows it.
        taken |= {index for index, block in enumerate(blocks) if block.section == "messages"}
    candidates = [wanted for wanted in _wanted_breakpoints(request) if wanted.block_index not in taken]
    # A 1-hour breakpoint after a 5-minute one is refused (Anthropic, "Prompt caching"). Everything before a 1-hour
    # breakpoint is written for an hour in any case, so raising ours to an hour costs nothing.
    hours = [breakpoint.block_index for breakpoint in existing if breakpoint.ttl == "1h"]
    if isinstance(automatic, dict) and automatic.get("ttl") == "1h":
        hours.append(len(blocks))
    last_hour = max(hours, default=-1)
    chosen = candidates[-slots_left:] if slots_left else []
    return tuple(replace(ours, ttl="1h") if ours.block_index < last_hour else ours for ours in chosen)


def _wanted_breakpoints(request: ClientRequest) -> tuple[Breakpoint, ...]:
    """The plan, plus the end of the previous call if that is beyond the lookback from the end of this one."""
    rules, tail, blocks = request.model.cache, request.previous_tail, request.buffer.blocks
    breakpoints = place_breakpoints(request.buffer, rules).breakpoints
    if tail is None or not breakpoints or not can_carry_breakpoint(blocks, tail) or blocks[tail].section != "messages":
        return breakpoints
    if breakpoints[-1].block_index - tail < rules.lookback_positions:
        return breakpoints
    previous_end = Breakpoint(tail, reason="end of the previous call, beyond the lookback")
    return (*breakpoints[:-1], previous_end, breakpoints[-1])


def _count(body: Mapping[str, Json]) -> int:
    """How many blocks carry a breakpoint, at any depth; the automatic one is not counted."""
    value = body.get("messages")
    messages = value if isinstance(value, list) else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return sum(_count_blocks(blocks) for blocks in (body.get("tools"), body.get("system"), *contents))


def _count_blocks(blocks: Json) -> int:
    members = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    return sum((block.get(CACHE_CONTROL) is not None) + _count_blocks(block.get("content")) for block in members)


def _with_breakpoints(body: dict[str, Json], ttls: BreakpointTtls, request: ClientRequest) -> dict[str, Json]:
    """A copy of the body with breakpoints on the given blocks."""
    if not ttls:
        return body
    walk = _Walk(ttls)
    changed = dict(body)
    for name, renew in (("tools", walk.blocks), ("system", walk.text_or_blocks), ("messages", walk.messages)):
        value = body.get(name)
        if value:
            changed[name] = renew(value)
    if walk.seen != len(request.buffer.blocks):
        raise UserError("the blocks of the body do not match those of the encoded request")
    return changed


class _Walk:
    """Walks a body block by block, in the order of the encoded blocks."""

    def __init__(self, ttls: BreakpointTtls) -> None:
        self._ttls = ttls
        self.seen = 0

    def messages(self, value: Json) -> Json:
        return [
            {**message, "content": self.text_or_blocks(message.get("content"))}
            for message in map(as_object, as_list(value))
        ]

    def text_or_blocks(self, value: Json) -> Json:
        if isinstance(value, str):
            ttl = self._next()
            return [_with_cache_control({"type": "text", "text": value}, ttl)] if ttl else value
        return self.blocks(value)

    def blocks(self, value: Json) -> Json:
        blocks: list[Json] = []
        for block in as_list(value):
            ttl = self._next()
            blocks.append(_with_cache_control(as_object(block), ttl) if ttl else block)
        return blocks

    def _next(self) -> Ttl | None:
        ttl = self._ttls.get(self.seen)
        self.seen += 1
        return ttl


def _with_cache_control(block: Mapping[str, Json], ttl: Ttl) -> dict[str, Json]:
    return {**block, CACHE_CONTROL: {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}}


def add_openai_cache_fields(
    body: dict[str, Json], request: ClientRequest, *, adapter: Adapter, prompt_name: str, part_type: str
) -> RewrittenRequest:
    """Add what the client has not set. Raises `UserError` if the prompt would decode differently with a breakpoint."""
    changed = dict(body)
    fields = dict(adapter.session_fields(request.model, request.session))
    if body.get(CACHE_KEY_FIELD) is None and CACHE_KEY_FIELD in fields:
        changed[CACHE_KEY_FIELD] = msgspec.json.decode(fields[CACHE_KEY_FIELD])
    if prompt_name in body and _takes_breakpoint(request):
        changed[prompt_name] = _with_openai_breakpoint(body[prompt_name], part_type)
    wire_request = adapter.decode_request(encode_json(changed))
    if wire_request.prompt != request.wire_request.prompt:
        raise UserError("adding a breakpoint would change the prompt")
    return RewrittenRequest(changed, wire_request)


def _takes_breakpoint(request: ClientRequest) -> bool:
    """Whether a slot is free: the implicit breakpoint at the newest message takes one of the provider's 4."""
    options = request.body.get(CACHE_OPTIONS_FIELD)
    if isinstance(options, dict) and options.get("mode") == "explicit":
        return False
    rules = request.model.cache
    return rules.kind == "hybrid" and len(request.wire_request.plan.breakpoints) + 1 < rules.breakpoints_max


def _with_openai_breakpoint(value: Json, part_type: str) -> Json:
    """The messages with a breakpoint at the end of the leading system messages, if there are any."""
    if value is None or isinstance(value, str):
        return value
    messages = [as_object(message) for message in as_list(value)]
    end = 0
    while end < len(messages) and messages[end].get("role") in _SYSTEM_ROLES:
        end += 1
    content = _content_with_openai_breakpoint(messages[end - 1].get("content"), part_type) if end else None
    if content is None:
        return value
    return [*messages[: end - 1], {**messages[end - 1], "content": content}, *messages[end:]]


def _content_with_openai_breakpoint(content: Json | None, part_type: str) -> list[Json] | None:
    """The content with a breakpoint at its end; None if it cannot carry one or already does."""
    parts: list[Json] = [{"type": part_type, "text": content}] if isinstance(content, str) else as_list(content)
    last = as_object(parts[-1]) if parts else {}
    text = last.get("text")
    has_text = last.get("type") == part_type and isinstance(text, str) and text.strip()
    if not has_text or last.get(BREAKPOINT_FIELD) is not None:
        return None
    return [*parts[:-1], {**last, BREAKPOINT_FIELD: {"mode": "explicit"}}]
