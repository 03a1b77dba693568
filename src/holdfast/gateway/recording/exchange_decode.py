"""Decodes the bodies of recorded exchanges: never raises, and names what cannot be decoded."""

import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_tokens
from holdfast.economics.cost import cost_usd, storage_usd, uncached_cost_usd
from holdfast.engine.recorder import CallRecorder, ObservedCall, ObservedRequest
from holdfast.errors import ProviderError
from holdfast.gateway.exchange import BUFFERED_BYTES_MAX, Exchange
from holdfast.gateway.http.content_encoding import decompress_body
from holdfast.gateway.http.headers import Headers
from holdfast.gateway.key_limits import find_cache_seconds, find_model_name, read_members
from holdfast.gateway.recording.request_start import RequestStart, RequestStarts, SplitRequest, split_request
from holdfast.gateway.rewrite.request_analysis import BYTES_PER_TOKEN
from holdfast.providers.adapter import PATH_HEADER, Adapter
from holdfast.providers.bedrock import EVENT_STREAM_TYPE, decode_event_stream, read_usage_headers
from holdfast.providers.json_splice import JSON_VALUES_MAX, decode_or_none, has_too_many_values, nested_field
from holdfast.providers.tolerant_decode import (
    UNKNOWN_MODEL,
    BatchResult,
    TolerantRequest,
    TolerantResponse,
    add_missing_fields,
    decode_request_tolerantly,
    decode_stream_tolerantly,
    decode_usage_only,
    find_usage,
    iterate_batch_results,
    wrap_raw_request,
)
from holdfast.providers.wire_request import drop_deferred_tools
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage, clamp_token_count


class DecodedExchange(msgspec.Struct, frozen=True):
    """The request's JSON and its decoded form; with `start`, that of what follows it, in a body of its own.

    `split` is None if the request cannot be cut into messages.
    """

    body: bytes
    request: TolerantRequest
    decoded_body: bytes
    start: RequestStart | None = None
    split: SplitRequest | None = None


def decode_exchange_request(
    adapter: Adapter, exchange: Exchange, starts: RequestStarts | None = None
) -> DecodedExchange:
    """Never raises. A body too large to buffer counts as empty. Messages in `starts` are not decoded again."""
    body, headers, target = exchange.request_body, path_header(exchange), exchange.target
    if body is None:
        reason = f"the request has {exchange.request_bytes} bytes; at most {BUFFERED_BYTES_MAX} are decoded"
        return DecodedExchange(b"", wrap_raw_request(b"", headers, reason), b"")
    try:
        decoded = decompress_body(body, _header_text(exchange.headers, b"content-encoding"))
    except ProviderError as error:
        return DecodedExchange(body, wrap_raw_request(body, headers, str(error)), body)
    if has_too_many_values(decoded):
        reason = f"the request has more than {JSON_VALUES_MAX} values"
        return DecodedExchange(b"", wrap_raw_request(b"", headers, reason), b"")
    if target.path_fields:
        decoded = add_missing_fields(decoded, target.path_fields)
    split = split_request(adapter.name, f"{target.provider} {target.path}", decoded) if starts is not None else None
    start = starts.find(split) if starts is not None and split is not None else None
    if split is not None and start is not None:
        rest = split.encode_rest(start.messages)
        request = _decode_body(adapter, exchange, rest)
        # A part that cannot be decoded is named by its place in the whole request.
        if (
            not request.unreadable
            and not request.wire.prompt.tools
            and not any(segment.system for segment in request.wire.prompt.segments)
        ):
            return DecodedExchange(decoded, request, rest, start, split)
    return DecodedExchange(decoded, _decode_body(adapter, exchange, decoded), decoded, None, split)


def _decode_body(adapter: Adapter, exchange: Exchange, body: bytes) -> TolerantRequest:
    target = exchange.target
    request = decode_request_tolerantly(adapter, body, path_header(exchange))
    model = request.wire.parameters.model
    # A model in the path is the one that answers, whatever the body says.
    named = str(target.path_fields.get("model") or model)
    name = target.model_names.get(named, named)
    if name != model:
        parameters = msgspec.structs.replace(request.wire.parameters, model=name)
        request = msgspec.structs.replace(request, wire=msgspec.structs.replace(request.wire, parameters=parameters))
    return msgspec.structs.replace(request, wire=drop_deferred_tools(adapter, request.wire))


