"""Rewrites the requests of conversations with the planner that sessions use, and learns from their responses."""

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from holdfast.catalog.lookup import Models, resolve_model
from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_block_tokens
from holdfast.engine.cache.conversation_plans import ConversationPlans, DuePing, PlannedCall, RestoredConversation
from holdfast.engine.cache.single_flight import FlightKey
from holdfast.engine.inject.anthropic_body import (
    AnthropicBody,
    RawItem,
    append_reply,
    append_text,
    is_marked,
    place_planned_breakpoints,
    plan_anthropic_call,
)
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads.cache import PingKind
from holdfast.gateway.rewrite.openai import derive_session_id
from holdfast.gateway.rewrite.operations import (
    BREAKPOINTS_MISSING,
    TOOLS_UNSORTED,
    VOLATILE_PREFIX,
    DeriveSession,
    RequestEdits,
)
from holdfast.gateway.rewrite.rewriter import (
    GatewayPing,
    RequestAnalysis,
    RequestRewriter,
    analyze_request,
    cached_prefixes,
)
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.planning.idle_times import WaitsFor
from holdfast.planning.keep_alive import closing_entry
from holdfast.providers.anthropic import anthropic
from holdfast.providers.tolerant_decode import decode_stream_tolerantly, find_usage
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.prompt import HistoryEntry, Segment, Stability
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.usage import Usage

logger = logging.getLogger(__name__)

# How many tool lists and system texts are remembered, each by its digest.
REMEMBERED_HEADS_MAX = 1_000

# Larger requests and responses are not held in memory for a ping.
PING_BYTES_MAX = 4 * 1024 * 1024

# Members that a cached prefix does not depend on (Anthropic, "Prompt caching"), or that are keyed separately.
_UNKEYED_MEMBERS = frozenset(
    {
        "messages",
        "tools",
        "system",
        "max_tokens",
        "stream",
        "stop_sequences",
        "temperature",
        "metadata",
        "cache_control",
    }
)


