"""Rewrites of OpenAI and OpenRouter requests: volatile system text, tool order, cache keys and breakpoints."""

from collections.abc import Sequence

from holdfast.engine.inject.openai import BREAKPOINT_FIELD
from holdfast.gateway.recording.conversation_match import OWN_SESSION_PREFIX
from holdfast.gateway.rewrite.operations import JsonObject, RequestEdits, list_objects
from holdfast.providers.adapter import Adapter
from holdfast.providers.anthropic.blocks import CACHE_CONTROL
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.prompt import Breakpoint, Ttl

SYSTEM_ROLES = ("system", "developer")
RESPONSES_ROLES = ("user",)
_STORED_BY_PROVIDER = ("previous_response_id", "conversation", "background", "prompt")
SESSION_MEMBER = "session_id"

BREAKPOINT_ROLES = ("system", "developer", "user", "tool")
"""Roles whose messages can carry a breakpoint."""


def rewrite_chat(body: JsonObject, edits: RequestEdits) -> str:
    """Returns the role for the volatile text at the end of the conversation."""
    body["messages"], role = _without_volatile(body.get("messages"), edits)
    sort_request_tools(body, edits)
    return role


def rewrite_responses(body: JsonObject, edits: RequestEdits) -> str:
    """Like rewrite_chat. Moves nothing if the provider stores the conversation: it would store the moved text."""
    sort_request_tools(body, edits)
    if body.get("store") is not False or any(body.get(name) is not None for name in _STORED_BY_PROVIDER):
        return "developer"
    content = body.get("input")
    messages: Json | None = [{"role": "user", "content": content}] if isinstance(content, str) else content
    rest_of_input, role = _without_volatile(messages, edits)
    instructions = body.get("instructions")
    if isinstance(instructions, str):
        rest, volatile = edits.extract_from_text(instructions)
        if volatile:
            edits.record_move(volatile, "instructions")
            body["instructions"] = rest
    if edits.moved_text:
        body["input"] = rest_of_input
    return role if role == "system" else "developer"


def derive_session_id(body: JsonObject, prompt: str) -> str:
    """An id that is equal for all requests of one conversation: a digest of its first user message and its tools."""
    messages = body.get(prompt)
    user_messages = (message for message in list_objects(messages) if message.get("role") == "user")
    return f"{OWN_SESSION_PREFIX}{sha256_hex(encode_json([next(user_messages, messages), body.get('tools')]))[:32]}"


def derive_shared_session_id(body: JsonObject, prompt: str) -> str:
    """An id that is equal for all conversations with the same system text, which they can then read from one cache."""
    system: list[Json] = [body["instructions"]] if body.get("instructions") else []
    for message in list_objects(body.get(prompt)):
        if message.get("role") not in ("system", "developer"):
            break
        system.append(message.get("content"))
    if not system:
        return derive_session_id(body, prompt)
    return f"{OWN_SESSION_PREFIX}{sha256_hex(encode_json([system, body.get('tools')]))[:32]}"


def append_message(messages: Json, last: JsonObject, *, breakpoint_in: str | None) -> Json:
    """Appends `last`. The message before it ends with a breakpoint if its last part has the type `breakpoint_in`."""
    if not isinstance(messages, list):
        return messages
    *before, newest = messages
    parts = newest.get("content") if isinstance(newest, dict) else None
    final = parts[-1] if isinstance(parts, list) and parts else None
    # OpenAI matches only at breakpoints (GPT-5.6 and later), and its implicit one would be on the volatile text.
    if breakpoint_in is None or not isinstance(newest, dict) or not isinstance(parts, list):
        return [*messages, last]
    if not isinstance(final, dict) or final.get("type") != breakpoint_in or final.get(BREAKPOINT_FIELD) is not None:
        return [*messages, last]
    with_breakpoint: JsonObject = {
        **newest,
        "content": [*parts[:-1], {**final, BREAKPOINT_FIELD: {"mode": "explicit"}}],
    }
    return [*before, with_breakpoint, last]


