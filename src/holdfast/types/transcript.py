"""Validates conversations against a provider's transcript rules, and finds where one may be cut.

Every rule concerns a message and its predecessor, except that the ids of calls are unique in the whole transcript. So
an append-only conversation is validated by checking only what is appended.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Literal

import msgspec

from holdfast.types.blocks import (
    Block,
    Message,
    Role,
    Text,
    block_kind,
    get_call_id,
    get_result_call_id,
    is_blank_block,
)
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


def _results_in(message: Message) -> tuple[str, ...]:
    if message.role != "user":
        return ()
    return tuple(result for block in message.content if (result := get_result_call_id(block)) is not None)


def is_allowed_in_role(block: Block, role: Role) -> bool:
    kind = block_kind(block)
    match role:
        case "user":
            return kind not in ("tool_use", "thinking", "redacted_thinking")
        case "assistant":
            return kind != "tool_result"
        case "system":
            return isinstance(block, Text)


def format_call_id(call_id: str) -> str:
    return repr(call_id[:_ID_SHOWN_CHARS_MAX])