def decode_exchange_response(exchange: Exchange, adapter: Adapter) -> TolerantResponse:
    """The response as far as it can be decoded; never raises."""
    body = exchange.response_body
    if not exchange.status:
        return TolerantResponse()
    if body is None:
        reason = (
            f"more than {BUFFERED_BYTES_MAX} bytes"
            if exchange.response_bytes > BUFFERED_BYTES_MAX
            else "no place on disk"
        )
        return TolerantResponse(unreadable=f"the response has {reason}")
    try:
        decoded = decompress_body(body, _header_text(exchange.response_headers, b"content-encoding"))
    except ProviderError as error:
        return TolerantResponse(unreadable=str(error))
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in exchange.response_headers}
    content_type, is_whole = headers.get("content-type", ""), exchange.end == "whole"
    if content_type.startswith(EVENT_STREAM_TYPE):
        decoded, content_type = decode_event_stream((decoded,)), "text/event-stream"
    try:
        if not exchange.is_answered:
            return TolerantResponse(failure=adapter.decode_error(exchange.status, headers, decoded))
        if exchange.target.adapter_name is None:
            # Without usage it cost nothing that could be known, such as a file or a token count.
            usage = find_usage(decoded) or read_usage_headers(headers) or Usage()
            return TolerantResponse(Reply((), "end_turn", usage), is_complete=is_whole)
        if content_type.startswith("text/event-stream"):
            return decode_stream_tolerantly(adapter, decoded, is_whole=is_whole)
        if not is_whole:
            return TolerantResponse()
        return TolerantResponse(adapter.decode_reply(decoded), is_complete=True)
    except ProviderError as error:
        counted = read_usage_headers(headers)
        partial = Reply((), "error", counted) if counted else None
        return decode_usage_only(decoded, str(error), partial, is_complete=is_whole)


def estimate_usage(exchange: Exchange, reply: Reply | None, prepared: ObservedRequest) -> Usage:
    """What the provider reported so far, and the rest by size, as if nothing was read from the cache.

    The output is counted in the decoded content; in a response that cannot be decoded one token per 4 bytes. A prompt
    with breakpoints is written to the cache: a budget must not be charged too little.
    """
    output = exchange.response_bytes // BYTES_PER_TOKEN
    if reply is not None:
        output = count_tokens(msgspec.json.encode(reply.content)) if reply.content else 0
    reported = reply.usage if reply is not None else Usage()
    if reported.tokens_sent:
        return msgspec.structs.replace(reported, output=max(reported.output, output))
    prompt = prepared.tokens or exchange.request_bytes // BYTES_PER_TOKEN
    is_written = bool(prepared.plan.breakpoints)
    return Usage(cache_write_5m=prompt, output=output) if is_written else Usage(input=prompt, output=output)


OTHER_OUTPUT_TOKENS = 4_096
OTHER_PROMPT_TOKENS_MAX = 32_768
"""What a call that is no model call is charged as if its response has no usage, such as speech. A file that it brings
has many bytes for what it costs."""