def _without_volatile(messages: Json | None, edits: RequestEdits) -> tuple[Json, str]:
    """Removes volatile text from the leading system messages; returns the role of the last one changed.

    The last message is never changed, even if it is a system message.
    """
    if not isinstance(messages, list):
        return messages, "developer"
    result: list[Json] = []
    role = "system"
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in SYSTEM_ROLES or index + 1 == len(messages):
            result += messages[index:]
            break
        rest, volatile = edits.extract_from_content(message.get("content"))
        if volatile:
            role = str(message["role"])
            edits.record_move(volatile, role)
        if rest or not volatile:
            result.append({**message, "content": rest} if volatile else message)
    return result, role


def sort_request_tools(body: JsonObject, edits: RequestEdits) -> None:
    ordered = edits.sort_tools_by_name(body.get("tools"), _name_of)
    if ordered is not None:
        body["tools"] = ordered


def _name_of(tool: JsonObject) -> Json | None:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def add_breakpoints(body: JsonObject, wanted: Sequence[Breakpoint], adapter: Adapter) -> tuple[JsonObject, int]:
    """Sets those of the wanted breakpoints that fall on the end of a message; returns the body and their number.

    To learn which block index a message end has, it decodes the body with a trial breakpoint there.
    """
    messages = list_objects(body.get("messages"))
    ttls = {breakpoint_.block_index: breakpoint_.ttl for breakpoint_ in wanted}
    existing = {breakpoint_.block_index for breakpoint_ in _breakpoints(body, adapter)}
    placed, count = body, 0
    for index in _candidate_indexes(messages):
        trial = _with_breakpoint(placed, index, "5m")
        new = {breakpoint_.block_index for breakpoint_ in _breakpoints(trial, adapter)} - existing
        for block in new & ttls.keys():
            placed, count = _with_breakpoint(placed, index, ttls[block]), count + 1
            existing.add(block)
    return placed, count


def derive_openrouter_session(body: JsonObject) -> str:
    """An id that is equal for all requests of one conversation, regardless of breakpoints in it."""
    messages = list_objects(body.get("messages"))
    first = next((message for message in messages if message.get("role") == "user"), {})
    # Without breakpoints: they move from request to request and must not change the id.
    parts = [
        {name: value for name, value in part.items() if name != CACHE_CONTROL}
        for part in list_objects(first.get("content"))
    ]
    return derive_session_id(
        {"messages": [{"role": "user", "content": [*parts]}], "tools": body.get("tools")}, "messages"
    )


def _candidate_indexes(messages: list[JsonObject]) -> list[int]:
    """The last messages of the system prompt, of the previous request and of this one."""
    newest = max((index for index, message in enumerate(messages) if message.get("role") == "assistant"), default=0)
    return [
        index
        for index in sorted({0, newest - 1, len(messages) - 1})
        if index >= 0 and _can_carry_breakpoint(messages[index])
    ]


def _can_carry_breakpoint(message: JsonObject) -> bool:
    parts = list_objects(message.get("content"))
    return (
        message.get("role") in BREAKPOINT_ROLES
        and bool(parts)
        and parts[-1].get("type") == "text"
        and CACHE_CONTROL not in parts[-1]
    )


def _with_breakpoint(body: JsonObject, index: int, ttl: Ttl) -> JsonObject:
    messages = list_objects(body["messages"])
    parts = list_objects(messages[index]["content"])
    # 5m is the default TTL.
    cache_control: Json = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    content: Json = [*parts[:-1], {**parts[-1], CACHE_CONTROL: cache_control}]
    return {**body, "messages": [*messages[:index], {**messages[index], "content": content}, *messages[index + 1 :]]}


def _breakpoints(body: JsonObject, adapter: Adapter) -> tuple[Breakpoint, ...]:
    return adapter.decode_request(encode_json(body)).plan.breakpoints
