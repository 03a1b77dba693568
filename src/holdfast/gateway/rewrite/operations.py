"""Content-preserving rewrite operations: volatile lines, the order of tools, content parts, cache keys, breakpoints."""

from collections.abc import Callable, Sequence

from holdfast.engine.inject.cache_fields import BREAKPOINT_FIELD
from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.recording.conversation_match import OWN_SESSION_PREFIX
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.providers.adapter import Adapter
from holdfast.providers.anthropic.blocks import CACHE_CONTROL
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.prompt import Breakpoint, Ttl

JsonObject = dict[str, Json]
ExtractedLines = list[tuple[str, str]]
"""Extracted texts, each as (rule name, text)."""

DeriveSession = Callable[[JsonObject, str], str]
"""The id of the session that a request belongs to, from its body and the name of the member with its prompt."""

TOOLS_UNSORTED = "tools out of order"
BREAKPOINTS_MISSING = "breakpoints missing"
TTLS_UNORDERED = "TTLs out of order"
CACHE_KEY_MISSING = "no cache key"
EXPLICIT_BREAKPOINT_MISSING = "explicit breakpoint missing"
RETENTION_SHORT = "short cache retention"
VOLATILE_PREFIX = "volatile "


class RequestEdits:
    """Collects the changes made to one request; anti-patterns in `unfixed` are left as they are.

    `derive_session` returns the cache key to set.
    """

    def __init__(
        self,
        volatile: VolatileExtractor,
        unfixed: frozenset[str] = frozenset(),
        derive_session: DeriveSession = lambda body, prompt: "",
    ) -> None:
        self.derive_session = derive_session
        self._volatile = volatile.without_rules(frozenset(name.removeprefix(VOLATILE_PREFIX) for name in unfixed))
        self._unfixed = unfixed
        self.changes: list[RequestChange] = []
        self.moved_text = ""

    def should_fix(self, finding: str) -> bool:
        return finding not in self._unfixed

    def record_change(self, finding: str, place: str) -> None:
        self.changes.append(RequestChange(finding, place, is_applied=True))

    def record_move(self, extracted: ExtractedLines, place: str) -> None:
        """Records lines extracted from `place`, to be appended at the end of the conversation."""
        self.moved_text = "\n".join(
            (*((self.moved_text,) if self.moved_text else ()), *(text for _, text in extracted))
        )
        for name in dict(extracted):
            if all(change.anti_pattern != f"{VOLATILE_PREFIX}{name}" for change in self.changes):
                self.record_change(f"{VOLATILE_PREFIX}{name}", place)

    def extract_from_text(self, text: str) -> tuple[str, ExtractedLines]:
        rest, extracted = self._volatile.extract(text)
        return rest, list(extracted)

    def extract_from_content(self, content: Json | None) -> tuple[Json, ExtractedLines]:
        """Content (text or parts) without its volatile lines, and those lines; parts that become empty are dropped."""
        if isinstance(content, str):
            return self.extract_from_text(content)
        result: list[Json] = []
        extracted: ExtractedLines = []
        for part in content if isinstance(content, list) else ():
            text = part.get("text") if isinstance(part, dict) else None
            if not isinstance(part, dict) or not isinstance(text, str):
                result.append(part)
                continue
            rest, volatile = self.extract_from_text(text)
            extracted += volatile
            if rest.strip() or not volatile:
                result.append({**part, "text": rest} if volatile else part)
        return result, extracted

    def sort_tools_by_name(self, tools: Json | None, name_of: Callable[[JsonObject], Json | None]) -> Json | None:
        """Tools sorted by name; None if nothing changes, names are missing or repeated, or a tool has a breakpoint."""
        if not isinstance(tools, list) or not self.should_fix(TOOLS_UNSORTED):
            return None
        named = [(name_of(tool), tool) for tool in tools if isinstance(tool, dict)]
        names = [name for name, _ in named if isinstance(name, str)]
        # A breakpoint on a tool covers the tools before it, so sorting would change what it caches.
        if len(set(names)) != len(tools) or any(tool.get(CACHE_CONTROL) for _, tool in named):
            return None
        ordered: list[Json] = [tool for _, tool in sorted(named, key=lambda pair: str(pair[0]))]
        if ordered == tools:
            return None
        self.record_change(TOOLS_UNSORTED, "tools")
        return ordered


def convert_text_to_parts(messages: Json, kind: str, roles: tuple[str, ...]) -> Json:
    """Turns string content into a single part in every message of these roles.

    A breakpoint needs a part to sit on. Converting all messages at once keeps their bytes the same whichever of them
    carries a breakpoint.
    """
    if not isinstance(messages, list):
        return messages
    return [
        {**message, "content": [{"type": kind, "text": message["content"]}]}
        if isinstance(message, dict)
        and message.get("role") in roles
        and isinstance(message.get("content"), str)
        and message["content"]
        else message
        for message in messages
    ]


def list_objects(value: Json | None) -> list[JsonObject]:
    return [member for member in value if isinstance(member, dict)] if isinstance(value, list) else []


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
