"""How a broken conversation is read so that a provider takes it; the conversation itself is never changed.

A result that answers no call is dropped and not turned into text: as text of the user, what a tool printed
would speak with the user's voice.
"""

import operator
from collections.abc import Sequence

import msgspec

from holdfast.canonical.blocks import Block, Message, Role, Text, ToolResult, ToolUse
from holdfast.canonical.transcript import (
    STRICT,
    Rule,
    TranscriptRules,
    call_id,
    fits_role,
    is_blank,
    kind_of,
    open_calls,
    result_id,
    shown_id,
    validate,
)

INTERRUPTED = "This call was interrupted before it gave a result."
BEGINNING = "(The conversation begins here.)"
CONTINUE = "Continue."


class Action(msgspec.Struct, frozen=True):
    """What was done about the message that stood at `index`, and because of which rule."""

    index: int
    rule: Rule
    text: str


class Repaired(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    actions: tuple[Action, ...]


class _Placed(msgspec.Struct, frozen=True):
    """A message and the index at which it, or the first part of it, stood."""

    index: int
    message: Message


def repair(messages: Sequence[Message], rules: TranscriptRules = STRICT, *, complete: bool = True) -> Repaired:
    """A legal view of the messages and what was done; messages and blocks that are fine are the same objects.

    Calls that are open at the end are answered too, unless the transcript need not be complete.
    """
    if not validate(messages, rules=rules, complete=complete):
        return Repaired(tuple(messages), ())
    mender = _Mender(rules)
    placed = mender.merge(mender.clean(messages))
    placed = mender.merge(mender.settle(placed, answer_end=complete or rules.ends_on_user))
    view = [one.message for one in placed]
    if rules.first_role_user and view and view[0].role == "assistant":
        mender.note(0, "first_role", "put a user message in front")
        view.insert(0, Message("user", (Text(BEGINNING),)))
    if rules.ends_on_user and view and view[-1].role == "assistant":
        mender.note(len(messages) - 1, "last_role", "put a user message behind")
        view.append(Message("user", (Text(CONTINUE),)))
    return Repaired(tuple(view), tuple(mender.actions))


class _Mender:
    """The steps of one repair, and the record of what they did."""

    def __init__(self, rules: TranscriptRules) -> None:
        self._rules = rules
        self.actions: list[Action] = []

    def note(self, index: int, rule: Rule, text: str) -> None:
        self.actions.append(Action(index, rule, text))

    def clean(self, messages: Sequence[Message]) -> list[_Placed]:
        """Without everything that is illegal wherever it stands."""
        seen_ids: set[str] = set()
        clean: list[_Placed] = []
        for index, message in enumerate(messages):
            role = message.role
            if role == "system" and self._rules.system_messages == "refused":
                role = "user"
                self.note(index, "system_message", "made it a user message")
            content: list[Block] = []
            for block in message.content:
                content += self._clean_block(index, role, block, seen_ids)
            if content:
                clean.append(_Placed(index, _changed(message, role, content)))
            else:
                self.note(index, "empty_message", "dropped the message, which had nothing left in it")
        return clean

    def _clean_block(self, index: int, role: Role, block: Block, seen_ids: set[str]) -> tuple[Block, ...]:
        if not fits_role(block, role):
            self.note(index, "block_of_another_role", f"dropped a {kind_of(block)} block")
            return ()
        if not self._rules.takes_blank_text and is_blank(block):
            if isinstance(block, ToolResult):
                self.note(index, "blank_text", "dropped an empty text from a tool result")
                return (_without_empty_text(block),)
            self.note(index, "blank_text", "dropped a text block")
            return ()
        call = call_id(block)
        if call is not None:
            if call in seen_ids:
                self.note(index, "call_id_repeated", f"dropped a call under the used id {shown_id(call)}")
                return ()
            seen_ids.add(call)
        return (block,)

    def merge(self, placed: list[_Placed]) -> list[_Placed]:
        """Neighbours of one role as one message, where roles have to alternate."""
        if not self._rules.roles_alternate:
            return placed
        merged: list[_Placed] = []
        for one in placed:
            if merged and merged[-1].message.role == one.message.role:
                before = merged.pop()
                both = Message(one.message.role, before.message.content + one.message.content)
                merged.append(_Placed(before.index, both))
                self.note(one.index, "same_role_twice", "joined it to the message before")
            else:
                merged.append(one)
        return merged

    def settle(self, placed: list[_Placed], *, answer_end: bool) -> list[_Placed]:
        """Every assistant message followed by the results it asks for, and by no others."""
        settled: list[_Placed] = []
        speaker: _Placed | None = None
        between: list[_Placed] = []
        for one in placed:
            if one.message.role == "assistant":
                settled += [*self._answers(speaker, between), one]
                speaker, between = one, []
            else:
                between.append(one)
        if between or answer_end:
            settled += self._answers(speaker, between)
        return settled

    def _answers(self, speaker: _Placed | None, between: list[_Placed]) -> list[_Placed]:
        """What stands behind an assistant message, up to the next one, made to answer its calls."""
        calls = open_calls(speaker.message) if speaker else ()
        unanswered = dict.fromkeys(calls)
        kept: list[_Placed] = []
        added: list[Block] = []
        for position, one in enumerate(between):
            content: list[Block] = []
            for block in one.message.content:
                result = result_id(block)
                if result is None:
                    content.append(block)
                elif result not in unanswered:
                    rule: Rule = "result_repeated" if result in calls else "result_without_call"
                    self.note(one.index, rule, f"dropped a result for call {shown_id(result)}")
                else:
                    del unanswered[result]
                    (content if position == 0 else added).append(block)
            if content:
                kept.append(_Placed(one.index, _changed(one.message, one.message.role, content)))
        if added:
            self.note(between[0].index, "call_unanswered", "moved results here from messages behind it")
        if speaker:
            for call in unanswered:
                self.note(speaker.index, "call_unanswered", f"answered call {shown_id(call)} as interrupted")
                name = _name_called(speaker.message, call)
                added.append(ToolResult(call, (Text(INTERRUPTED),), is_error=True, name=name))
            kept = _with_results(kept, added, speaker.index + 1)
        return self._in_order(self.merge(self._without_stray_system(kept)))

    def _without_stray_system(self, kept: list[_Placed]) -> list[_Placed]:
        """System messages that may not stand where they do, as user messages."""
        if self._rules.system_messages != "after_user":
            return kept
        tail = len(kept)
        while tail and kept[tail - 1].message.role == "system":
            tail -= 1
        allowed_from = tail or len(kept)
        mended: list[_Placed] = []
        for position, one in enumerate(kept):
            if one.message.role == "system" and position < allowed_from:
                self.note(one.index, "system_message", "made it a user message")
                mended.append(_Placed(one.index, Message("user", one.message.content)))
            else:
                mended.append(one)
        return mended

    def _in_order(self, kept: list[_Placed]) -> list[_Placed]:
        if not self._rules.results_first:
            return kept
        ordered: list[_Placed] = []
        for one in kept:
            content = sorted(one.message.content, key=lambda block: kind_of(block) != "tool_result")
            message = _changed(one.message, one.message.role, content)
            if message is not one.message:
                self.note(one.index, "result_not_first", "put its results first")
            ordered.append(_Placed(one.index, message))
        return ordered


def _with_results(kept: list[_Placed], added: list[Block], index: int) -> list[_Placed]:
    """With more results behind those of the first message, or with a message of them in front."""
    if not added:
        return kept
    if not kept or kept[0].message.role != "user":
        return [_Placed(index, Message("user", tuple(added))), *kept]
    content = kept[0].message.content
    own = next((at for at, block in enumerate(content) if kind_of(block) != "tool_result"), len(content))
    longer = Message("user", (*content[:own], *added, *content[own:]))
    return [_Placed(kept[0].index, longer), *kept[1:]]


def _name_called(message: Message, call: str) -> str:
    """The name of the tool that a call of the message is for; empty for a call that we cannot read in full."""
    return next((block.name for block in message.content if isinstance(block, ToolUse) and block.id == call), "")


def _without_empty_text(result: ToolResult) -> ToolResult:
    content = tuple(part for part in result.content if not isinstance(part, Text) or part.text)
    return msgspec.structs.replace(result, content=content)


def _changed(message: Message, role: Role, content: Sequence[Block]) -> Message:
    """The same object where nothing changed."""
    unchanged = len(content) == len(message.content) and all(map(operator.is_, content, message.content))
    return message if unchanged and role == message.role else Message(role, tuple(content))
