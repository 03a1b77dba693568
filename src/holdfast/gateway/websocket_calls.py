"""The model calls on a WebSocket, each recorded as if it had been made over HTTP.

On a WebSocket, OpenAI keeps the prompt and the output of a response, and the next message sends only what is new and
names that response in `previous_response_id`. The whole prompt is then the earlier one, its output and the new input;
the gateway, which saw all of them, puts it together. Items are joined as their bytes and not decoded.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.clock import Clock
from holdfast.engine.inject.openai_body import CACHE_KEY_FIELD
from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.exchange import BUFFERED_BYTES_MAX, Exchange, ExchangeEnd, GatewayCaller, WebSocketCall
from holdfast.gateway.http.headers import Headers
from holdfast.gateway.key_limits import PROMPT_BYTES_PER_TOKEN, RequestSize, read_members
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis
from holdfast.gateway.routes import Target
from holdfast.providers.json_splice import (
    UNREADABLE,
    decode_or_none,
    get_optional_string,
    has_too_many_values,
    join_object,
    nested_field,
    split_object,
)
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json
from holdfast.types.usage import clamp_token_count

CHAINED_BYTES_MAX = 64 * 1024 * 1024
"""Memory for the prompts of all connections; the least recently continued ones are dropped."""

ENDED_IDS_MAX = 64
CREATE_TYPE = "response.create"
_PREVIOUS = "previous_response_id"
_STREAM_ID = "stream_id"

# They belong to the message; the same request over HTTP does not have them.
_MESSAGE_MEMBERS = ("type", _STREAM_ID, "generate")
_decode_items = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode


class PromptPart:
    """Input and output items that follow those of `base`, as JSON without brackets. Shared by all that continue it.

    `is_whole`: nothing before it is unknown. `cache_key` is the one that `--improve` added to the request, as JSON;
    requests that continue it need the same one. `users` counts the parts and names that refer to it.
    """

    def __init__(self, items: bytes, base: "PromptPart | None" = None, *, is_whole: bool = True) -> None:
        self.items = items
        self.base = base
        self.is_whole: bool = is_whole and (base is None or base.is_whole)
        self.size_bytes: int = len(items) + 1 + (base.size_bytes if base else 0)
        self.cache_key: bytes = base.cache_key if base else b""
        self.users = 0

    def join(self) -> bytes:
        parts: list[bytes] = []
        part: PromptPart | None = self
        while part is not None:
            parts.append(part.items)
            part = part.base
        return b",".join(items for items in reversed(parts) if items)


class ResponsePrompts:
    """The prompts with their outputs, by account and response id."""

    def __init__(self, *, bytes_max: int = CHAINED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._by_id: OrderedDict[tuple[str, str], PromptPart] = OrderedDict()
        self.size_bytes = 0

    def find(self, account: str, response_id: str) -> PromptPart | None:
        part = self._by_id.get((account, response_id))
        if part is not None:
            self._by_id.move_to_end((account, response_id))
        return part

    def add(self, account: str, response_id: str, part: PromptPart) -> None:
        if (account, response_id) in self._by_id:
            self._release(self._by_id.pop((account, response_id)))
        self._by_id[account, response_id] = part
        self._use(part)
        while self.size_bytes > self._bytes_max:
            self._release(self._by_id.popitem(last=False)[1])

    def _use(self, part: PromptPart) -> None:
        node: PromptPart | None = part
        while node is not None:
            node.users += 1
            if node.users > 1:
                return
            self.size_bytes += len(node.items)
            node = node.base

    def _release(self, part: PromptPart) -> None:
        node: PromptPart | None = part
        while node is not None:
            node.users -= 1
            if node.users:
                return
            self.size_bytes -= len(node.items)
            node = node.base


class CreateMessage(msgspec.Struct, frozen=True):
    """A message that asks for a response.

    `body` is the same request as it would be sent over HTTP, with the whole prompt if that is known; `prompt` is its
    input, which the output of its response will follow. `analysis` has its plan, if it was planned.
    """

    raw: bytes
    body: bytes
    prompt: PromptPart
    call: WebSocketCall = WebSocketCall()
    stream_id: str = ""
    analysis: RequestAnalysis | None = None


def decode_create_message(raw: bytes, prompts: ResponsePrompts, account: str) -> CreateMessage | None:
    """None if the message has another type. One that cannot be decoded may ask for a response, so it counts as such."""
    if has_too_many_values(raw):
        return CreateMessage(raw, raw, PromptPart(b"", is_whole=False))
    try:
        members = split_object(raw)
        if get_optional_string(members, "type") not in ("", CREATE_TYPE):
            return None
        previous = get_optional_string(members, _PREVIOUS)
        stream_id = get_optional_string(members, _STREAM_ID)
    except UNREADABLE:
        return CreateMessage(raw, raw, PromptPart(b"", is_whole=False))
    base = prompts.find(account, previous) if previous else None
    prompt = PromptPart(_strip_brackets(members.get("input", b"[]")), base, is_whole=base is not None or not previous)
    body = {name: value for name, value in members.items() if name not in _MESSAGE_MEMBERS}
    if base is not None and prompt.size_bytes <= BUFFERED_BYTES_MAX:
        del body[_PREVIOUS]
        body["input"] = b"[%s]" % prompt.join()
    is_prompt_known = prompt.is_whole and (not previous or _PREVIOUS not in body)
    call = WebSocketCall(previous, is_prompt_known, is_warm_up=members.get("generate") == b"false")
    return CreateMessage(raw, join_object(body), prompt, call, stream_id)


def inherit_cache_key(message: CreateMessage) -> bytes | None:
    """The body with the cache key that was added to the request before; None if that had its own, or this one has."""
    if not message.prompt.cache_key or CACHE_KEY_FIELD in (members := split_object(message.body)):
        return None
    return join_object({**members, CACHE_KEY_FIELD: message.prompt.cache_key})


def splice_rewritten_body(message: CreateMessage, rewritten: bytes) -> CreateMessage | None:
    """The message with the changes of its rewritten HTTP body.

    The provider already has the items before those of the message, so None if the rewrite changes one of them.
    """
    members, base = split_object(rewritten), message.prompt.base
    own = members.pop("input", b"[]")
    if base is not None:
        items, earlier = _decode_items(own), _decode_items(b"[%s]" % base.join())
        # As values, because a rewrite has another encoding.
        if [*map(msgspec.json.decode, items[: len(earlier)])] != [*map(msgspec.json.decode, earlier)]:
            return None
        own = b"[%s]" % b",".join(map(bytes, items[len(earlier) :]))
    prompt = PromptPart(_strip_brackets(own), base)
    if CACHE_KEY_FIELD not in split_object(message.body):
        prompt.cache_key = members.get(CACHE_KEY_FIELD, b"")
    kept = (*_MESSAGE_MEMBERS, _PREVIOUS)
    raw = join_object(
        {name: members.get(name, value) for name, value in split_object(message.raw).items() if name in kept}
        | {**members, "input": own}
    )
    body = join_object({**members, "input": own if base is None else b"[%s]" % prompt.join()})
    return msgspec.structs.replace(message, raw=raw, body=body, prompt=prompt)


def _strip_brackets(raw_input: bytes) -> bytes:
    """The items of a list. A text is short for one user message; anything else is carried as one item."""
    raw_input = raw_input.strip()
    if raw_input.startswith(b"["):
        return raw_input[1:-1].strip()
    if raw_input.startswith(b'"'):
        return b'{"role":"user","content":%s}' % raw_input
    return b"" if raw_input == b"null" else raw_input


_TERMINAL_TYPES = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error")
_CONTINUABLE_TYPES = ("response.completed", "response.incomplete")
_CREATED, _ITEM_DONE = "response.created", "response.output_item.done"
_EVENT_STREAM = [(b"content-type", b"text/event-stream")]
_JSON = [(b"content-type", b"application/json")]
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


class _Response(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    output: tuple[msgspec.Raw, ...] = ()


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    stream_id: str | None = None


class _EventDetails(msgspec.Struct, frozen=True):
    """Decoded apart from the type, so that a member of another shape does not hide which event it is."""

    response: _Response | None = None
    item: msgspec.Raw = msgspec.Raw(b"")
    status: int | None = None
    status_code: int | None = None


class _ClientEvent(msgspec.Struct, frozen=True):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw(b"")


_decode_client_event = msgspec.json.Decoder(_ClientEvent).decode

# Most events are deltas, of which only the type matters.
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_details = msgspec.json.Decoder(_EventDetails).decode


class SocketOwner(msgspec.Struct, frozen=True):
    """Where the calls of one connection go, who makes them, and what is called when one begins and ends."""

    target: Target
    headers: Headers
    caller: GatewayCaller
    clock: Clock
    on_request: Callable[[Exchange], None]
    on_end: Callable[[Exchange], None]

    def begin_exchange(self, body: bytes, *, caller: GatewayCaller | None = None, id: str | None = None) -> Exchange:
        exchange = Exchange(self.target, self.headers, caller or self.caller, self.clock(), id=id)
        exchange.add_request_bytes(body)
        exchange.status, exchange.response_headers = 200, _EVENT_STREAM
        return exchange

    def end_exchange(self, exchange: Exchange, end: ExchangeEnd) -> None:
        exchange.end, exchange.ended_at = end, self.clock()
        self.on_end(exchange)


class SocketCalls(Protocol):
    """The calls of one connection."""

    open_count: int

    def decode_message(self, raw: bytes) -> CreateMessage | None:
        """The message as a call; None if it asks for none."""

    def measure_call(self, message: CreateMessage) -> RequestSize:
        """What the cost of the call is estimated from."""

    def begin_call(
        self,
        message: CreateMessage,
        caller: GatewayCaller,
        *,
        exchange_id: str | None = None,
        original_body: bytes | None = None,
        changes: tuple[RequestChange, ...] = (),
    ) -> None:
        """The message, as it is sent now, asks for a response; its cost is reserved under the exchange's id."""

    def take_event(self, raw: bytes) -> bool:
        """Takes a message of the provider; returns whether it reported usage of a call that was not requested."""

    def end_all(self, end: ExchangeEnd) -> None:
        """The connection ended."""


