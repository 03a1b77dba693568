"""What is mended in OpenAI's requests: volatile lines of what they begin with, tools, and where to look them up."""

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import digest, plain_json
from holdfast.engine.marking.openai import MARK
from holdfast.gateway.clues import OWN_IDS
from holdfast.gateway.edits import Body, Edits, objects_in

SYSTEM_ROLES = ("system", "developer")
RESPONSES_ROLES = ("user",)
_KEPT_BY_THE_PROVIDER = ("previous_response_id", "conversation", "background", "prompt")


def mend_chat(body: Body, edits: Edits) -> str:
    """The role in which volatile text is told at the end."""
    body["messages"], role = _without_volatile(body.get("messages"), edits)
    sort_tools(body, edits)
    return role


def mend_responses(body: Body, edits: Edits) -> str:
    """As above. Where the provider keeps what is said, nothing is moved: it would be kept where it was never said."""
    sort_tools(body, edits)
    if body.get("store") is not False or any(body.get(name) is not None for name in _KEPT_BY_THE_PROVIDER):
        return "developer"
    given = body.get("input")
    said, role = _without_volatile([{"role": "user", "content": given}] if isinstance(given, str) else given, edits)
    instructions = body.get("instructions")
    if isinstance(instructions, str):
        rest, taken = edits.text_without_volatile(instructions)
        if taken:
            edits.move(taken, "instructions")
            body["instructions"] = rest
    if edits.moved:
        body["input"] = said
    return role if role == "system" else "developer"


def session_of(body: Body, prompt: str) -> str:
    """The same for all requests of one conversation: the first thing that was asked, and what it is called with."""
    said = body.get(prompt)
    users = (one for one in objects_in(said) if one.get("role") == "user")
    return f"{OWN_IDS}{digest(plain_json([next(users, said), body.get('tools')]))[:32]}"


def told_at_end(messages: Json, last: Body, *, breakpoint_in: str | None) -> Json:
    """Messages with one more behind them; what stands in front of it ends with a breakpoint, where one is of use."""
    if not isinstance(messages, list):
        return messages
    *before, newest = messages
    parts = newest.get("content") if isinstance(newest, dict) else None
    final = parts[-1] if isinstance(parts, list) and parts else None
    if breakpoint_in is None or not isinstance(newest, dict) or not isinstance(parts, list):
        return [*messages, last]
    if not isinstance(final, dict) or final.get("type") != breakpoint_in or final.get(MARK) is not None:
        return [*messages, last]
    marked: Body = {**newest, "content": [*parts[:-1], {**final, MARK: {"mode": "explicit"}}]}
    return [*before, marked, last]


def _without_volatile(messages: Json | None, edits: Edits) -> tuple[Json, str]:
    """What the messages begin with, up to the first that is not the system's, without what changes with each call."""
    if not isinstance(messages, list):
        return messages, "developer"
    kept: list[Json] = []
    role = "system"
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in SYSTEM_ROLES or place + 1 == len(messages):
            kept += messages[place:]
            break
        rest, taken = edits.without_volatile(message.get("content"))
        if taken:
            role = str(message["role"])
            edits.move(taken, role)
        if rest or not taken:
            kept.append({**message, "content": rest} if taken else message)
    return kept, role


def sort_tools(body: Body, edits: Edits) -> None:
    ordered = edits.sorted_tools(body.get("tools"), _name_of)
    if ordered is not None:
        body["tools"] = ordered


def _name_of(tool: Body) -> Json | None:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")
