"""How the Responses API spells a reply, whole or as a stream of events."""

from collections.abc import Iterator
from itertools import count

import msgspec

from holdfast.canonical.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.reply import Reply, StopReason
from holdfast.providers.members import quoted
from holdfast.providers.openai_responses.diagnosing import FIELD, write_diagnosis
from holdfast.providers.openai_responses.items import is_item
from holdfast.providers.openai_responses.parts import spell_output
from holdfast.providers.openai_responses.reasoning import sealed_id, spell_reasoning, summaries_of
from holdfast.providers.openai_responses.usage import wire_usage
from holdfast.providers.streaming import delta_parts, written_event

_ENDS: dict[StopReason, tuple[str, str | None]] = {
    "max_tokens": ("incomplete", "max_output_tokens"),
    "refusal": ("incomplete", "content_filter"),
    "error": ("incomplete", None),
    "cancelled": ("cancelled", None),
}
"""Status and reason of replies that did not end well; all others are completed."""

Happening = tuple[str, bytes]
"""The name of an event, and its members behind type and number."""


class _Message(msgspec.Struct, frozen=True):
    parts: tuple[Text | Opaque, ...]


_Item = _Message | ToolUse | Thinking | Opaque


def write_reply(reply: Reply) -> bytes:
    items = _items_of(reply.content)
    output = b",".join(_spell(item, _id(reply, index, item)) for index, item in enumerate(items))
    status, reason = _ENDS.get(reply.stop_reason, ("completed", None))
    told = reply.diagnosis
    diagnosis = b"" if told is None else b',"%b":%b' % (FIELD.encode(), write_diagnosis(told))
    usage = plain_json(wire_usage(reply.usage))
    return _response(reply, status, output=output, reason=reason, usage=usage + diagnosis)


def write_stream(reply: Reply) -> Iterator[bytes]:
    """One event a chunk; tokens are counted only at the end."""
    number = count()
    for name, members in _happenings(reply):
        body = b'{"type":"%b","sequence_number":%d,%b}' % (name.encode(), next(number), members)
        yield written_event(body, name)


def _happenings(reply: Reply) -> Iterator[Happening]:
    begun = b'"response":' + _response(reply, "in_progress")
    yield "response.created", begun
    yield "response.in_progress", begun
    for index, item in enumerate(_items_of(reply.content)):
        id = _id(reply, index, item)
        at = b'"output_index":%d' % index
        yield "response.output_item.added", at + b',"item":' + _spell_start(item, id)
        yield from _growth(item, at + b',"item_id":' + quoted(id))
        yield "response.output_item.done", at + b',"item":' + _spell(item, id)
    status, _ = _ENDS.get(reply.stop_reason, ("completed", None))
    name = "response.completed" if status == "completed" else "response.incomplete"
    yield name, b'"response":' + write_reply(reply)


def _items_of(content: tuple[Block, ...]) -> list[_Item]:
    """Texts that follow one another share a message. What only others say, such as redacted thinking, is left out."""
    items: list[_Item] = []
    for block in content:
        match block:
            case ToolUse() | Thinking():
                items.append(block)
            case Opaque(kind=kind) if is_item("assistant", kind):
                items.append(block)
            case Text() | Opaque():
                before = items[-1] if items else None
                if isinstance(before, _Message):
                    items[-1] = _Message((*before.parts, block))
                else:
                    items.append(_Message((block,)))
            case _:
                pass
    return items


def _id(reply: Reply, index: int, item: _Item) -> str:
    match item:
        case _Message():
            return f"msg_{reply.id}_{index}"
        case ToolUse():
            return f"fc_{reply.id}_{index}"
        case Thinking():
            return sealed_id(item) or f"rs_{reply.id}_{index}"
        case Opaque():
            return ""


def _spell(item: _Item, id: str) -> bytes:
    match item:
        case _Message(parts=parts):
            return _spell_message(id, b",".join(map(spell_output, parts)), "completed")
        case ToolUse():
            return _spell_call(item, id, item.arguments_json, "completed")
        case Thinking():
            return spell_reasoning(item, id=id)
        case Opaque(raw=raw):
            return raw


def _spell_start(item: _Item, id: str) -> bytes:
    match item:
        case _Message():
            return _spell_message(id, b"", "in_progress")
        case ToolUse():
            return _spell_call(item, id, "", "in_progress")
        case Thinking():
            return spell_reasoning(Thinking(""), id=id)
        case Opaque(raw=raw):
            return raw


def _spell_message(id: str, content: bytes, status: str) -> bytes:
    return b'{"type":"message","id":%b,"status":"%b","role":"assistant","content":[%b]}' % (
        quoted(id),
        status.encode(),
        content,
    )


def _spell_call(call: ToolUse, id: str, arguments: str, status: str) -> bytes:
    return b'{"type":"function_call","id":%b,"call_id":%b,"name":%b,"arguments":%b,"status":"%b"}' % (
        quoted(id),
        quoted(call.id),
        quoted(call.name),
        quoted(arguments),
        status.encode(),
    )


def _growth(item: _Item, at: bytes) -> Iterator[Happening]:
    """What happens between an item's first event and its last."""
    match item:
        case _Message(parts=parts):
            for index, part in enumerate(parts):
                yield from _part_growth(part, at + b',"content_index":%d' % index)
        case ToolUse(arguments_json=arguments, name=name):
            for piece in delta_parts(arguments):
                yield "response.function_call_arguments.delta", at + b',"delta":' + quoted(piece)
            done = at + b',"name":%b,"arguments":%b' % (quoted(name), quoted(arguments))
            yield "response.function_call_arguments.done", done
        case Thinking():
            for index, text in enumerate(summaries_of(item)):
                yield from _summary_growth(text, at + b',"summary_index":%d' % index)
        case Opaque():
            pass


def _part_growth(part: Text | Opaque, at: bytes) -> Iterator[Happening]:
    whole = spell_output(part)
    if isinstance(part, Opaque):
        yield "response.content_part.added", at + b',"part":' + whole
    else:
        yield "response.content_part.added", at + b',"part":' + spell_output(Text(""))
        for piece in delta_parts(part.text):
            yield "response.output_text.delta", at + b',"delta":' + quoted(piece) + b',"logprobs":[]'
        yield "response.output_text.done", at + b',"text":' + quoted(part.text) + b',"logprobs":[]'
    yield "response.content_part.done", at + b',"part":' + whole


def _summary_growth(text: str, at: bytes) -> Iterator[Happening]:
    part = b',"part":{"type":"summary_text","text":%b}'
    yield "response.reasoning_summary_part.added", at + part % quoted("")
    for piece in delta_parts(text):
        yield "response.reasoning_summary_text.delta", at + b',"delta":' + quoted(piece)
    yield "response.reasoning_summary_text.done", at + b',"text":' + quoted(text)
    yield "response.reasoning_summary_part.done", at + part % quoted(text)


def _response(
    reply: Reply, status: str, *, output: bytes = b"", reason: str | None = None, usage: bytes = b"null"
) -> bytes:
    """Made at no time: a reply that is written twice must be the same."""
    return (
        b'{"id":%b,"object":"response","created_at":0,"status":"%b","error":null,"incomplete_details":%b,'
        b'"instructions":null,"metadata":{},"model":%b,"output":[%b],"parallel_tool_calls":true,"temperature":null,'
        b'"tool_choice":"auto","tools":[],"top_p":null,"usage":%b}'
    ) % (
        quoted(reply.id),
        status.encode(),
        plain_json(None if reason is None else {"reason": reason}),
        quoted(reply.model),
        output,
        usage,
    )
