"""Adds a cache key and a cache breakpoint to the bodies of OpenAI's requests."""

import msgspec

from holdfast.engine.inject.client_request import ClientRequest, RewrittenRequest, as_list, as_object
from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json

CACHE_KEY_FIELD = "prompt_cache_key"
BREAKPOINT_FIELD = "prompt_cache_breakpoint"
CACHE_OPTIONS_FIELD = "prompt_cache_options"
_SYSTEM_ROLES = ("system", "developer")


def add_openai_cache_fields(
    body: dict[str, Json], request: ClientRequest, *, adapter: Adapter, prompt_name: str, part_type: str
) -> RewrittenRequest:
    """Add what the client has not set. Raises `UserError` if the prompt would decode differently with a breakpoint."""
    changed = dict(body)
    fields = dict(adapter.session_fields(request.model, request.session))
    if body.get(CACHE_KEY_FIELD) is None and CACHE_KEY_FIELD in fields:
        changed[CACHE_KEY_FIELD] = msgspec.json.decode(fields[CACHE_KEY_FIELD])
    if prompt_name in body and _takes_breakpoint(request):
        changed[prompt_name] = _with_breakpoint(body[prompt_name], part_type)
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


def _with_breakpoint(value: Json, part_type: str) -> Json:
    """The messages with a breakpoint at the end of the leading system messages, if there are any."""
    if value is None or isinstance(value, str):
        return value
    messages = [as_object(message) for message in as_list(value)]
    end = 0
    while end < len(messages) and messages[end].get("role") in _SYSTEM_ROLES:
        end += 1
    content = _content_with_breakpoint(messages[end - 1].get("content"), part_type) if end else None
    if content is None:
        return value
    return [*messages[: end - 1], {**messages[end - 1], "content": content}, *messages[end:]]


def _content_with_breakpoint(content: Json | None, part_type: str) -> list[Json] | None:
    """The content with a breakpoint at its end; None if it cannot carry one or already does."""
    parts: list[Json] = [{"type": part_type, "text": content}] if isinstance(content, str) else as_list(content)
    last = as_object(parts[-1]) if parts else {}
    text = last.get("text")
    has_text = last.get("type") == part_type and isinstance(text, str) and text.strip()
    if not has_text or last.get(BREAKPOINT_FIELD) is not None:
        return None
    return [*parts[:-1], {**last, BREAKPOINT_FIELD: {"mode": "explicit"}}]