class _OpenCall:
    def __init__(self, exchange: Exchange, prompt: PromptPart) -> None:
        self.exchange = exchange
        self.prompt = prompt
        self.response_id = ""
        self.output: list[bytes] = []


class ResponseCalls(SocketCalls):
    """Calls of the Responses API. Those with the same `stream_id`, or without one, are answered in order."""

    def __init__(self, owner: SocketOwner, prompts: ResponsePrompts) -> None:
        self._owner = owner
        self._prompts = prompts
        self._lanes: dict[str, list[_OpenCall]] = {}
        self._ended_ids: deque[str] = deque(maxlen=ENDED_IDS_MAX)
        self.open_count = 0

    def decode_message(self, raw: bytes) -> CreateMessage | None:
        return decode_create_message(raw, self._prompts, self._owner.caller.account)

    def measure_call(self, message: CreateMessage) -> RequestSize:
        return RequestSize(len(message.body), message.body)

    def begin_call(
        self,
        message: CreateMessage,
        caller: GatewayCaller,
        *,
        exchange_id: str | None = None,
        original_body: bytes | None = None,
        changes: tuple[RequestChange, ...] = (),
    ) -> None:
        exchange = self._owner.begin_exchange(message.body, caller=caller, id=exchange_id)
        exchange.websocket_call, exchange.analysis = message.call, message.analysis
        exchange.original_body, exchange.changes = original_body, changes
        exchange.is_planned = bool(changes)
        self._open(message.stream_id, _OpenCall(exchange, message.prompt))

    def take_event(self, raw: bytes) -> bool:
        event = decode_or_none(_decode_event, raw) or _Event()
        has_details = event.type in (_CREATED, _ITEM_DONE, *_TERMINAL_TYPES)
        details = (decode_or_none(_decode_details, raw) if has_details else None) or _EventDetails()
        stream_id, response = event.stream_id or "", details.response or _Response()
        if event.type == _CREATED:
            self._begin_response(stream_id, response)
        call = next(iter(self._lanes.get(stream_id, ())), None)
        # The last event of a response may follow the error that ended it.
        if call is None or response.id in self._ended_ids:
            return False
        exchange, status = call.exchange, details.status or details.status_code
        if event.type == "error" and status is not None and not exchange.response_bytes:
            exchange.status, exchange.response_headers = status, _JSON
            exchange.add_response_bytes(raw)
        else:
            exchange.add_response_bytes(b"data: %s\n\n" % raw.translate(_LINE_ENDS))
        fits = exchange.response_bytes <= BUFFERED_BYTES_MAX
        if event.type == _ITEM_DONE and fits:
            call.output.append(bytes(details.item))
        if event.type in _TERMINAL_TYPES:
            self._end_call(stream_id, "whole")
            if event.type in _CONTINUABLE_TYPES and fits:
                self._remember(call, response)
        return False

    def end_all(self, end: ExchangeEnd) -> None:
        for stream_id in tuple(self._lanes):
            while self._lanes.get(stream_id):
                self._end_call(stream_id, end)

    def _begin_response(self, stream_id: str, response: _Response) -> None:
        lane = self._lanes.get(stream_id, [])
        if lane and lane[0].response_id:
            # The provider ended the response before with an event that we do not know.
            self._end_call(stream_id, "cut")
        if not self._lanes.get(stream_id):
            # The provider continues by itself, for example with input that `response.steer` added.
            body = encode_json({"model": response.model, "input": []})
            exchange = self._owner.begin_exchange(body)
            exchange.websocket_call = WebSocketCall(is_prompt_known=False)
            self._open(stream_id, _OpenCall(exchange, PromptPart(b"", is_whole=False)))
        self._lanes[stream_id][0].response_id = response.id

    def _open(self, stream_id: str, call: _OpenCall) -> None:
        self._lanes.setdefault(stream_id, []).append(call)
        self.open_count += 1
        self._owner.on_request(call.exchange)

    def _end_call(self, stream_id: str, end: ExchangeEnd) -> None:
        lane = self._lanes[stream_id]
        call = lane.pop(0)
        if not lane:
            del self._lanes[stream_id]
        self.open_count -= 1
        if call.response_id:
            self._ended_ids.append(call.response_id)
        self._owner.end_exchange(call.exchange, end)

    def _remember(self, call: _OpenCall, response: _Response) -> None:
        output = call.output or [bytes(item) for item in response.output]
        if response.id and call.prompt.size_bytes <= BUFFERED_BYTES_MAX:
            part = PromptPart(b",".join(output), call.prompt)
            self._prompts.add(self._owner.caller.account, response.id, part)


