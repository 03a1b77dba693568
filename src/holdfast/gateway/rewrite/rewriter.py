"""Rewrites forwarded requests so that the prompt cache hits: same content, stable order, cache breakpoints.

A rewrite depends on the request alone, and the rewrite of a longer conversation extends the rewrite of a shorter one.
So there is no state to keep or to lose in a restart. The analysis of a request adds its single-flight key.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from holdfast.catalog.lookup import Models, resolve_model
from holdfast.catalog.schema import CacheRules, Model
from holdfast.engine.cache.conversation_plans import PlannedCall
from holdfast.engine.cache.single_flight import BreakpointPrefix, FlightKey
from holdfast.engine.inject import cache_fields
from holdfast.engine.inject.cache_fields import ClientRequest
from holdfast.engine.inject.openai_body import CACHE_KEY_FIELD
from holdfast.engine.request_draft import RequestDraft
from holdfast.errors import UserError
from holdfast.events.payloads.cache import PingKind
from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.rewrite import operations as openrouter
from holdfast.gateway.rewrite.operations import (
    BREAKPOINTS_MISSING,
    CACHE_KEY_MISSING,
    EXPLICIT_BREAKPOINT_MISSING,
    RESPONSES_ROLES,
    TTLS_UNORDERED,
    VOLATILE_PREFIX,
    DeriveSession,
    JsonObject,
    RequestEdits,
    append_message,
    convert_text_to_parts,
    derive_session_id,
    list_objects,
    rewrite_chat,
    rewrite_responses,
    sort_request_tools,
)
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.planning.policy import PingResult
from holdfast.providers.adapter import PATH_HEADER, Adapter, WireRequest
from holdfast.providers.anthropic.blocks import CACHE_CONTROL
from holdfast.providers.cache_inputs import automatic_breakpoint
from holdfast.providers.registry import get_adapter
from holdfast.providers.wire_request import drop_deferred_tools
from holdfast.types.blocks import Block, Json, Role
from holdfast.types.json_encoding import encode_json, extend_digest, sha256_hex
from holdfast.types.prompt import Breakpoint, Parameters, Ttl
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest
from holdfast.types.usage import Usage

# Anthropic answers 400 if a 1h breakpoint comes after a 5m one ("Mixed TTL" in its prompt caching page).
HOUR_TTL = "1h"
_DECLARATIONS = "functionDeclarations"

# Others answer 400 to a field that they do not know, as Groq does, or ignore it.
_TAKE_OPENAI_FIELDS = ("openai", "openai-chat", "azure")

# Rough estimate, enough to compare a prefix with the cache minimum; exact counts need the provider's tokenizer.
BYTES_PER_TOKEN = 4


class ImprovedRequest(msgspec.Struct, frozen=True):
    """The result of a rewrite; `body` is None if the request is forwarded unchanged.

    `wire` is the decoded request as it will be sent, `row` the catalog row of its model.
    """

    body: bytes | None
    wire: WireRequest
    row: Model
    changes: tuple[RequestChange, ...] = ()


class RequestRewriter:
    """Stateless and thread-safe. `derive_session` derives the cache key of an OpenAI request from its body."""

    def __init__(
        self,
        models: Models,
        volatile: VolatileExtractor | None = None,
        *,
        derive_session: DeriveSession = derive_session_id,
    ) -> None:
        self._models = models
        self._derive_session = derive_session
        self._volatile = volatile or VolatileExtractor()

    def rewrite_request(
        self,
        adapter_name: str,
        body: bytes,
        *,
        path: str = "",
        unfixed: frozenset[str] = frozenset(),
        provider: str = "",
        path_fields: Mapping[str, str | bool] = {},
    ) -> ImprovedRequest:
        """Fixes all anti-patterns but those in `unfixed`. `path` is the request's; Gemini names the model there.

        `provider` is the host, where it has another provider's format, and `path_fields` are the fields that it has in
        the path instead of the body. May raise anything for a body that we do not understand; the caller then forwards
        the original.
        """
        adapter = get_adapter(adapter_name)
        provider = provider or adapter.name
        received: JsonObject = msgspec.json.decode(body)
        members: JsonObject = {**path_fields, **received}
        headers = {PATH_HEADER: path}
        # Re-encode first: insignificant white space must not count as a difference.
        before = adapter.decode_request(encode_json(members), headers)
        row = resolve_model(provider, before.parameters.model, self._models)
        # Nothing is known of this model's cache, so no rewrite is known to help.
        if row.cache.kind == "none":
            return ImprovedRequest(None, before, row)
        if adapter_name in ("openai", "openai-chat") and provider not in _TAKE_OPENAI_FIELDS:
            unfixed |= {CACHE_KEY_MISSING, EXPLICIT_BREAKPOINT_MISSING}
        edits = RequestEdits(self._volatile, unfixed, self._derive_session)
        rewritten = (
            _REWRITERS[adapter_name](dict(members), row, edits, adapter) if adapter_name in _REWRITERS else members
        )
        if not edits.changes:
            return ImprovedRequest(None, drop_deferred_tools(adapter, before), row)
        after = adapter.decode_request(encode_json(rewritten), headers)
        _check_same_content(before, after, edits.moved_text)
        sent = {name: value for name, value in rewritten.items() if name in received or name not in path_fields}
        return ImprovedRequest(encode_json(sent), drop_deferred_tools(adapter, after), row, tuple(edits.changes))


def _rewrite_anthropic(body: JsonObject, row: Model, edits: RequestEdits, adapter: Adapter) -> JsonObject:
    # Moved text is appended to the last message, which must be the user's: after an assistant prefill it would be
    # taken for the model's own words.
    if _ends_with_user(body):
        system, volatile = edits.extract_from_content(body.get("system"))
        if volatile:
            body["system"] = system
            if not system:
                del body["system"]
            edits.record_move(volatile, "system")
    ordered = edits.sort_tools_by_name(body.get("tools"), lambda tool: tool.get("name"))
    if ordered is not None:
        body["tools"] = ordered
    body["messages"] = convert_text_to_parts(body["messages"], "text", ("user", "assistant"))
    # Before placing breakpoints: Anthropic answers 400 if a 1h breakpoint comes after a 5m one.
    if edits.should_fix(TTLS_UNORDERED) and order_ttls(body):
        edits.record_change(TTLS_UNORDERED, "breakpoints")
    if edits.should_fix(BREAKPOINTS_MISSING):
        request = _request(adapter, body, row, "")
        rewritten = cache_fields.add_anthropic_breakpoints({**body}, request, text_follows=bool(edits.moved_text))
        added = len(rewritten.wire_request.plan.breakpoints) - len(request.wire_request.plan.breakpoints)
        if added:
            edits.record_change(BREAKPOINTS_MISSING, f"{added} placed")
        body = rewritten.body
    if edits.moved_text:
        # After the last breakpoint, so that it is neither cached nor part of a later request's prefix.
        _append_to_last_message(body, {"type": "text", "text": edits.moved_text})
    return body


def _rewrite_openai(body: JsonObject, row: Model, edits: RequestEdits, adapter: Adapter) -> JsonObject:
    prompt_member, part_type = ("messages", "text") if adapter.name == "openai-chat" else ("input", "input_text")
    role = (rewrite_chat if prompt_member == "messages" else rewrite_responses)(body, edits)
    request = _request(adapter, body, row, edits.derive_session(body, prompt_member))
    had_key = body.get(CACHE_KEY_FIELD) is not None
    if edits.should_fix(CACHE_KEY_MISSING) or edits.should_fix(EXPLICIT_BREAKPOINT_MISSING):
        rewritten = cache_fields.add_openai_cache_fields(
            {**body}, request, adapter=adapter, prompt_name=prompt_member, part_type=part_type
        )
        if len(rewritten.wire_request.plan.breakpoints) > len(request.wire_request.plan.breakpoints):
            edits.record_change(EXPLICIT_BREAKPOINT_MISSING, "end of the system text")
        body = rewritten.body
        if not had_key and body.get(CACHE_KEY_FIELD) is not None:
            edits.record_change(CACHE_KEY_MISSING, CACHE_KEY_FIELD)
    if edits.moved_text:
        has_free_breakpoint = row.cache.breakpoints_max - 1 > len(
            adapter.decode_request(encode_json(body)).plan.breakpoints
        )
        body[prompt_member] = append_message(
            convert_text_to_parts(body[prompt_member], part_type, RESPONSES_ROLES),
            {"role": role, "content": edits.moved_text},
            breakpoint_in=part_type if row.cache.kind == "hybrid" and has_free_breakpoint else None,
        )
    return body


def _rewrite_openrouter(body: JsonObject, row: Model, edits: RequestEdits, adapter: Adapter) -> JsonObject:
    if _ends_with_user(body):
        rewrite_chat(body, edits)
    else:
        sort_request_tools(body, edits)
    body["messages"] = convert_text_to_parts(body["messages"], "text", openrouter.BREAKPOINT_ROLES)
    if row.cache.kind == "explicit":
        if edits.should_fix(TTLS_UNORDERED) and order_ttls(body):
            edits.record_change(TTLS_UNORDERED, "breakpoints")
        if edits.should_fix(BREAKPOINTS_MISSING):
            request = _request(adapter, body, row, "")
            missing = cache_fields.missing_breakpoints(
                request, request.wire_request.plan.breakpoints, text_follows=bool(edits.moved_text)
            )
            body, added = openrouter.add_breakpoints(body, missing, adapter)
            if added:
                edits.record_change(BREAKPOINTS_MISSING, f"{added} placed")
    # OpenRouter routes requests with the same session_id to the same provider, whose cache they share.
    if row.cache.kind != "none" and edits.should_fix(CACHE_KEY_MISSING) and body.get(openrouter.SESSION_MEMBER) is None:
        body[openrouter.SESSION_MEMBER] = openrouter.derive_openrouter_session(body)
        edits.record_change(CACHE_KEY_MISSING, openrouter.SESSION_MEMBER)
    if edits.moved_text:
        _append_to_last_message(body, {"type": "text", "text": edits.moved_text})
    return body


def _rewrite_gemini(body: JsonObject, row: Model, edits: RequestEdits, adapter: Adapter) -> JsonObject:
    """A request that uses `cachedContent` is left unchanged, because its prefix is in that explicit cache."""
    if body.get("cachedContent") is not None:
        return body
    tools = list_objects(body.get("tools"))
    # Only the plain case: built-in tools, such as code execution, have no name to sort by.
    if len(tools) == 1 and tools[0].keys() == {_DECLARATIONS}:
        ordered = edits.sort_tools_by_name(tools[0][_DECLARATIONS], lambda tool: tool.get("name"))
        if ordered is not None:
            body["tools"] = [{**tools[0], _DECLARATIONS: ordered}]
    instruction, contents = body.get("systemInstruction"), body.get("contents")
    if not isinstance(instruction, dict) or not isinstance(contents, list) or not _gemini_ends_with_user(contents):
        return body
    rest, volatile = edits.extract_from_content(instruction.get("parts"))
    if volatile:
        edits.record_move(volatile, "systemInstruction")
        body["systemInstruction"] = {**instruction, "parts": rest}
        if not rest:
            del body["systemInstruction"]
        body["contents"] = [*contents, {"role": "user", "parts": [{"text": edits.moved_text}]}]
    return body


def _append_to_last_message(body: JsonObject, block: JsonObject) -> None:
    messages = body["messages"]
    assert isinstance(messages, list)
    last = messages[-1]
    assert isinstance(last, dict)
    content = last["content"]
    assert isinstance(content, list)
    body["messages"] = [*messages[:-1], {**last, "content": [*content, block]}]


def _blocks(body: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """All blocks with a breakpoint, in prompt order: tools, system, messages."""
    messages = body.get("messages")
    contents = (
        [message.get("content") for message in messages if isinstance(message, dict)]
        if isinstance(messages, list)
        else []
    )
    for blocks in (body.get("tools"), body.get("system"), *contents):
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict) and block.get(CACHE_CONTROL) is not None:
                yield block


def _ends_with_user(body: JsonObject) -> bool:
    messages = list_objects(body.get("messages"))
    return bool(messages) and messages[-1].get("role") == "user"


def _gemini_ends_with_user(contents: list[Json]) -> bool:
    last = contents[-1] if contents else None
    # Gemini treats a missing role as "user".
    return isinstance(last, dict) and last.get("role", "user") == "user"


def _previous_end(wire: WireRequest, draft: RequestDraft) -> int | None:
    """Index of the last block of the previous request: the one before the newest assistant message."""
    entries = wire.prompt.entries
    newest = next((index for index in range(len(entries) - 1, -1, -1) if entries[index].role == "assistant"), 0)
    blocks_before = len(draft.buffer.blocks) - sum(len(draft.encode_entry(entry)) for entry in entries[newest:])
    return blocks_before - 1 if newest and blocks_before > 0 else None


def _request(adapter: Adapter, body: JsonObject, row: Model, session: str) -> ClientRequest:
    wire = drop_deferred_tools(adapter, adapter.decode_request(encode_json(body)))
    draft = RequestDraft(adapter, lambda encoded: 0)
    draft.update(wire.prompt)
    return ClientRequest(body, wire, draft.buffer, row, session, _previous_end(wire, draft))


def order_ttls(body: dict[str, Json]) -> bool:
    """Raises every breakpoint before the last 1-hour one to 1 hour, in place; returns whether anything changed.

    This costs nothing extra: a 1-hour breakpoint writes everything before it for one hour anyway.
    """
    blocks = list(_blocks(body))
    controls = [control for block in blocks if isinstance(control := block[CACHE_CONTROL], dict)]
    if len(controls) != len(blocks):
        return False
    hours = [index for index, control in enumerate(controls) if control.get("ttl") == HOUR_TTL]
    # The automatic breakpoint (top-level `cache_control`) comes after all others.
    automatic = body.get(CACHE_CONTROL)
    is_automatic_hour = isinstance(automatic, dict) and automatic.get("ttl") == HOUR_TTL
    last = len(blocks) if is_automatic_hour else max(hours, default=0)
    short = [index for index in range(last) if index not in hours]
    for index in short:
        blocks[index][CACHE_CONTROL] = {**controls[index], "ttl": HOUR_TTL}
    return bool(short)


_REWRITERS: Mapping[str, Callable[[JsonObject, Model, RequestEdits, Adapter], JsonObject]] = {
    "anthropic": _rewrite_anthropic,
    "openai-chat": _rewrite_openai,
    "openai": _rewrite_openai,
    "gemini": _rewrite_gemini,
    "openrouter": _rewrite_openrouter,
}


def _check_same_content(before: WireRequest, after: WireRequest, moved: str) -> None:
    """Raises UserError unless both requests differ only in breakpoints, tool order and the moved volatile text."""
    same_tools = sorted(before.prompt.tools, key=repr) == sorted(after.prompt.tools, key=repr)
    old, new = _content_blocks(before), _content_blocks(after)
    # Moved text becomes exactly one extra block at the end.
    same_content = bool(old) and new[: len(old)] == old and len(new) - len(old) == bool(moved)
    if not same_tools or not same_content or _comparable_parameters(before) != _comparable_parameters(after):
        raise UserError("the rewrite would change the content of the request")


def _content_blocks(wire: WireRequest) -> list[tuple[Role, Block]]:
    return [(entry.role, block) for entry in wire.prompt.entries for block in entry.content]


def _comparable_parameters(wire: WireRequest) -> Parameters:
    """All parameters but the cache key and the OpenRouter session id, which a rewrite may add."""
    added = (CACHE_KEY_FIELD, openrouter.SESSION_MEMBER)
    extra = tuple(sorted(pair for pair in wire.parameters.extra if pair[0] not in added))
    return msgspec.structs.replace(wire.parameters, extra=extra)


class GatewayPing(msgspec.Struct, frozen=True):
    """A request without output for a conversation's cache: its last request, for an upgrade with the `reply` after it.

    `block_index` is the block of its last breakpoint among the conversation's `block_count` blocks; `closing_tokens`
    follow them.
    """

    body: bytes
    kind: PingKind
    ttl: Ttl
    reason: str
    block_index: int
    block_count: int
    closing_tokens: int = 0
    reply: tuple[EncodedBlock, ...] = ()

    def to_result(self, at: float, usage: Usage) -> PingResult:
        tokens = max(0, usage.tokens_sent - self.closing_tokens)
        return PingResult(at, self.ttl, usage, self.block_index, self.block_count, tokens)


class RequestAnalysis(msgspec.Struct, frozen=True):
    """The analysis of a request: its rewrite, and what single flight and keep-alive need to know about its prefix.

    `body` is None if the request is forwarded unchanged. `chain` has the prefix digest after each block; `breakpoints`
    are those that it is sent with. `call` is set if the planner planned it. `blocks` are those of the chain;
    `moved_bytes` of volatile text follow them.
    """

    adapter: Adapter
    row: Model
    body: bytes | None
    changes: tuple[RequestChange, ...]
    flight_key: FlightKey
    chain: Sequence[PrefixDigest] = ()
    breakpoints: tuple[Breakpoint, ...] = ()
    call: PlannedCall | None = None
    accepts_pings: bool = True
    blocks: Sequence[EncodedBlock] = ()
    moved_bytes: int = 0


def analyze_request(
    rewriter: RequestRewriter,
    adapter_name: str,
    body: bytes,
    *,
    path: str,
    account: str,
    provider: str = "",
    path_fields: Mapping[str, str | bool] = {},
    unfixed: frozenset[str] = frozenset(),
) -> RequestAnalysis:
    """May raise anything for a body that we do not understand."""
    rewritten = rewriter.rewrite_request(
        adapter_name, body, path=path, unfixed=unfixed, provider=provider, path_fields=path_fields
    )
    adapter = get_adapter(adapter_name)
    draft = RequestDraft(adapter, lambda encoded: len(encoded) // BYTES_PER_TOKEN)
    draft.update(rewritten.wire.prompt)
    chain, rules = draft.buffer.digests, rewritten.row.cache
    breakpoints = [point for point in rewritten.wire.plan.breakpoints if point.block_index < len(chain)]
    if not any(change.anti_pattern.startswith(VOLATILE_PREFIX) for change in rewritten.changes):
        # After a move, the automatic breakpoint is on the moved text, which no later request has in its prefix.
        breakpoints += automatic_breakpoint(rewritten.wire.parameters, draft.buffer.blocks, breakpoints, rules)
    flight_key = FlightKey(
        _scope(adapter, rewritten.row, rewritten.wire, account), cached_prefixes(chain, breakpoints, rules)
    )
    return RequestAnalysis(
        adapter,
        rewritten.row,
        rewritten.body,
        rewritten.changes,
        flight_key,
        tuple(chain),
        tuple(breakpoints),
        accepts_pings=provider in ("", adapter.name),
        blocks=draft.buffer.blocks,
    )


def cached_prefixes(
    chain: Sequence[PrefixDigest], breakpoints: Sequence[Breakpoint], rules: CacheRules
) -> tuple[BreakpointPrefix, ...]:
    """The prefixes that end at a breakpoint and are long enough to be cached."""
    ends = [(chain[point.block_index], point.ttl) for point in breakpoints if point.ttl in rules.ttls_seconds]
    bytes_min = rules.tokens_min * BYTES_PER_TOKEN
    return tuple(
        BreakpointPrefix(end.digest, end.end, rules.ttls_seconds[ttl]) for end, ttl in ends if end.end >= bytes_min
    )


def _scope(adapter: Adapter, row: Model, wire: WireRequest, account: str) -> str:
    """Digest of account, model and those request parameters that the provider's cache key depends on."""
    # These parameters do not change the prefix, so requests that differ only in them share a cache entry.
    parameters = msgspec.structs.replace(
        wire.parameters, output_tokens_max=0, stream=False, stop_sequences=(), temperature=None
    )
    return extend_digest(sha256_hex(f"{account}\n{row.id}".encode()), adapter.request_head(parameters))
