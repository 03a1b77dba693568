"""Adds a cache key and a cache breakpoint to the arguments of OpenAI's client."""

from collections.abc import Mapping
from functools import partial

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import plain_json
from holdfast.engine.marking.dialect import Dialect, Request, Rewritten, as_bare_event, as_named_event
from holdfast.engine.marking.plain import Arguments, body_of, extra_body, is_absent, members_of, parts_of
from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openai_responses import openai_responses

KEY = "prompt_cache_key"
MARK = "prompt_cache_breakpoint"
OPTIONS = "prompt_cache_options"
USAGE = "include_usage"

_SYSTEM_ROLES = ("system", "developer")
_HELPER_ARGUMENTS = frozenset({"text_format", "starting_after", "response_id"})


def rewrite(arguments: Arguments, request: Request, *, adapter: Adapter, prompt_name: str, part_type: str) -> Rewritten:
    """Add what the caller has not set. Raises `UserError` if the prompt would decode differently with a breakpoint."""
    changed = dict(arguments)
    fields = dict(adapter.session_fields(request.model, request.session))
    if request.body.get(KEY) is None and KEY in fields:
        key: object = msgspec.json.decode(fields[KEY])
        # In extra_body, because older clients do not have this parameter.
        changed["extra_body"] = {**extra_body(arguments), KEY: key}
    if prompt_name not in extra_body(arguments) and _takes_breakpoint(request):
        changed[prompt_name] = _with_breakpoint(arguments.get(prompt_name), part_type)
    body = body_of(changed, left_out=_HELPER_ARGUMENTS)
    wire = adapter.read_request(plain_json(body))
    if wire.prompt != request.wire.prompt:
        raise UserError("adding a breakpoint would change the prompt")
    return Rewritten(changed, wire)


def _takes_breakpoint(request: Request) -> bool:
    """Whether a slot is free: the implicit breakpoint at the newest message takes one of the provider's 4."""
    options = request.body.get(OPTIONS)
    if isinstance(options, dict) and options.get("mode") == "explicit":
        return False
    rules = request.model.cache
    return rules.kind == "breakpoints" and len(request.wire.plan.marks) + 1 < rules.marks_max


def _with_breakpoint(value: object, part_type: str) -> object:
    """The messages with a breakpoint at the end of the leading system messages, if there are any."""
    if value is None or isinstance(value, str) or is_absent(value):
        return value
    messages = parts_of(value)
    end = 0
    while end < len(messages) and members_of(messages[end]).get("role") in _SYSTEM_ROLES:
        end += 1
    if not end:
        return value
    last = members_of(messages[end - 1])
    content = _marked_content(last.get("content"), part_type)
    if content is None:
        return value
    return [*messages[: end - 1], {**last, "content": content}, *messages[end:]]


def _marked_content(content: object, part_type: str) -> list[object] | None:
    """The content with a breakpoint at its end; None if it cannot carry one or already does."""
    parts: list[object] = [{"type": part_type, "text": content}] if isinstance(content, str) else parts_of(content)
    last = members_of(parts[-1]) if parts else {}
    text = last.get("text")
    if last.get("type") != part_type or last.get(MARK) is not None or not isinstance(text, str) or not text.strip():
        return None
    return [*parts[:-1], {**last, MARK: {"mode": "explicit"}}]


def rewrite_chat(arguments: Arguments, request: Request) -> Rewritten:
    """Like `rewrite`; also asks a stream to report usage at its end."""
    rewritten = rewrite(arguments, request, adapter=openai_chat, prompt_name="messages", part_type="text")
    if not request.wire.parameters.stream or _usage_option(arguments) is not None:
        return rewritten
    value = arguments.get("stream_options")
    options = {} if value is None or is_absent(value) else members_of(value)
    return Rewritten({**rewritten.arguments, "stream_options": {**options, USAGE: True}}, rewritten.wire)


def _usage_option(arguments: Arguments) -> object:
    """The caller's `include_usage` option; None if it is not set."""
    for value in (arguments, extra_body(arguments)):
        options = value.get("stream_options")
        if options is not None and not is_absent(options) and members_of(options).get(USAGE) is not None:
            return members_of(options)[USAGE]
    return None


def is_usage_for_us(value: Arguments, sent: Arguments, item: Mapping[str, Json]) -> bool:
    if item.get("choices") != [] or item.get("usage") is None:
        return False
    return _usage_option(sent) is True and _usage_option(value) is None


CHAT = Dialect(openai_chat, rewrite_chat, as_bare_event, closing=b"data: [DONE]\n\n", is_ours=is_usage_for_us)

RESPONSES = Dialect(
    openai_responses,
    partial(rewrite, adapter=openai_responses, prompt_name="input", part_type="input_text"),
    as_named_event,
    left_out=_HELPER_ARGUMENTS,
)