class UsageCalls(SocketCalls):
    """Calls of other APIs, such as Realtime: recorded by the usage that the provider reports, without content.

    A connection on which none was reported is recorded once, without usage. What is reserved for a call whose usage
    does not come, because the connection ends before, counts as spent after an hour.
    """

    open_count = 0

    def __init__(self, owner: SocketOwner, model: str) -> None:
        self._owner = owner
        self._model = model
        self._has_usage = False
        self._prompt_tokens = 0
        self._reserved_ids: deque[str] = deque()

    def decode_message(self, raw: bytes) -> CreateMessage | None:
        # Most messages are audio, which is not worth decoding; it has no escapes.
        if CREATE_TYPE.encode() not in raw and b"\\u" not in raw:
            return None
        event = decode_or_none(_decode_client_event, raw)
        return CreateMessage(raw, raw, PromptPart(b"")) if event is not None and event.type == CREATE_TYPE else None

    def measure_call(self, message: CreateMessage) -> RequestSize:
        """The prompt is what the provider counted last: audio has few tokens for its bytes."""
        event = decode_or_none(_decode_client_event, message.raw) or _ClientEvent()
        limit = read_members(bytes(event.response)).get("max_output_tokens")
        body = join_object({"model": encode_json(self._model), **({"max_output_tokens": limit} if limit else {})})
        size_bytes = len(message.raw) + self._prompt_tokens * PROMPT_BYTES_PER_TOKEN
        return RequestSize(size_bytes, body)

    def begin_call(
        self,
        message: CreateMessage,
        caller: GatewayCaller,
        *,
        exchange_id: str | None = None,
        original_body: bytes | None = None,
        changes: tuple[RequestChange, ...] = (),
    ) -> None:
        """Its usage comes with the end of its response."""
        if exchange_id is not None:
            self._reserved_ids.append(exchange_id)

    def take_event(self, raw: bytes) -> bool:
        if b'"usage"' not in raw and b'"usageMetadata"' not in raw:
            return False
        event = decode_or_none(msgspec.json.decode, raw)
        usage = nested_field(event, "response", "usage") if nested_field(event, "type") == "response.done" else None
        usage = usage or nested_field(event, "usageMetadata")
        if not isinstance(usage, dict):
            return False
        if "input_token_details" in usage:
            # Realtime has another name for what the Responses API calls `input_tokens_details`.
            usage = {**usage, "input_tokens_details": usage["input_token_details"]}
        prompt_tokens = usage.get("input_tokens", 0)
        self._prompt_tokens = clamp_token_count(prompt_tokens) if isinstance(prompt_tokens, int) else 0
        self._record({"usage": usage}, id=self._reserved_ids.popleft() if self._reserved_ids else None)
        return True

    def end_all(self, end: ExchangeEnd) -> None:
        if not self._has_usage:
            self._record({})

    def _record(self, response: dict[str, Json], *, id: str | None = None) -> None:
        self._has_usage = True
        exchange = self._owner.begin_exchange(encode_json({"model": self._model}), id=id)
        exchange.response_headers = _JSON
        self._owner.on_request(exchange)
        exchange.add_response_bytes(encode_json(response))
        self._owner.end_exchange(exchange, "whole")
