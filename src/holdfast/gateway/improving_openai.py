"""Rewrites OpenAI requests: volatile lines in the system text, tool order, and the prompt cache key."""

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import digest, plain_json
from holdfast.engine.marking.openai import MARK
from holdfast.gateway.clues import OWN_IDS
from holdfast.gateway.edits import Body, Edits, objects_in

SYSTEM_ROLES = ("system", "developer")
RESPONSES_ROLES = ("user",)
_STORED_BY_THE_PROVIDER = ("previous_response_id", "conversation", "background", "prompt")


def mend_chat(body: Body, edits: Edits) -> str:
    """Returns the role for the volatile text at the end of the conversation."""
    body["messages"], role = _without_volatile(body.get("messages"), edits)
    sort_tools(body, edits)
    return role


def mend_responses(body: Body, edits: Edits) -> str:
    """Like mend_chat. Moves nothing if the provider stores the conversation: it would store the moved text."""
    sort_tools(body, edits)
    if body.get("store") is not False or any(body.get(name) is not None for name in _STORED_BY_THE_PROVIDER):
        return "developer"
    content = body.get("input")
    messages: Json | None = [{"role": "user", "content": content}] if isinstance(content, str) else content
    rest_of_input, role = _without_volatile(messages, edits)
    instructions = body.get("instructions")
    if isinstance(instructions, str):
        rest, volatile = edits.text_without_volatile(instructions)
        if volatile:
            edits.move(volatile, "instructions")
            body["instructions"] = rest
    if edits.moved:
        body["input"] = rest_of_input
    return role if role == "system" else "developer"


def session_of(body: Body, prompt: str) -> str:
    """An id that is equal for all requests of one conversation: a digest of its first user message and its tools."""
    messages = body.get(prompt)
    user_messages = (message for message in objects_in(messages) if message.get("role") == "user")
    return f"{OWN_IDS}{digest(plain_json([next(user_messages, messages), body.get('tools')]))[:32]}"


def told_at_end(messages: Json, last: Body, *, breakpoint_in: str | None) -> Json:
    """Appends `last`. The message before it ends with a breakpoint if its last part has the type `breakpoint_in`."""
    if not isinstance(messages, list):
        return messages
    *before, newest = messages
    parts = newest.get("content") if isinstance(newest, dict) else None
    final = parts[-1] if isinstance(parts, list) and parts else None
    # OpenAI matches only at breakpoints (GPT-5.6 and later), and its implicit one would be on the volatile text.
    if breakpoint_in is None or not isinstance(newest, dict) or not isinstance(parts, list):
        return [*messages, last]
    if not isinstance(final, dict) or final.get("type") != breakpoint_in or final.get(MARK) is not None:
        return [*messages, last]
    marked: Body = {**newest, "content": [*parts[:-1], {**final, MARK: {"mode": "explicit"}}]}
    return [*before, marked, last]


def _without_volatile(messages: Json | None, edits: Edits) -> tuple[Json, str]:
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
        rest, volatile = edits.without_volatile(message.get("content"))
        if volatile:
            role = str(message["role"])
            edits.move(volatile, role)
        if rest or not volatile:
            result.append({**message, "content": rest} if volatile else message)
    return result, role


def sort_tools(body: Body, edits: Edits) -> None:
    ordered = edits.sorted_tools(body.get("tools"), _name_of)
    if ordered is not None:
        body["tools"] = ordered


def _name_of(tool: Body) -> Json | None:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")
