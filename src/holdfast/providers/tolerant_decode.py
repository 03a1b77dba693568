"""Decodes requests and responses of other clients that the strict decoders refuse, losing as little as possible.

The strict decoders accept what a provider accepts as far as we know it, and the simulator answers 400 where they fail.
A client or a provider may be newer than we are, so whatever only observes traffic decodes with this module: a part
that cannot be decoded is carried as its raw JSON, named in `unreadable`, and everything else is decoded as usual.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from holdfast.errors import ProviderError
from holdfast.providers.adapter import PATH_HEADER, Adapter, WireRequest
from holdfast.providers.anthropic.response import AnthropicUsage, anthropic_usage_buckets, merge_anthropic_usage
from holdfast.providers.gemini.stream import GeminiUsage, gemini_usage_buckets
from holdfast.providers.json_splice import UNREADABLE, decode_or_none
from holdfast.providers.openai_common import (
    ChatUsage,
    ResponsesUsage,
    chat_usage_buckets,
    responses_usage_buckets,
)
from holdfast.providers.sse import SseParser
from holdfast.providers.wire_request import order_opaque_members
from holdfast.types.blocks import Block, Json, Opaque, Text
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage

UNREADABLE_KIND = "unreadable"
"""The kind of an opaque block that holds raw JSON in place of a part that could not be decoded."""

UNKNOWN_MODEL = "unknown"
UNREADABLE_PARTS_MAX = 16
"""Each unreadable part takes one more pass over the body; a request with more of them is recorded as raw elements."""

FIELD_CHARS_MAX = 200

# The lists that make up a prompt, in the order in which every provider hashes them.
_TOOLS = ("tools",)
_SYSTEM = ("system", "instructions", "systemInstruction", "system_instruction")
_HISTORY = ("messages", "input", "contents")
_PROMPT_NAMES = frozenset((*_TOOLS, *_SYSTEM, *_HISTORY))

# msgspec's error messages end in the path of the value, such as "- at `$.temperature`".
_ERROR_PATH = re.compile(r"- at `\$\.(?P<member>[A-Za-z_]\w*)")
_MISSING = re.compile(r"missing required field `(?P<member>\w+)`$")
_MISSING_VALUES: Mapping[str, Json] = {
    "model": UNKNOWN_MODEL,
    "max_tokens": 0,
    "messages": [],
    "contents": [],
    "input": [],
}
_MODEL_IN_PATH = re.compile(r"/models/([^/:]+)")

_Object = dict[str, Json]


class TolerantRequest(msgspec.Struct, frozen=True):
    """`unreadable` names the parts that are carried as raw JSON, each with the reason; empty if all were decoded."""

    wire: WireRequest
    unreadable: tuple[str, ...] = ()


def decode_request_tolerantly(adapter: Adapter, body: bytes, headers: Mapping[str, str]) -> TolerantRequest:
    """Never raises: what cannot be decoded at all becomes one raw block per element, or a single one."""
    try:
        wire = adapter.decode_request(body, headers)
        return TolerantRequest(order_opaque_members(wire) if adapter.name == "openai" else wire)
    except ProviderError as error:
        first_error = error
    members = decode_or_none(msgspec.json.decode, body)
    if not isinstance(members, dict):
        return _wrap_raw_body(body, headers, str(first_error))
    try:
        return _repair(adapter, members, headers) or _wrap_raw_elements(members, headers, str(first_error))
    except RecursionError:
        # JSON can nest deeper than Python functions can recurse over it.
        return _wrap_raw_body(body, headers, str(first_error))


def add_missing_fields(body: bytes, fields: Mapping[str, str | bool]) -> bytes:
    """The body with those fields that it does not have, at its start; unchanged if it is no JSON object."""
    members = decode_or_none(msgspec.json.decode, body)
    if not isinstance(members, dict) or not (missing := {name: fields[name] for name in fields if name not in members}):
        return body
    start = body.index(b"{") + 1
    return body[:start] + encode_json(missing)[1:-1] + (b"," if members else b"") + body[start:]


def wrap_raw_request(body: bytes, headers: Mapping[str, str], reason: str) -> TolerantRequest:
    """The request as raw elements, for one that decodes but cannot be encoded again."""
    members = decode_or_none(msgspec.json.decode, body)
    try:
        if isinstance(members, dict):
            return _wrap_raw_elements(members, headers, reason)
    except RecursionError:
        pass
    return _wrap_raw_body(body, headers, reason)


def _repair(adapter: Adapter, members: _Object, headers: Mapping[str, str]) -> TolerantRequest | None:
    """Decodes with a placeholder for each part that fails, then puts the raw parts back. None if that fails too."""
    placeholders: dict[str, bytes] = {}
    unreadable: list[str] = []
    for _ in range(UNREADABLE_PARTS_MAX + 1):
        try:
            # Encoded again on each pass: this is the rare path, and only the failing part is known.
            wire = adapter.decode_request(encode_json(members), headers)
        except (ProviderError, *UNREADABLE) as error:
            if not isinstance(error, ProviderError) or not _replace_part(members, error, placeholders):
                return None
            unreadable.append(str(error)[:FIELD_CHARS_MAX])
        else:
            return TolerantRequest(_restore_parts(wire, placeholders), tuple(unreadable))
    return None


def _replace_part(members: _Object, error: ProviderError, placeholders: dict[str, bytes]) -> bool:
    """Replaces or removes the part that the error names; false if it names none."""
    steps = error.field.split(".")
    if steps[0] in members and len(steps) > 1:
        return _replace_element(members, steps, placeholders)
    member = _MISSING.search(str(error)) or _ERROR_PATH.search(str(error))
    name = member["member"] if member else ""
    if name in members:
        # A tool list or a prompt of an unknown shape is carried as one raw message, so that its digest still counts.
        raw = encode_json(members.pop(name))
        if name in _PROMPT_NAMES:
            placeholders[_marker(placeholders)] = raw
        return True
    if name in _MISSING_VALUES:
        members[name] = _MISSING_VALUES[name]
        return True
    return False


def _replace_element(members: _Object, steps: list[str], placeholders: dict[str, bytes]) -> bool:
    parent: Json = members
    for step in steps[:-1]:
        parent = _child(parent, step)
    index = int(steps[-1]) if steps[-1].isdigit() else -1
    if not isinstance(parent, list) or not 0 <= index < len(parent):
        return False
    element = parent[index]
    text = element.get("text") if isinstance(element, dict) else None
    if isinstance(element, dict) and isinstance(text, str) and text in placeholders:
        # The placeholder itself was refused: its breakpoint is the part that cannot be decoded.
        return element.pop("cache_control", None) is not None
    marker = _marker(placeholders)
    placeholder = _placeholder(steps, marker)
    if isinstance(element, dict) and "text" in placeholder and "cache_control" in element:
        placeholder["cache_control"] = element["cache_control"]
    placeholders[marker] = encode_json(_without_cache_control(element))
    parent[index] = placeholder
    return True


def _child(value: Json, step: str) -> Json:
    if isinstance(value, dict):
        return value.get(step)
    return value[int(step)] if isinstance(value, list) and step.isdigit() and int(step) < len(value) else None


def _marker(placeholders: Mapping[str, bytes]) -> str:
    return f"holdfast-unreadable-{len(placeholders)}"


def _placeholder(steps: list[str], marker: str) -> _Object:
    """A part that every decoder accepts at this place of a request."""
    match steps:
        case ["tools", _]:
            return {
                "type": "function",
                "name": marker,
                "description": "",
                "function": {"name": marker, "description": "", "parameters": {}},
                "functionDeclarations": [{"name": marker}],
            }
        case ["contents", _]:
            return {"role": "user", "parts": [{"text": marker}]}
        case ["contents", *_] | ["systemInstruction", *_]:
            return {"text": marker}
        case [_, _] if steps[0] in _HISTORY:
            return {"role": "user", "content": marker}
        case _:
            return {"type": "text", "text": marker}


def _without_cache_control(value: Json) -> Json:
    """Clients move their breakpoints from call to call, which changes nothing that is cached."""
    if isinstance(value, list):
        return [_without_cache_control(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_cache_control(item) for name, item in value.items() if name != "cache_control"}
    return value


def _restore_parts(wire: WireRequest, placeholders: Mapping[str, bytes]) -> WireRequest:
    """The decoded request with the raw parts in place of their placeholders, or at the end if they had no place."""
    used: set[str] = set()

    def restore_block(block: Block) -> Block:
        if isinstance(block, Text) and block.text in placeholders:
            used.add(block.text)
            return Opaque(UNREADABLE_KIND, placeholders[block.text])
        return block

    def restore_text(text: Text) -> Text:
        restored = restore_block(text)
        return Text(restored.raw.decode()) if isinstance(restored, Opaque) else text

    def restore_tool(tool: ToolSpec) -> ToolSpec:
        if tool.name not in placeholders:
            return tool
        used.add(tool.name)
        return ToolSpec(UNREADABLE_KIND, "", "{}", wire_json=placeholders[tool.name].decode())

    segments = [
        msgspec.structs.replace(
            segment,
            tools=tuple(map(restore_tool, segment.tools)),
            system=tuple(map(restore_text, segment.system)),
            entries=tuple(
                msgspec.structs.replace(entry, content=tuple(map(restore_block, entry.content)))
                for entry in segment.entries
            ),
        )
        for segment in wire.prompt.segments
    ]
    rest = [raw for marker, raw in placeholders.items() if marker not in used]
    return msgspec.structs.replace(wire, prompt=Prompt((*segments, *_raw_history(rest))))


def _raw_history(parts: list[bytes]) -> tuple[Segment, ...]:
    if not parts:
        return ()
    entry = HistoryEntry("user", tuple(Opaque(UNREADABLE_KIND, part) for part in parts))
    return (Segment("history", Stability.GROWING, "messages", entries=(entry,)),)


def _wrap_raw_elements(members: _Object, headers: Mapping[str, str], reason: str) -> TolerantRequest:
    elements: list[bytes] = []
    for name in (*_TOOLS, *_SYSTEM, *_HISTORY):
        value = members.get(name)
        elements += map(
            encode_json, map(_without_cache_control, value if isinstance(value, list) else [value] if value else [])
        )
    model = members.get("model")
    stream = members.get("stream") is True
    return _make_raw(elements, model if isinstance(model, str) else "", headers, reason, stream=stream)


def _wrap_raw_body(body: bytes, headers: Mapping[str, str], reason: str) -> TolerantRequest:
    # As a JSON string, so that the block is valid JSON whatever the body was.
    return _make_raw([encode_json(body.decode("utf-8", "replace"))] if body else [], "", headers, reason)


def _make_raw(
    elements: list[bytes], model: str, headers: Mapping[str, str], reason: str, *, stream: bool = False
) -> TolerantRequest:
    in_path = _MODEL_IN_PATH.search(headers.get(PATH_HEADER, ""))
    name = model or (in_path[1] if in_path else UNKNOWN_MODEL)
    wire = WireRequest(Prompt(_raw_history(elements)), Plan(), Parameters(name, 0, stream))
    return TolerantRequest(wire, (reason[:FIELD_CHARS_MAX],))


class TolerantResponse(msgspec.Struct, frozen=True):
    """`reply` is partial if the response was truncated; `failure` is an error that the provider sent.

    `unreadable` names what could not be decoded, with the reason; the usage may be known all the same.
    """

    reply: Reply | None = None
    is_complete: bool = False
    failure: ProviderError | None = None
    unreadable: str = ""


def decode_stream_tolerantly(adapter: Adapter, body: bytes, *, is_whole: bool) -> TolerantResponse:
    """`is_whole`: the stream was received to its end. Never raises."""
    reader = adapter.make_stream_decoder()
    try:
        for delta in reader.feed(body):
            if isinstance(delta, ReplyFinished):
                return TolerantResponse(delta.reply, is_complete=True)
    except ProviderError as error:
        # An error event of the provider names no field; an event that cannot be decoded does.
        if error.field:
            return decode_usage_only(body, str(error), is_complete=is_whole)
        return TolerantResponse(reader.partial(), failure=error)
    if is_whole:
        return decode_usage_only(body, "the stream ended without its last event", reader.partial(), is_complete=False)
    return TolerantResponse(reader.partial())


def decode_usage_only(body: bytes, reason: str, partial: Reply | None = None, *, is_complete: bool) -> TolerantResponse:
    """The usage of a response whose content cannot be decoded; the content is recorded as empty."""
    usage = find_usage(body)
    reason = reason[:FIELD_CHARS_MAX]
    if usage is None or usage == Usage():
        return TolerantResponse(partial, unreadable=reason)
    reply = partial or Reply((), "error", usage)
    return TolerantResponse(reply, is_complete=is_complete, unreadable=reason)


def find_usage(body: bytes) -> Usage | None:
    """The usage in a response, whatever else is in it: one JSON document or server-sent events. None if there is none.

    Later counters replace earlier ones, as in Anthropic's streams, where each event repeats what it knows.
    """
    counters: _Object = {}
    for document in _iter_documents(body):
        for found in _iter_counters(document):
            counters.update(found)
    return _read_counters(counters) if counters else None


class BatchResult(msgspec.Struct, frozen=True):
    model: str
    usage: Usage


def iterate_batch_results(body: bytes) -> Iterator[BatchResult]:
    """The answered requests of a batch: one JSON object a line, as in Anthropic's results and OpenAI's output files."""
    for line in body.splitlines():
        document = decode_or_none(msgspec.json.decode, line) if line.startswith(b"{") else None
        if not isinstance(document, dict) or "custom_id" not in document:
            continue
        message = _child(_child(document, "result"), "message") or _child(_child(document, "response"), "body")
        counters = {name: value for found in _iter_counters(message) for name, value in found.items()}
        usage = _read_counters(counters) if counters else None
        if usage is not None:
            model = _child(message, "model")
            yield BatchResult(model if isinstance(model, str) else UNKNOWN_MODEL, usage)


def _iter_documents(body: bytes) -> Iterator[_Object]:
    whole = decode_or_none(msgspec.json.decode, body)
    if isinstance(whole, dict):
        yield whole
    elif isinstance(whole, list):
        # Gemini streams a JSON array if the client does not ask for server-sent events.
        yield from (item for item in whole if isinstance(item, dict))
    else:
        parser = SseParser(event_bytes_max=len(body) + 1)
        parser.feed(body + b"\n\n")
        for event in parser.events():
            data = decode_or_none(msgspec.json.decode, event.data)
            if isinstance(data, dict):
                yield data


def _iter_counters(document: Json) -> Iterator[_Object]:
    """Usage objects: at the top, in Anthropic's `message`, in OpenAI's `response`, or in Groq's `x_groq`."""
    for holder in (document, *(_child(document, name) for name in ("message", "response", "x_groq"))):
        if isinstance(holder, dict):
            for name in ("usage", "usageMetadata"):
                usage = holder.get(name)
                if isinstance(usage, dict):
                    yield {key: value for key, value in usage.items() if value is not None}


