"""Anthropic's Messages API in the simulator: requests, replies, token counts and the model list.

Anthropic's cache sees a request as blocks in hashing order, with the parameters that each tier depends on.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.cachemodel.tiers import chain_prefixes, chain_seeds
from holdfast.cachemodel.values import CacheCall, CacheScope
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.schema import CacheRules, Model
from holdfast.errors import UserError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.anthropic import anthropic
from holdfast.providers.anthropic.response import DIAGNOSTICS_FIELD
from holdfast.providers.cache_inputs import anthropic_cache_inputs, is_web_search
from holdfast.providers.errors import get_header
from holdfast.providers.json_splice import extra_field
from holdfast.simulator import cache_diagnostics
from holdfast.simulator.anthropic import validation
from holdfast.simulator.anthropic.thinking import accept_thinking, sign_anthropic_thinking
from holdfast.simulator.provider_api import (
    AcceptedRequest,
    DroppedBlock,
    ProviderApi,
    RequestContext,
    SimulatedRequest,
    is_model_request,
    parse_model_name,
    refuse,
)
from holdfast.simulator.request_blocks import SentBlock, digest_conversation_starts, list_sent_blocks, make_cache_block
from holdfast.types.blocks import Block
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Breakpoint, Parameters, PromptSection
from holdfast.types.reply import Reply
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.transcript import merge_into_messages

# Anthropic hashes tools, then system, then messages, cumulatively (its page "Prompt caching").
_SECTIONS: tuple[PromptSection, ...] = ("tools", "system", "messages")


def make_anthropic_cache_call(
    blocks: Sequence[SentBlock], parameters: Parameters, *, model: Model, context: RequestContext
) -> CacheCall:
    """The request as the cache sees it."""
    # Switching web search keeps the tools tier and loses the later ones, so its definition counts as system text.
    ordered = sorted(blocks, key=lambda sent: _SECTIONS.index(_tier(sent)))
    seeds = chain_seeds(model.cache, anthropic_cache_inputs((sent.block for sent in blocks), parameters))
    cache_blocks = (make_cache_block(sent, _tier(sent), model=model, count=context.count) for sent in ordered)
    breakpoints = tuple(Breakpoint(index, sent.ttl) for index, sent in enumerate(ordered) if sent.ttl is not None)
    scope = CacheScope(context.workspace, parameters.model)
    return CacheCall(scope, chain_prefixes(seeds, cache_blocks), breakpoints, context.at)


def _tier(sent: SentBlock) -> PromptSection:
    return "system" if is_web_search(sent.block) else sent.encoded.section


_PREVIOUS = "previous_message_id"


def fingerprint_anthropic_request(
    blocks: Sequence[SentBlock], parameters: Parameters, rules: CacheRules
) -> cache_diagnostics.DiagnosisFingerprint:
    settings = anthropic_cache_inputs((sent.block for sent in blocks), parameters)
    message_settings = ("thinking", "tool_choice", "images", "citations", "effort")
    return cache_diagnostics.DiagnosisFingerprint(
        digests=(
            # Anthropic reports a changed `speed` as a changed model.
            ("model_changed", cache_diagnostics.digest_settings(settings, ("model", "speed"), rules)),
            ("tools_changed", cache_diagnostics.digest_section(blocks, "tools")),
            ("system_changed", cache_diagnostics.digest_section(blocks, "system")),
            # Differences in these parameters are reported as `unavailable`.
            (cache_diagnostics.NO_REASON, cache_diagnostics.digest_settings(settings, message_settings, rules)),
        ),
        prompt_reason="messages_changed",
    )


def read_diagnosis_request(parameters: Parameters, rules: CacheRules) -> cache_diagnostics.DiagnosisRequest | None:
    field = extra_field(parameters, DIAGNOSTICS_FIELD)
    if field is None:
        return None
    if not rules.diagnoses_misses:
        raise refuse(f"{DIAGNOSTICS_FIELD}: Extra inputs are not permitted")
    if not isinstance(field, dict) or not field.keys() <= {_PREVIOUS}:
        raise refuse(f"{DIAGNOSTICS_FIELD}: must be an object with {_PREVIOUS}")
    previous = field.get(_PREVIOUS)
    if previous is not None and not isinstance(previous, str):
        raise refuse(f"{DIAGNOSTICS_FIELD}.{_PREVIOUS}: must be text or null")
    return cache_diagnostics.DiagnosisRequest(previous)


# The SDK sends the newer version from 2.0.0 on.
API_VERSIONS = ("2023-06-01", "2026-10-21")
_MESSAGES = "/v1/messages"
_COUNT = "/v1/messages/count_tokens"
_MODELS = "/v1/models"


class AnthropicApi(ProviderApi):
    adapter = anthropic
    routes: tuple[str, ...] = (f"POST {_MESSAGES}", f"POST {_COUNT}", f"GET {_MODELS}", f"GET {_MODELS}/ID")
    key_header = "x-api-key"
    request_id_header = "request-id"
    reply_id_prefix = "msg_sim"
    call_id_prefix = "toolu_"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        if http_request.method == "POST":
            return http_request.path in (_MESSAGES, _COUNT)
        # Other providers list their models at the same path; only Anthropic's clients send one of these headers.
        headers = (get_header(http_request.headers, name) for name in ("anthropic-version", "x-api-key"))
        return any(header is not None for header in headers) and is_model_request(http_request, _MODELS)

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        _check_version(http_request.headers)
        if http_request.path == _MODELS:
            return encode_json(list_anthropic_models(context.models, http_request.query))
        if name := parse_model_name(http_request.path, _MODELS):
            return encode_json(describe_anthropic_model(_find_model(name, context.models)))
        if http_request.path == _COUNT:
            wire = anthropic.decode_count_request(http_request.body, http_request.headers)
            return encode_json({"input_tokens": parse_anthropic_request(wire, context, counting=True).call.tokens})
        return parse_anthropic_request(anthropic.decode_request(http_request.body, http_request.headers), context)

    def sign_thinking(self, content: Sequence[Block], request: AcceptedRequest) -> tuple[Block, ...]:
        return sign_anthropic_thinking(content, model=request.parameters.model, prefix=request.prefix)

    def encode_reply(self, reply: Reply, request: AcceptedRequest) -> bytes | Iterable[bytes]:
        reports_dropped = validation.BINDING_BETA in request.parameters.betas
        if not request.parameters.stream:
            body = anthropic.encode_reply(reply)
            return add_input_transformations(body, request.dropped) if reports_dropped else body
        events = iter(anthropic.encode_stream(reply))
        return add_input_transformations_to_stream(events, request.dropped) if reports_dropped else events


def _find_model(name: str, models: Models) -> Model:
    try:
        return find_model(f"{anthropic.name}:{name}", models)
    except UserError as error:
        # Clients of a provider's own API name models without our provider prefix.
        raise refuse(f"model: {str(error).replace(f'{anthropic.name}:', '')}", status=404) from error


def _check_version(headers: Mapping[str, str]) -> None:
    version = get_header(headers, "anthropic-version")
    if version is not None and version not in API_VERSIONS:
        raise refuse(f"anthropic-version: must be one of {', '.join(API_VERSIONS)}")


# Anthropic's default and maximum of the `limit` parameter.
PAGE_DEFAULT = 20
PAGE_MAX = 1_000
_UNKNOWN_DATE = datetime.date(1970, 1, 1)


def list_anthropic_models(models: Models, query: Mapping[str, str]) -> dict[str, object]:
    own = (row for row in models.values() if row.provider == anthropic.name)
    rows = sorted(own, key=lambda row: row.released or _UNKNOWN_DATE, reverse=True)
    names = [row.name for row in rows]
    start = _position(names, query, "after_id", absent=-1) + 1
    end = _position(names, query, "before_id", absent=len(names))
    limit = _parse_limit(query.get("limit"))
    window = rows[start:end]
    page = window[-limit:] if "before_id" in query else window[:limit]
    return {
        "data": [describe_anthropic_model(row) for row in page],
        "has_more": len(window) > len(page),
        "first_id": page[0].name if page else None,
        "last_id": page[-1].name if page else None,
    }


def describe_anthropic_model(row: Model) -> dict[str, object]:
    released = row.released or _UNKNOWN_DATE
    return {
        "type": "model",
        "id": row.name,
        "display_name": row.name.replace("-", " ").title(),
        "created_at": f"{released.isoformat()}T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": row.context_tokens_max,
        "max_tokens": row.output_tokens_max,
    }


def _position(names: list[str], query: Mapping[str, str], field: str, *, absent: int) -> int:
    name = query.get(field)
    if name is None:
        return absent
    if name not in names:
        raise refuse(f"{field}: no such model in the list")
    return names.index(name)


def _parse_limit(text: str | None) -> int:
    if text is None:
        return PAGE_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= PAGE_MAX):
        raise refuse(f"limit: must be from 1 to {PAGE_MAX}")
    return int(text)


def parse_anthropic_request(wire: WireRequest, context: RequestContext, *, counting: bool = False) -> AcceptedRequest:
    """Raises `ProviderError` for what the provider refuses. With `counting`, output limits are not checked."""
    parameters = wire.parameters
    model = _find_model(parameters.model, context.models)
    validation.check_anthropic_transcript(wire.prompt.entries, model.cache, parameters.betas)
    sent = list_sent_blocks(anthropic, wire)
    validation.check_anthropic_tools(sent, parameters, model.cache)
    # Deferred tools are not in the prefix (Anthropic, "Tool use with prompt caching").
    sent = tuple(block for block in sent if not (isinstance(block.block, ToolSpec) and block.block.is_deferred))
    if not counting:
        validation.check_anthropic_output(parameters, model)
    placed = validation.place_requested_breakpoints(sent, parameters, model.cache)
    drops = validation.drops_mismatches(parameters)
    accepted = accept_thinking(placed, model=parameters.model, rules=model.cache, drops_mismatches=drops)
    call = make_anthropic_cache_call(accepted.blocks, parameters, model=model, context=context)
    validation.check_anthropic_window(call.tokens, model)
    return AcceptedRequest(
        model=model,
        parameters=parameters,
        messages=merge_into_messages(wire.prompt.entries),
        call=call,
        conversations=digest_conversation_starts(context.workspace, sent),
        prefix=accepted.prefix,
        dropped=accepted.dropped,
        # A prewarming request gets no content and the stop reason `max_tokens`.
        prewarm_stop_reason="max_tokens" if parameters.output_tokens_max == 0 else None,
        fingerprint=fingerprint_anthropic_request(sent, parameters, model.cache),
        diagnosis_request=None if counting else read_diagnosis_request(parameters, model.cache),
    )


def add_input_transformations(body: bytes, dropped: Sequence[DroppedBlock]) -> bytes:
    """A reply with the list of request blocks that the model did not see."""
    message: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return encode_json({**message, "input_transformations": dropped})


def add_input_transformations_to_stream(events: Iterator[bytes], dropped: Sequence[DroppedBlock]) -> Iterator[bytes]:
    """The same for a streamed reply; the provider reports it in the event that starts the message."""
    name, _, start = next(events).partition(b"\ndata: ")
    event: dict[str, msgspec.Raw] = msgspec.json.decode(start, type=dict[str, msgspec.Raw])
    message = add_input_transformations(bytes(event["message"]), dropped)
    yield name + b"\ndata: " + encode_json({**event, "message": msgspec.Raw(message)}) + b"\n\n"
    yield from events
