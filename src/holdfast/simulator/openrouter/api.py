"""OpenRouter's API in the simulator: chat completions with their cost, and the model list with prices.

OpenRouter forwards requests, so the rules of the serving provider apply.
"""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec

from holdfast.cachemodel.values import CacheCall
from holdfast.catalog.lookup import Models, price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.economics.cost import cost_usd
from holdfast.providers.adapter import WireRequest
from holdfast.providers.json_splice import join_object, split_object
from holdfast.providers.openrouter import openrouter
from holdfast.simulator.anthropic.api import make_anthropic_cache_call
from holdfast.simulator.anthropic.thinking import accept_thinking, sign_anthropic_thinking
from holdfast.simulator.anthropic.validation import place_requested_breakpoints
from holdfast.simulator.openai import validation
from holdfast.simulator.openai.request import CacheOptions, make_openai_cache_call
from holdfast.simulator.openai.responses import find_release_timestamp
from holdfast.simulator.provider_api import (
    AcceptedRequest,
    ProviderApi,
    RequestContext,
    SimulatedRequest,
    find_simulated_model,
    refuse,
)
from holdfast.simulator.request_blocks import SentBlock, digest_conversation_starts, list_sent_blocks
from holdfast.types.blocks import Block
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import HistoryEntry, Segment, Stability
from holdfast.types.reply import Reply
from holdfast.types.transcript import merge_into_messages
from holdfast.types.usage import Usage

_COMPLETIONS = "/api/v1/chat/completions"
_MODELS = "/api/v1/models"


class OpenRouterApi(ProviderApi):
    adapter = openrouter
    routes = (f"POST {_COMPLETIONS}", f"GET {_MODELS}")
    reply_id_prefix = "gen-sim"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        return (http_request.method, http_request.path) in (("POST", _COMPLETIONS), ("GET", _MODELS))

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        if http_request.path == _MODELS:
            return encode_json(list_openrouter_models(context.models, at=context.at))
        return parse_openrouter_request(openrouter.decode_request(http_request.body, http_request.headers), context)

    def sign_thinking(self, content: Sequence[Block], request: AcceptedRequest) -> tuple[Block, ...]:
        """Thinking is moved before all other blocks, because clients send it back there."""
        ordered = openrouter.lower_entry(HistoryEntry("assistant", tuple(content)))
        blocks = ordered.content if ordered else ()
        model, prefix = request.parameters.model, request.prefix
        return sign_anthropic_thinking(blocks, model=model, prefix=prefix, encode_block=_encode_block)

    def encode_reply(self, reply: Reply, request: AcceptedRequest) -> bytes | Iterable[bytes]:
        encoded = super().encode_reply(reply, request)
        cost = compute_reply_cost(reply.usage, request)
        if cost is None:
            return encoded
        return add_cost_to_body(encoded, cost) if isinstance(encoded, bytes) else add_cost_to_stream(encoded, cost)


def _encode_block(block: Block) -> bytes:
    segment = Segment("reply", Stability.GROWING, "messages", entries=(HistoryEntry("assistant", (block,)),))
    return b"".join(encoded.data for encoded in openrouter.encode_segment(segment))


_EVENT_START = b"data: "
_USAGE = "usage"


def compute_reply_cost(usage: Usage, request: AcceptedRequest) -> Decimal | None:
    """None if the catalog has no price."""
    # OpenRouter reports the price of a reply as `usage.cost`.
    if not request.model.prices:
        return None
    return cost_usd(usage, price_at(request.model, utc_date(request.call.at), usage.tokens_sent))


def add_cost_to_body(body: bytes, cost: Decimal) -> bytes:
    members = split_object(body)
    members[_USAGE] = join_object(split_object(members[_USAGE]) | {"cost": encode_json(float(cost))})
    return join_object(members)


def add_cost_to_stream(chunks: Iterable[bytes], cost: Decimal) -> Iterator[bytes]:
    """Adds the cost to the chunk that contains the usage."""
    for chunk in chunks:
        event = chunk.removeprefix(_EVENT_START)
        if event.startswith(b"{") and _USAGE in split_object(event):
            yield _EVENT_START + add_cost_to_body(event, cost) + b"\n\n"
        else:
            yield chunk