def estimate_other_usage(exchange: Exchange) -> Usage:
    """What a budget is charged for a call that is no model call and whose response has no usage."""
    if exchange.target.has_caches:
        return Usage(input=_find_cached_tokens(exchange))
    if exchange.target.adapter_name is not None or not exchange.target.is_paid:
        return Usage()
    text = _count_streamed_text(decompress_or_none(exchange, is_response=True) or b"")
    prompt = min(exchange.request_bytes // BYTES_PER_TOKEN, OTHER_PROMPT_TOKENS_MAX)
    return Usage(input=prompt, output=text or OTHER_OUTPUT_TOKENS)


def _count_streamed_text(body: bytes) -> int:
    """Tokens of the text in a stream of completions; 0 if it is none."""
    count = 0
    for line in body.splitlines():
        event = decode_or_none(msgspec.json.decode, line[5:]) if line.startswith(b"data:") else None
        choices = nested_field(event, "choices")
        for choice in choices if isinstance(choices, list) else ():
            text = nested_field(choice, "text")
            count += count_tokens(text.encode("utf-8", "replace")) if isinstance(text, str) else 0
    return count


_IN_BACKGROUND = re.compile(rb'(?<!\\)"background"\s*:\s*true')


def is_in_background(exchange: Exchange) -> bool:
    """Whether the provider answered a call before it was made: what it costs is known later, to whoever asks then."""
    if exchange.target.adapter_name != "openai":
        return False
    body = decompress_or_none(exchange, is_response=True) or b""
    return _IN_BACKGROUND.search(body) is not None and find_usage(body) is None


def keeps_reservation(exchange: Exchange) -> bool:
    """Whether the response does not say what a call costs. What was reserved for it counts as spent after an hour.

    So it is for a call in the background, and for an explicit cache whose description has not arrived.
    """
    if exchange.target.has_caches:
        return exchange.may_have_reply and not exchange.is_successful
    return exchange.is_answered and is_in_background(exchange)


def decode_batch_results(exchange: Exchange) -> list[BatchResult]:
    """The answered requests of a batch; those that cannot be read count as one, by their size."""
    # Part of a file looks like the whole, so only the whole is counted.
    if exchange.status != 200 or exchange.end != "whole":
        return []
    body = decompress_or_none(exchange, is_response=True)
    if body is None or exchange.response_body is None:
        return [BatchResult(UNKNOWN_MODEL, Usage(output=exchange.response_bytes // BYTES_PER_TOKEN))]
    return list(iterate_batch_results(body))


# In forms with a file, such as those of OpenAI's audio and image endpoints, the model is a field of its own.
# With few lines before the value, so that a body full of such names is not searched through for each.
_FORM_MODEL = re.compile(rb'name="model"[^\r\n]{0,200}\r\n(?:[^\r\n]{1,200}\r\n){0,4}\r\n([!-~]{1,120})\r\n')


def find_other_model(exchange: Exchange) -> str:
    """The model that a request without messages names: in its path, its JSON or its form."""
    target, body = exchange.target, decompress_or_none(exchange) or b""
    named = find_model_name(target, read_members(body))
    if not named and (form := _FORM_MODEL.search(body)):
        named = form[1].decode()
    return target.model_names.get(named, named) if named else UNKNOWN_MODEL


def decompress_or_none(exchange: Exchange, *, is_response: bool = False) -> bytes | None:
    """The request's body, or the response's; None if it cannot be decompressed."""
    body, headers = exchange.request_body, exchange.headers
    if is_response:
        body, headers = exchange.response_body, exchange.response_headers
    try:
        return decompress_body(body or b"", _header_text(headers, b"content-encoding"))
    except ProviderError:
        return None


def path_header(exchange: Exchange) -> dict[str, str]:
    """The path, for adapters whose requests say part of themselves there."""
    return {PATH_HEADER: exchange.target.path}


def _header_text(headers: Headers, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), "")


def name_by_reply(recorder: CallRecorder, call: ObservedCall, reply: Reply | None) -> ObservedCall:
    """The call with the model that answered, if its request named one that the catalog does not know.

    A deployment of Azure and an inference profile of Bedrock have names that their owner chose; a request that cannot
    be read has none.
    """
    prepared = call.prepared
    is_named_by_owner = prepared.provider in ("azure", "bedrock") or prepared.model.endswith(f":{UNKNOWN_MODEL}")
    if prepared.row is not None or not is_named_by_owner or reply is None or not reply.model:
        return call
    model = f"{prepared.provider}:{reply.model}"
    row = recorder.find_catalog_row(model)
    if row is None:
        return call
    return msgspec.structs.replace(call, prepared=msgspec.structs.replace(prepared, model=model, row=row))


def price_batch(
    row: Model | None, usages: Sequence[Usage], day: date, factor: Decimal | None
) -> tuple[Decimal, Decimal]:
    """What the requests of a batch cost, and would have without a cache; zeros for a model without a price.

    One by one: the price of a request depends on its own size. `factor` is that of batches, None if it is not known.
    """
    priced = [(usage, price_at(row, day, usage.tokens_sent)) for usage in usages] if row and row.prices else []
    scale = Decimal(1) if factor is None else factor
    paid = sum((cost_usd(usage, price) for usage, price in priced), Decimal(0))
    uncached = sum((uncached_cost_usd(usage, price) for usage, price in priced), Decimal(0))
    return paid * scale, uncached * scale


def sum_cache_costs(exchange: Exchange, row: Model | None, unpriced_usd_per_mtok: float) -> float:
    """Dollars for creating and storing an explicit cache; negative for storage that was paid and is not used.

    One that the client creates is stored until its end: a budget is not given back what is deleted earlier.
    """
    changes = (*exchange.opening_changes, *exchange.closing_changes)
    planned = float(sum((change.cost_usd + change.storage_cost_usd for change in changes), Decimal(0)))
    if not exchange.target.has_caches or not exchange.is_answered:
        return planned
    members = read_members(decompress_or_none(exchange, is_response=True) or b"")
    members = members or read_members(decompress_or_none(exchange) or b"")
    tokens, seconds = _find_cached_tokens(exchange), find_cache_seconds(members, exchange.ended_at)
    priced = price_at(row, utc_date(exchange.ended_at), tokens) if row is not None and row.prices else None
    if priced is None or not priced.storage_per_hour:
        return planned + tokens * unpriced_usd_per_mtok / 1_000_000 * seconds / 3_600
    return planned + float(storage_usd(tokens, seconds, priced))


def _find_cached_tokens(exchange: Exchange) -> int:
    body = decompress_or_none(exchange, is_response=True)
    counted = nested_field(decode_or_none(msgspec.json.decode, body), "usageMetadata", "totalTokenCount")
    return clamp_token_count(counted) if isinstance(counted, int) else exchange.request_bytes // BYTES_PER_TOKEN
