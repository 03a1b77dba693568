"""Encodes a response in Anthropic's format, complete or as a stream of events."""

from collections.abc import Iterator

from holdfast.canonical.blocks import Block, Text, Thinking, ToolUse
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.reply import Reply
from holdfast.providers.anthropic.blocks import spell_block
from holdfast.providers.anthropic.diagnosing import FIELD, write_diagnosis
from holdfast.providers.anthropic.usage import wire_usage
from holdfast.providers.members import quoted
from holdfast.providers.streaming import delta_parts, written_event


def write_reply(reply: Reply) -> bytes:
    content = b",".join(_encode_block(block) for block in reply.content)
    return _message(reply, content, _stop_reason(reply), output=reply.usage.output)


def write_stream(reply: Reply) -> Iterator[bytes]:
    """One event per chunk. The input counters are in `message_start`, the output counter only in `message_delta`."""
    yield _event("message_start", b'"message":' + _message(reply, b"", None, output=0))
    for index, block in enumerate(reply.content):
        at = b'"index":%d' % index
        start, deltas = _split_block(block)
        yield _event("content_block_start", at + b',"content_block":' + start)
        for kind, member, part in deltas:
            delta = plain_json({"type": kind, member: part})
            yield _event("content_block_delta", at + b',"delta":' + delta)
        yield _event("content_block_stop", at)
    template = b'"delta":{"stop_reason":%b,"stop_sequence":%b},"usage":{"output_tokens":%d}'
    values = (plain_json(_stop_reason(reply)), plain_json(reply.stop_sequence), reply.usage.output)
    yield _event("message_delta", template % values)
    yield _event("message_stop", b"")


def _message(reply: Reply, content: bytes, stop_reason: str | None, *, output: int) -> bytes:
    stop_sequence = reply.stop_sequence if stop_reason is not None else None
    return (
        b'{"id":%b,"type":"message","role":"assistant","model":%b,"content":[%b],'
        b'"stop_reason":%b,"stop_sequence":%b,"usage":%b%b}'
    ) % (
        quoted(reply.id),
        quoted(reply.model),
        content,
        plain_json(stop_reason),
        plain_json(stop_sequence),
        plain_json(wire_usage(reply.usage, output=output)),
        b"" if reply.diagnosis is None else b',"%b":%b' % (FIELD.encode(), write_diagnosis(reply.diagnosis)),
    )


def _stop_reason(reply: Reply) -> str | None:
    """`cancelled` and `error` are ours only; the API has no value for them."""
    return None if reply.stop_reason in ("cancelled", "error") else reply.stop_reason


def _encode_block(block: Block) -> bytes:
    """In a response thinking always has a signature member, even if it is empty."""
    if isinstance(block, Thinking) and block.signature is None:
        return spell_block(Thinking(block.text, ""))
    return spell_block(block)


def _split_block(block: Block) -> tuple[bytes, list[tuple[str, str, str]]]:
    """The block of the start event, and (delta type, member, part) for each delta."""
    match block:
        case Text(text=text):
            return spell_block(Text("")), [("text_delta", "text", part) for part in delta_parts(text)]
        case Thinking(text=text, signature=signature):
            deltas = [("thinking_delta", "thinking", part) for part in delta_parts(text)]
            signature_deltas = [("signature_delta", "signature", signature)] if signature else []
            return spell_block(Thinking("", "")), deltas + signature_deltas
        case ToolUse():
            start = spell_block(ToolUse(block.id, block.name, "{}"))
            return start, [("input_json_delta", "partial_json", part) for part in delta_parts(block.arguments_json)]
        case _:
            return spell_block(block), []


# Anthropic's SDK needs the `event:` line: without it its stream helper fails.
def _event(name: str, members: bytes) -> bytes:
    body = b'{"type":"%b"%b}' % (name.encode(), b"," + members if members else b"")
    return written_event(body, name)