_PARAMETERS = ("max_tokens", "reasoning", "stop", "temperature", "tool_choice", "tools")
_TOKENS_PRICED = 1_000_000


def list_openrouter_models(models: Models, *, at: float) -> dict[str, object]:
    rows = [describe_openrouter_model(row, at=at) for row in models.values() if row.provider == openrouter.name]
    return {"data": rows, "links": {"next": None}, "total_count": len(rows)}


def describe_openrouter_model(row: Model, *, at: float) -> dict[str, object]:
    return {
        "id": row.name,
        "canonical_slug": row.name,
        "name": row.name,
        "created": find_release_timestamp(row),
        "context_length": row.context_tokens_max,
        "architecture": {
            "modality": "text+image->text",
            "input_modalities": ["text", "image"],
            "output_modalities": ["text"],
            "tokenizer": "Other",
            "instruct_type": None,
        },
        "pricing": _pricing(row, at),
        "top_provider": {
            "context_length": row.context_tokens_max,
            "max_completion_tokens": row.output_tokens_max,
            "is_moderated": False,
        },
        "per_request_limits": None,
        "supported_parameters": _PARAMETERS,
        "default_parameters": None,
        "supported_voices": None,
        "links": {"details": f"/api/v1/models/{row.name}/endpoints"},
    }


def _pricing(row: Model, at: float) -> dict[str, str]:
    """Dollars per token."""
    if not row.prices:
        return {"prompt": "0", "completion": "0"}
    price = price_at(row, utc_date(at), 0)
    rates = {
        "prompt": price.input,
        "completion": price.output,
        "input_cache_read": price.cache_read,
        "input_cache_write": price.cache_write_5m,
    }
    return {name: f"{(rate / _TOKENS_PRICED).normalize():f}" for name, rate in rates.items()}


def parse_openrouter_request(wire: WireRequest, context: RequestContext) -> AcceptedRequest:
    """Raises `ProviderError` for what OpenRouter or the serving provider refuses."""
    parameters = wire.parameters
    refusal = "No endpoints found for {name}."
    model = find_simulated_model(openrouter.name, parameters.model, context.models, refusal=refusal)
    messages = merge_into_messages(wire.prompt.entries)
    if not messages:
        raise refuse("Input required: specify messages")
    validation.check_openai_types(parameters)
    validation.check_openai_output(parameters, model)
    validation.check_chat_calls(messages)
    sent = list_sent_blocks(openrouter, wire)
    validation.check_openai_tools(sent, parameters)
    placed = (
        place_requested_breakpoints(sent, parameters, model.cache)
        if model.cache.kind == "explicit"
        else _convert_breakpoints(sent, model)
    )
    admitted = accept_thinking(placed, model=parameters.model, rules=model.cache)
    call = _cache_call(admitted.blocks, wire, model, context)
    validation.check_openai_window(call.tokens, model)
    return AcceptedRequest(
        model=model,
        parameters=parameters,
        messages=messages,
        call=call,
        conversations=digest_conversation_starts(context.workspace, sent),
        prefix=admitted.prefix,
        dropped=admitted.dropped,
    )


def _convert_breakpoints(blocks: Sequence[SentBlock], model: Model) -> tuple[SentBlock, ...]:
    """Breakpoints converted to those of the serving provider; dropped if it has none."""
    # OpenRouter converts `cache_control` and `prompt_cache_breakpoint` into each other, as the provider needs it.
    ttls = model.cache.ttls_seconds if model.cache.kind == "hybrid" else {}
    ttl = "30m" if "30m" in ttls else None
    return tuple(msgspec.structs.replace(sent, ttl=ttl) if sent.ttl is not None else sent for sent in blocks)


def _cache_call(blocks: Sequence[SentBlock], wire: WireRequest, model: Model, context: RequestContext) -> CacheCall:
    if model.cache.kind != "explicit":
        return make_openai_cache_call(blocks, wire.parameters, model=model, options=CacheOptions(), context=context)
    return make_anthropic_cache_call(blocks, wire.parameters, model=model, context=context)
