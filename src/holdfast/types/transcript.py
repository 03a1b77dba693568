"""Validates conversations against a provider's transcript rules, and finds where one may be cut.

Every rule concerns a message and its predecessor, except that the ids of calls are unique in the whole transcript. So
an append-only conversation is validated by checking only what is appended.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Literal

import msgspec

from holdfast.types.blocks import Block, Message, Opaque, Role, Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry

SystemMessages = Literal["refused", "after_user", "anywhere"]
"""`after_user`: only after a user message, and only an assistant message may follow."""

TranscriptRule = Literal[
    "block_of_another_role",
    "blank_text",
    "call_id_repeated",
    "call_open",
    "call_unanswered",
    "empty_message",
    "first_role",
    "last_role",
    "result_not_first",
    "result_repeated",
    "result_without_call",
    "same_role_twice",
    "system_message",
]

_ID_SHOWN_CHARS_MAX = 64


class TranscriptRules(msgspec.Struct, frozen=True):
    """A provider's rules for a conversation; the defaults are the strictest, which every provider accepts."""

    roles_alternate: bool = True
    first_role_user: bool = True
    ends_on_user: bool = False  # Claude Opus 4.6 and later refuse prefill.
    results_first: bool = True  # Anthropic wants tool results before a message's other content.
    accepts_blank_text: bool = False
    # Anthropic, "Mid-conversation system messages": after a user message, last or followed by the assistant's.
    system_messages: SystemMessages = "refused"


STRICT_RULES = TranscriptRules()


class TranscriptViolation(msgspec.Struct, frozen=True):
    """A violated rule at the message with this index; the text quotes no content."""

    index: int
    rule: TranscriptRule
    text: str


def merge_into_messages(entries: Iterable[HistoryEntry]) -> tuple[Message, ...]:
    """Merge adjacent entries of one role into messages, as on the wire; entries without blocks are skipped."""
    runs: list[tuple[Role, list[Block]]] = []
    for entry in entries:
        if not entry.content:
            continue
        if not runs or runs[-1][0] != entry.role:
            runs.append((entry.role, []))
        runs[-1][1].extend(entry.content)
    return tuple(Message(role, tuple(content)) for role, content in runs)


def find_call_ids(message: Message) -> tuple[str, ...]:
    """The ids of an assistant message's tool calls; the next message has to have a result for each."""
    if message.role != "assistant":
        return ()
    return tuple(call for block in message.content if (call := get_call_id(block)) is not None)


def validate_transcript(
    messages: Sequence[Message], *, rules: TranscriptRules = STRICT_RULES, complete: bool = False
) -> tuple[TranscriptViolation, ...]:
    """All violations. Calls in the last message may lack results unless the transcript must be complete."""
    findings: list[TranscriptViolation] = []
    seen_ids: set[str] = set()
    last: Message | None = None
    for index, message in enumerate(messages):
        findings += validate_append(last, message, index=index, seen_ids=seen_ids, rules=rules)
        seen_ids.update(find_call_ids(message))
        last = message
    if last is None:
        return ()
    end = len(messages) - 1
    if complete:
        findings += [
            TranscriptViolation(end, "call_open", f"call {format_call_id(call)} has no result")
            for call in find_call_ids(last)
        ]
    if rules.ends_on_user and last.role == "assistant":
        findings.append(TranscriptViolation(end, "last_role", "the last message is the assistant's"))
    return tuple(findings)


def validate_append(
    last: Message | None,
    new: Message,
    *,
    index: int = 0,
    seen_ids: AbstractSet[str] = frozenset(),
    rules: TranscriptRules = STRICT_RULES,
) -> tuple[TranscriptViolation, ...]:
    """The violations that appending `new` at `index` after `last` causes; `last` is None in an empty transcript.

    `seen_ids` are the ids of all calls before `new`; the caller adds those of `new` after each step.
    """
    violations = (
        *_role_violations(last, new, rules),
        *_content_violations(new, rules),
        *_call_violations(last, new, seen_ids),
    )
    return tuple(TranscriptViolation(index, rule, text) for rule, text in violations)


def split_into_exchanges(messages: Sequence[Message]) -> tuple[tuple[int, int], ...]:
    """Where a transcript may be cut: [start, stop) of each group, together the whole transcript.

    An assistant message with calls and the message with their results (including user text in it) are one group; every
    other message is its own group. A system message belongs to the message before it. In an invalid transcript a call
    and its result still stay together, with everything between them.
    """
    caller_index: dict[str, int] = {}
    starts: list[int] = []
    for index, message in enumerate(messages):
        callers = [caller_index[result] for result in _results_in(message) if result in caller_index]
        if not starts or (message.role != "system" and not callers):
            starts.append(index)
        # A result pulls every group since its call into one.
        while callers and starts[-1] > min(callers):
            starts.pop()
        caller_index.update((call, index) for call in find_call_ids(message))
    return tuple(pairwise([*starts, len(messages)]))


_Violation = tuple[TranscriptRule, str]


def _role_violations(last: Message | None, new: Message, rules: TranscriptRules) -> Iterator[_Violation]:
    previous_role = last.role if last else None
    if previous_role is None and new.role == "assistant" and rules.first_role_user:
        yield "first_role", "the first message is the assistant's"
    if previous_role == new.role and rules.roles_alternate:
        yield "same_role_twice", f"a {new.role} message follows a {new.role} message"
    if new.role == "system" and rules.system_messages == "refused":
        yield "system_message", "system messages are not accepted among the messages"
    if rules.system_messages == "after_user":
        if new.role == "system" and previous_role in (None, "assistant"):
            yield "system_message", "a system message does not follow a user message"
        if new.role == "user" and previous_role == "system":
            yield "system_message", "a user message follows a system message"


