"""Adds a cache key and a cache breakpoint to the arguments of OpenAI's client."""

from collections.abc import Mapping
from functools import partial

import msgspec

from holdfast.engine.inject.client_method import (
    Arguments,
    ClientMethod,
    ClientRequest,
    RewrittenRequest,
    block_members,
    client_body,
    encode_bare_event,
    encode_named_event,
    extra_body_members,
    is_absent,
    list_parts,
)
from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openai_responses import openai_responses
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json

CACHE_KEY_FIELD = "prompt_cache_key"
BREAKPOINT_FIELD = "prompt_cache_breakpoint"
CACHE_OPTIONS_ARGUMENT = "prompt_cache_options"
INCLUDE_USAGE_FIELD = "include_usage"
_SYSTEM_ROLES = ("system", "developer")
_HELPER_ARGUMENTS = frozenset({"text_format", "starting_after", "response_id"})


def add_openai_cache_fields(
    arguments: Arguments, request: ClientRequest, *, adapter: Adapter, prompt_name: str, part_type: str
) -> RewrittenRequest:
    """Add what the caller has not set. Raises `UserError` if the prompt would decode differently with a breakpoint."""
    changed = dict(arguments)
    fields = dict(adapter.session_fields(request.model, request.session))
    if request.body.get(CACHE_KEY_FIELD) is None and CACHE_KEY_FIELD in fields:
        key: object = msgspec.json.decode(fields[CACHE_KEY_FIELD])
        # In extra_body, because older clients do not have this parameter.
        changed["extra_body"] = {**extra_body_members(arguments), CACHE_KEY_FIELD: key}
    if prompt_name not in extra_body_members(arguments) and _takes_breakpoint(request):
        changed[prompt_name] = _with_breakpoint(arguments.get(prompt_name), part_type)
    body = client_body(changed, left_out=_HELPER_ARGUMENTS)
    wire_request = adapter.decode_request(encode_json(body))
    if wire_request.prompt != request.wire_request.prompt:
        raise UserError("adding a breakpoint would change the prompt")
    return RewrittenRequest(changed, wire_request)


def _takes_breakpoint(request: ClientRequest) -> bool:
    """Whether a slot is free: the implicit breakpoint at the newest message takes one of the provider's 4."""
    options = request.body.get(CACHE_OPTIONS_ARGUMENT)
    if isinstance(options, dict) and options.get("mode") == "explicit":
        return False
    rules = request.model.cache
    return rules.kind == "hybrid" and len(request.wire_request.plan.breakpoints) + 1 < rules.breakpoints_max


def _with_breakpoint(value: object, part_type: str) -> object:
    """The messages with a breakpoint at the end of the leading system messages, if there are any."""
    if value is None or isinstance(value, str) or is_absent(value):
        return value
    messages = list_parts(value)
    end = 0
    while end < len(messages) and block_members(messages[end]).get("role") in _SYSTEM_ROLES:
        end += 1
    if not end:
        return value
    last = block_members(messages[end - 1])
    content = _content_with_breakpoint(last.get("content"), part_type)
    if content is None:
        return value
    return [*messages[: end - 1], {**last, "content": content}, *messages[end:]]


def _content_with_breakpoint(content: object, part_type: str) -> list[object] | None:
    """The content with a breakpoint at its end; None if it cannot carry one or already does."""
    parts: list[object] = [{"type": part_type, "text": content}] if isinstance(content, str) else list_parts(content)
    last = block_members(parts[-1]) if parts else {}
    text = last.get("text")
    has_text = last.get("type") == part_type and isinstance(text, str) and text.strip()
    if not has_text or last.get(BREAKPOINT_FIELD) is not None:
        return None
    return [*parts[:-1], {**last, BREAKPOINT_FIELD: {"mode": "explicit"}}]


def rewrite_chat_arguments(arguments: Arguments, request: ClientRequest) -> RewrittenRequest:
    """Like `add_openai_cache_fields`; also asks a stream to report usage at its end."""
    sent, wire_request = add_openai_cache_fields(
        arguments, request, adapter=openai_chat, prompt_name="messages", part_type="text"
    )
    if request.wire_request.parameters.stream and _usage_option(arguments) is None:
        value = arguments.get("stream_options")
        options = {} if value is None or is_absent(value) else block_members(value)
        sent = {**sent, "stream_options": {**options, INCLUDE_USAGE_FIELD: True}}
    return RewrittenRequest(sent, wire_request)


def _usage_option(arguments: Arguments) -> object:
    """The caller's `include_usage` option; None if it is not set."""
    given = (value.get("stream_options") for value in (arguments, extra_body_members(arguments)))
    options = (block_members(value) for value in given if value is not None and not is_absent(value))
    return next((value for option in options if (value := option.get(INCLUDE_USAGE_FIELD)) is not None), None)


def is_added_usage(value: Arguments, sent: Arguments, item: Mapping[str, Json]) -> bool:
    if item.get("choices") != [] or item.get("usage") is None:
        return False
    return _usage_option(sent) is True and _usage_option(value) is None


CHAT_METHOD = ClientMethod(
    openai_chat, rewrite_chat_arguments, encode_bare_event, closing=b"data: [DONE]\n\n", is_added_item=is_added_usage
)

_rewrite_responses = partial(
    add_openai_cache_fields, adapter=openai_responses, prompt_name="input", part_type="input_text"
)
RESPONSES_METHOD = ClientMethod(openai_responses, _rewrite_responses, encode_named_event, left_out=_HELPER_ARGUMENTS)