class ConversationRewriter:
    """Plans the requests of one process; conversations are found again by their content. Thread-safe.

    Providers without a planner of their own are rewritten by the request alone.
    """

    def __init__(
        self,
        models: Models,
        volatile: VolatileExtractor | None = None,
        *,
        restore: Callable[[], Iterable[RestoredConversation]] = tuple,
        derive_session: DeriveSession = derive_session_id,
    ) -> None:
        """`restore` reads the conversations of earlier processes; it is called before the first request is planned.

        `derive_session` as in `RequestRewriter`.
        """
        self._models = models
        self._volatile = volatile or VolatileExtractor()
        self._stateless = RequestRewriter(models, volatile, derive_session=derive_session)
        self._plans = ConversationPlans()
        self._tool_orders: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self._restore: Callable[[], Iterable[RestoredConversation]] | None = restore
        self._lock = threading.Lock()

    def analyze(
        self,
        adapter_name: str,
        body: bytes,
        *,
        path: str,
        account: str,
        at: float,
        provider: str = "",
        path_fields: Mapping[str, str | bool] = {},
    ) -> RequestAnalysis:
        """`provider` and `path_fields` as in `RequestRewriter.rewrite_request`.

        May raise anything for a body that we do not understand; the caller then forwards the original.
        """
        if adapter_name != anthropic.name:
            return analyze_request(
                self._stateless,
                adapter_name,
                body,
                path=path,
                account=account,
                provider=provider,
                path_fields=path_fields,
            )
        self._restore_conversations()
        named = path_fields.get("model")
        raw = AnthropicBody(body, model=named if isinstance(named, str) else None)
        row = resolve_model(provider or anthropic.name, raw.model, self._models)
        if row.cache.kind != "explicit":
            raise UserError("nothing is known of this model's cache, so no rewrite is known to help")
        edits = RequestEdits(self._volatile)
        self._restore_tool_order(raw, edits)
        _move_volatile_text(raw, edits)
        scope = _cache_scope(raw, row, account)
        call = plan_anthropic_call(self._plans, raw, row, scope=scope, at=at)
        before = list(raw.messages)
        placed = place_planned_breakpoints(raw, call, row.cache.breakpoints_max)
        call = self._plans.mark_sent(call, placed.breakpoints)
        if placed.is_changed:
            edits.record_change(BREAKPOINTS_MISSING, f"{len(placed.breakpoints)} placed")
        _check_same_messages(raw, before)
        if edits.moved_text:
            # After the last breakpoint, so that it is neither cached nor part of a later request's prefix.
            raw.messages[-1] = append_text(raw.messages[-1], edits.moved_text)
        rewritten = raw.encode() if edits.changes else None
        prefixes = cached_prefixes(call.digests, placed.breakpoints, row.cache)
        return RequestAnalysis(
            anthropic,
            row,
            rewritten,
            tuple(edits.changes),
            FlightKey(scope, prefixes),
            call.digests,
            placed.breakpoints,
            call,
            accepts_pings=provider in ("", anthropic.name),
        )

    def record_response(self, call: PlannedCall, response: bytes | None) -> None:
        """`response` is the decompressed body of a complete and successful response, else None."""
        usage = find_response_usage(response) if response is not None else None
        if usage is None or usage == Usage():
            self._plans.fail_call(call)
        else:
            self._plans.complete_call(call, usage)

    def plan_ping(self, analysis: RequestAnalysis, response: bytes) -> DuePing | None:
        """The next ping after this call; None if none is expected to pay, or none is possible."""
        # Bedrock and Vertex document no request without output.
        if analysis.call is None or not analysis.accepts_pings or len(response) > PING_BYTES_MAX:
            return None
        # In a string the quotes would be escaped: this is a block's type, or the reason why the reply ended.
        waits_for: WaitsFor = "tool" if b'"tool_use"' in response else "user"
        return self._plans.plan_ping(analysis.call, analysis.row, waits_for)

    def encode_ping(
        self, analysis: RequestAnalysis, due: DuePing, *, sent: bytes, response: bytes
    ) -> GatewayPing | None:
        """The ping as a request; None if this one cannot be sent without output, or its reply not be repeated."""
        call = analysis.call
        parameters = anthropic.ping_parameters(anthropic.decode_request(sent).parameters)
        if call is None or len(sent) > PING_BYTES_MAX or anthropic.find_ping_conflict(parameters) is not None:
            return None
        body = AnthropicBody(sent)
        # Anthropic's pre-warm request: max_tokens 0 gives no output, and answers 400 together with stream.
        body.members["max_tokens"] = b"%d" % parameters.output_tokens_max
        body.members.pop("stream", None)
        last, blocks = call.record.breakpoints[-1], call.record.blocks
        if not due.with_reply:
            return GatewayPing(body.encode(), "refresh", last.ttl, due.reason, last.block_index, blocks)
        is_moved = any(change.anti_pattern.startswith(VOLATILE_PREFIX) for change in analysis.changes)
        entry = HistoryEntry("assistant", _decode_reply(response).content)
        reply, closing = (_encode_entry(each) for each in (entry, closing_entry(entry)))
        # Text that was moved to the end would be before the reply, which no later request repeats.
        if is_moved or not reply or _role_of(body.messages[-1]) != "user":
            return None
        block = append_reply(body, call, reply, ttl=due.ttl, slots=analysis.row.cache.breakpoints_max)
        if block is None:
            return None
        content = [msgspec.Raw(part.data) for part in closing]
        body.messages.append(encode_json({"role": "user", "content": content}))
        tokens = sum(count_block_tokens(part.data, analysis.row.tokens_factor) for part in closing)
        kind: PingKind = "upgrade" if call.conversation.pinged is None else "refresh"
        count = blocks + len(reply)
        return GatewayPing(body.encode(), kind, due.ttl, due.reason, block, count, tokens, reply)

    def record_ping(self, call: PlannedCall, ping: GatewayPing, response: bytes, at: float) -> None:
        """A ping after this call was answered."""
        result = ping.to_result(at, find_response_usage(response) or Usage())
        self._plans.complete_ping(call, result, ping.reply, anthropic)

    def _restore_conversations(self) -> None:
        with self._lock:
            if self._restore is not None:
                restore, self._restore = self._restore, None
                try:
                    self._plans.restore(restore())
                except Exception as error:  # noqa: BLE001 - without the log the planner starts from nothing
                    logger.warning("earlier conversations were not restored: %s", type(error).__name__)

    def _restore_tool_order(self, raw: AnthropicBody, edits: RequestEdits) -> None:
        """Tools that an earlier request listed in another order are listed as there; others stay as they are."""
        # A breakpoint on a tool covers the tools before it, so another order would change what it caches.
        if len(raw.tools) < 2 or any(map(is_marked, raw.tools)):
            return
        by_digest = {hashlib.sha256(tool).digest(): tool for tool in raw.tools}
        key = hashlib.sha256(b"".join(sorted(by_digest))).digest()
        with self._lock:
            if key not in self._tool_orders:
                self._tool_orders[key] = self._find_restored_order(raw, tuple(by_digest))
            order = self._tool_orders[key]
            self._tool_orders.move_to_end(key)
            while len(self._tool_orders) > REMEMBERED_HEADS_MAX:
                self._tool_orders.popitem(last=False)
        if order != tuple(by_digest) and len(by_digest) == len(raw.tools):
            raw.tools = [by_digest[digest] for digest in order]
            edits.record_change(TOOLS_UNSORTED, "tools")

    def _find_restored_order(self, raw: AnthropicBody, received: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The order of the tools in an earlier process; the received one if there was none."""
        segments = anthropic.decode_request(raw.encode_head()).prompt.segments
        blocks = [block for segment in segments if segment.tools for block in anthropic.encode_segment(segment)]
        order = self._plans.find_tool_order(anthropic, blocks) if len(blocks) == len(received) else None
        return received if order is None else tuple(received[index] for index in order)


def _move_volatile_text(raw: AnthropicBody, edits: RequestEdits) -> None:
    """Takes volatile lines out of the system text; they are appended to the last message, which must be the user's."""
    # After an assistant prefill they would be taken for the model's own words.
    if not raw.system or not raw.messages or _role_of(raw.messages[-1]) != "user":
        return
    system: Json = msgspec.json.decode(b"[" + b",".join(bytes(item) for item in raw.system) + b"]")
    assert isinstance(system, list)
    is_text = isinstance(system[0], str)
    rest, volatile = edits.extract_from_content(system[0] if is_text else system)
    if not volatile:
        return
    edits.record_move(volatile, "system")
    items: Sequence[Json] = rest if isinstance(rest, list) else [rest] if rest else []
    raw.system = [encode_json(item) for item in items]


def _role_of(message: RawItem) -> str:
    return msgspec.json.decode(message, type=_Role).role


class _Role(msgspec.Struct, frozen=True):
    role: str = ""


def _check_same_messages(raw: AnthropicBody, before: Sequence[RawItem]) -> None:
    """Raises UserError unless the changed messages have the same content as before."""
    for index, (old, new) in enumerate(zip(before, raw.messages, strict=True)):
        if new is old:
            continue
        after = anthropic.decode_request(raw.encode_message(index)).prompt
        raw.messages[index] = old
        same = anthropic.decode_request(raw.encode_message(index)).prompt == after
        raw.messages[index] = new
        if not same:
            raise UserError("the rewrite would change the content of the request")


def _cache_scope(raw: AnthropicBody, row: Model, account: str) -> str:
    """Digest of account, model and those members that the provider's cache key depends on."""
    members = sorted((name, bytes(value)) for name, value in raw.members.items() if name not in _UNKEYED_MEMBERS)
    return sha256_hex(
        f"{account}\n{row.id}\n".encode() + b"\n".join(b"%b:%b" % (name.encode(), value) for name, value in members)
    )


def _decode_reply(response: bytes) -> Reply:
    """Raises `ProviderError` for a response without one."""
    if response.lstrip()[:1] == b"{":
        return anthropic.decode_reply(response)
    reply = decode_stream_tolerantly(anthropic, response, is_whole=True).reply
    if reply is None:
        raise ProviderError("unreadable", "the response has no reply")
    return reply


def _encode_entry(entry: HistoryEntry) -> tuple[EncodedBlock, ...]:
    return anthropic.encode_segment(Segment("history", Stability.GROWING, "messages", entries=(entry,)))


def find_response_usage(response: bytes) -> Usage | None:
    """The usage of a response; of a stream only the events that have one are decoded."""
    if response.lstrip()[:1] == b"{":
        return find_usage(response)
    lines = [line for line in response.splitlines() if b'"usage"' in line]
    return find_usage(b"\n\n".join(lines))