def _content_violations(new: Message, rules: TranscriptRules) -> Iterator[_Violation]:
    if not new.content:
        yield "empty_message", "the message has no content"
    other_content_seen = False
    for position, block in enumerate(new.content):
        if not is_allowed_in_role(block, new.role):
            yield "block_of_another_role", f"block {position}: {block_kind(block)} in a {new.role} message"
        if not rules.accepts_blank_text and is_blank_block(block):
            yield "blank_text", f"block {position}: text without a visible character"
        if block_kind(block) != "tool_result":
            other_content_seen = True
        elif other_content_seen and rules.results_first and new.role == "user":
            yield "result_not_first", f"block {position}: a tool result comes after other content"


def _call_violations(last: Message | None, new: Message, seen_ids: AbstractSet[str]) -> Iterator[_Violation]:
    calls = find_call_ids(last) if last else ()
    answered_ids: set[str] = set()
    for result in _results_in(new):
        if result not in calls:
            yield "result_without_call", f"result {format_call_id(result)} answers no call of the message before"
        elif result in answered_ids:
            yield "result_repeated", f"call {format_call_id(result)} is answered more than once"
        answered_ids.add(result)
    for call in dict.fromkeys(calls):
        if call not in answered_ids:
            yield "call_unanswered", f"call {format_call_id(call)} of the message before is not answered"
    new_ids: set[str] = set()
    for call in find_call_ids(new):
        if call in seen_ids or call in new_ids:
            yield "call_id_repeated", f"call id {format_call_id(call)} was used before"
        new_ids.add(call)


class _NestedId(msgspec.Struct, frozen=True):
    id: str | None = None


class _Ids(msgspec.Struct, frozen=True):
    """The fields in which each provider writes the id of a call, and the id of the call that a result belongs to."""

    id: str | None = None
    tool_use_id: str | None = None
    call_id: str | None = None
    function_call: _NestedId | None = msgspec.field(name="functionCall", default=None)
    function_response: _NestedId | None = msgspec.field(name="functionResponse", default=None)


def get_call_id(block: Block) -> str | None:
    if isinstance(block, ToolUse):
        return block.id
    if not isinstance(block, Opaque):
        return None
    ids = _ids_in(block)
    match block.kind:
        case "tool_use":  # Anthropic
            return ids.id
        case "function_call":  # OpenAI Responses
            return ids.call_id
        case "functionCall":  # Gemini
            return ids.function_call.id if ids.function_call else None
        case _:
            return None


def get_result_call_id(block: Block) -> str | None:
    if isinstance(block, ToolResult):
        return block.tool_use_id
    if not isinstance(block, Opaque):
        return None
    ids = _ids_in(block)
    match block.kind:
        case "tool_result":
            return ids.tool_use_id
        case "function_call_output":
            return ids.call_id
        case "functionResponse":
            return ids.function_response.id if ids.function_response else None
        case _:
            return None


def _ids_in(block: Opaque) -> _Ids:
    """A call with an unknown field is carried as opaque bytes, but its result still has to be matched to it."""
    try:
        return msgspec.json.decode(block.raw, type=_Ids)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return _Ids()


def _results_in(message: Message) -> tuple[str, ...]:
    if message.role != "user":
        return ()
    return tuple(result for block in message.content if (result := get_result_call_id(block)) is not None)


def block_kind(block: Block) -> str:
    if isinstance(block, Opaque):
        return block.kind
    tag = type(block).__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def is_allowed_in_role(block: Block, role: Role) -> bool:
    kind = block_kind(block)
    match role:
        case "user":
            return kind not in ("tool_use", "thinking", "redacted_thinking")
        case "assistant":
            return kind != "tool_result"
        case "system":
            return isinstance(block, Text)


def is_blank_block(block: Block) -> bool:
    """Inside a tool result white space may be genuine output, so only an empty text is refused there."""
    if isinstance(block, ToolResult):
        return any(isinstance(part, Text) and not part.text for part in block.content)
    return isinstance(block, Text) and not block.text.strip()


def format_call_id(call_id: str) -> str:
    return repr(call_id[:_ID_SHOWN_CHARS_MAX])


class _Function(msgspec.Struct):
    name: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _WireCall(msgspec.Struct):
    """A provider's tool call: its arguments are `input`, a string `arguments`, or nested `args`."""

    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    arguments: str | None = None
    function_call: _Function | None = msgspec.field(name="functionCall", default=None)


def parse_tool_call(block: Block) -> ToolUse | None:
    """The tool call in a block, even if the block has fields that we do not know; None if it is no call."""
    if isinstance(block, ToolUse):
        return block
    id = get_call_id(block)
    if id is None or not isinstance(block, Opaque):
        return None
    try:
        call = msgspec.json.decode(block.raw, type=_WireCall)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        call = _WireCall()
    if call.function_call is not None:
        return ToolUse(id, call.function_call.name, bytes(call.function_call.args).decode("utf-8", "replace"))
    arguments = call.arguments if call.arguments is not None else bytes(call.input).decode("utf-8", "replace")
    return ToolUse(id, call.name, arguments)