def _read_counters(counters: _Object) -> Usage | None:
    if "promptTokenCount" in counters or "totalTokenCount" in counters:
        return gemini_usage_buckets(_convert(counters, GeminiUsage))
    if "cache_read_input_tokens" in counters or "cache_creation_input_tokens" in counters:
        return anthropic_usage_buckets(merge_anthropic_usage(AnthropicUsage(), _convert(counters, AnthropicUsage)))
    if "inputTokens" in counters or "outputTokens" in counters:
        # Bedrock's Converse; its counters are disjoint like Anthropic's.
        names = {
            "input_tokens": "inputTokens",
            "output_tokens": "outputTokens",
            "cache_read_input_tokens": "cacheReadInputTokens",
            "cache_creation_input_tokens": "cacheWriteInputTokens",
        }
        renamed = {ours: counters[theirs] for ours, theirs in names.items() if theirs in counters}
        return anthropic_usage_buckets(_convert(renamed, AnthropicUsage))
    if "prompt_tokens" in counters:
        return chat_usage_buckets(_convert(counters, ChatUsage))
    if "input_tokens" in counters or "output_tokens" in counters:
        return responses_usage_buckets(_convert(counters, ResponsesUsage))
    return None


U = TypeVar("U", AnthropicUsage, GeminiUsage, ChatUsage, ResponsesUsage)


def _convert(counters: _Object, type_: type[U]) -> U:
    """The counters that have the expected type; the others count as missing."""
    readable: _Object = {}
    for name, value in counters.items():
        try:
            msgspec.convert({name: value}, type_)
        except msgspec.ValidationError:
            continue
        readable[name] = value
    return msgspec.convert(readable, type_)
