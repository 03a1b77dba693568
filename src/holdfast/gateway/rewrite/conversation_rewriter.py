"""Rewrites the requests of conversations with the planner that sessions use, and learns from their responses."""

import hashlib
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from holdfast.catalog.lookup import Models, resolve_model
from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_block_tokens
from holdfast.engine.cache.conversation_plans import (
    NODES_MAX,
    ConversationPlans,
    DuePing,
    PlannedCall,
    RestoredConversation,
)
from holdfast.engine.cache.shared_plans import SharedPlans
from holdfast.engine.cache.single_flight import FlightKey
from holdfast.engine.inject.anthropic_body import AnthropicBody, append_reply
from holdfast.engine.inject.gemini_body import GeminiBody
from holdfast.engine.inject.openai_body import (
    CACHE_KEY_FIELD,
    RETENTION_FIELD,
    SESSION_FIELD,
    ChatBody,
    OpenAIBody,
    OpenRouterBody,
    ResponsesBody,
)
from holdfast.engine.inject.raw_body import (
    PlacedBreakpoints,
    RawBody,
    RawItem,
    add_planned_breakpoints,
    check_same_content,
    derive_cache_scope,
    list_client_breakpoints,
    place_planned_breakpoints,
    plan_raw_call,
)
from holdfast.errors import ProviderError, UserError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import PingKind
from holdfast.events.payloads.calls import VOLATILE_PREFIX
from holdfast.gateway.recording.fingerprint import OWN_SESSION_PREFIX
from holdfast.gateway.rewrite.operations import (
    BREAKPOINTS_MISSING,
    CACHE_KEY_MISSING,
    EXPLICIT_BREAKPOINT_MISSING,
    RETENTION_SHORT,
    TOOLS_UNSORTED,
    RequestEdits,
)
from holdfast.gateway.rewrite.request_analysis import GatewayPing, RequestAnalysis, cached_prefixes
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.planning.idle_times import WaitsFor
from holdfast.planning.keep_alive import closing_entry
from holdfast.planning.learned import ANYBODY, Learner
from holdfast.providers.anthropic import anthropic
from holdfast.providers.openai_common import CACHE_KEY_CHARS_MAX, EXTENDED_RETENTION, fit_cache_key
from holdfast.providers.openrouter import SESSION_ID_CHARS_MAX
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

# How old what other conversations learned may be: reading it takes milliseconds, and idle times change slowly.
LEARNED_SECONDS = 300.0

# Larger requests and responses are not held in memory for a ping.
PING_BYTES_MAX = 4 * 1024 * 1024

# Other hosts with OpenAI's formats answer 400 to a field that they do not know, as Groq does, or ignore it.
_TAKE_CACHE_KEY = ("openai", "openai-chat", "azure")
_TAKE_RETENTION = ("openai", "openai-chat")


class ConversationRewriter:
    """Plans the requests of one process; conversations are found again by their content. Thread-safe."""

    def __init__(
        self,
        models: Models,
        volatile: VolatileExtractor | None = None,
        *,
        restore: Callable[[], Iterable[RestoredConversation]] = tuple,
        read_learned: Callable[[], tuple[Event, ...]] | None = None,
        session: str | None = None,
        unfixed: frozenset[str] = frozenset(),
        nodes_max: int = NODES_MAX,
        shared: SharedPlans | None = None,
    ) -> None:
        """`restore` reads the conversations of earlier processes; it is called before the first request is planned.
        `read_learned` reads the newest `cache.learned` events; without it, conversations learn only within the process.

        `session` is the cache key of all OpenAI requests; by default it is derived from each. Anti-patterns in
        `unfixed` are left as they are. `nodes_max` bounds how many messages are remembered. `shared` holds what other
        processes on the same store know.
        """
        self._models = models
        self._volatile = volatile or VolatileExtractor()
        self._session = session
        self._unfixed = unfixed
        self._shared = shared
        self._plans = ConversationPlans(nodes_max=nodes_max, shared=shared)
        self._tool_orders: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self._restore: Callable[[], Iterable[RestoredConversation]] | None = restore
        self._read_learned, self._learned_at = read_learned, -math.inf
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
        learner: Learner = ANYBODY,
    ) -> RequestAnalysis:
        """`path` is the request's; Gemini names the model there. `provider` is the host, where it has the format of
        another, and `path_fields` are the fields that it has in the path instead of the body.

        May raise anything for a body that we do not understand; the caller then forwards the original.
        """
        self._restore_conversations()
        self._refresh_learned(at)
        raw = split_body(adapter_name, body, path=path, path_fields=path_fields)
        provider = provider or raw.adapter.name
        row = resolve_model(provider, raw.model, self._models)
        if row.cache.kind == "none" or (isinstance(raw, AnthropicBody) and row.cache.kind != "explicit"):
            raise UserError("nothing is known of this model's cache, so no rewrite is known to help")
        edits = RequestEdits(self._volatile, self._unfixed)
        if edits.should_fix(TOOLS_UNSORTED):
            self._restore_tool_order(raw, edits, at)
        role = _move_volatile_text(raw, edits)
        # Without our own key: it is derived from the conversation.
        scope = derive_cache_scope(raw, row, account)
        learning_scope = learner.make_scope(row.id)
        call = plan_raw_call(self._plans, raw, row, scope=scope, learning_scope=learning_scope, at=at)
        placed = _place_breakpoints(raw, row, call, provider=provider, edits=edits)
        call = self._plans.mark_sent(call, placed.breakpoints)
        if isinstance(raw, OpenAIBody):
            self._add_session_fields(raw, row, provider, edits)
        if edits.moved_text:
            # After the last breakpoint, so that it is neither cached nor part of a later request's prefix.
            raw.append_text(edits.moved_text, role)
        rewritten = raw.encode() if edits.changes else None
        prefixes = cached_prefixes(call.digests, placed.breakpoints, row.cache)
        return RequestAnalysis(
            raw.adapter,
            row,
            rewritten,
            tuple(edits.changes),
            FlightKey(scope, prefixes),
            call,
            accepts_pings=isinstance(raw, AnthropicBody) and provider == raw.adapter.name,
            moved_bytes=len(edits.moved_text.encode()),
        )

    def record_response(self, call: PlannedCall, response: bytes | None) -> None:
        """`response` is the decompressed body of a complete and successful response, else None."""
        self.record_usage(call, find_response_usage(response) if response is not None else None)

    def record_usage(self, call: PlannedCall, usage: Usage | None) -> None:
        """None if the call failed."""
        if usage is None or usage == Usage():
            self._plans.fail_call(call)
        else:
            self._plans.complete_call(call, usage)

    def plan_ping(self, analysis: RequestAnalysis, response: bytes) -> DuePing | None:
        """The next ping after this call; None if none is expected to pay, or none is possible."""
        # Bedrock and Vertex document no request without output.
        if not analysis.accepts_pings or len(response) > PING_BYTES_MAX:
            return None
        return self._plans.plan_ping(analysis.call, analysis.row, _find_wait(response))

    def is_newest_anywhere(self, analysis: RequestAnalysis) -> bool:
        """Whether no process on the store has answered a later call of the conversation."""
        return self._plans.is_newest_anywhere(analysis.call)

    def plan_takeover(self, analysis: RequestAnalysis, response: bytes) -> DuePing | None:
        """The ping to send if the process that has continued the conversation does not; None if there is none."""
        return self._plans.plan_takeover(analysis.call, analysis.row, _find_wait(response))

    def encode_ping(
        self, analysis: RequestAnalysis, due: DuePing, *, sent: bytes, response: bytes
    ) -> GatewayPing | None:
        """The ping as a request; None if this one cannot be sent without output, or its reply not be repeated."""
        call = analysis.call
        parameters = anthropic.ping_parameters(anthropic.decode_request(sent).parameters)
        if len(sent) > PING_BYTES_MAX or anthropic.find_ping_conflict(parameters) is not None:
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

    def _add_session_fields(self, raw: OpenAIBody, row: Model, provider: str, edits: RequestEdits) -> None:
        """What keeps a conversation on one cache, for as long as it costs nothing; a client's own stay."""
        needs_key = edits.should_fix(CACHE_KEY_MISSING)
        if isinstance(raw, OpenRouterBody):
            # Requests with the same id are routed to the same host, whose cache they share.
            if needs_key and not raw.has_member(SESSION_FIELD):
                key = self._session or derive_conversation_key(raw)
                raw.members[SESSION_FIELD] = encode_json(fit_cache_key(key, SESSION_ID_CHARS_MAX))
                edits.record_change(CACHE_KEY_MISSING, SESSION_FIELD)
            return
        if needs_key and provider in _TAKE_CACHE_KEY and not raw.has_member(CACHE_KEY_FIELD):
            cache_key = self._session or derive_cache_key(raw, row)
            if cache_key is not None:
                raw.members[CACHE_KEY_FIELD] = encode_json(fit_cache_key(cache_key, CACHE_KEY_CHARS_MAX))
                edits.record_change(CACHE_KEY_MISSING, CACHE_KEY_FIELD)
        retentions = row.cache.ttls_seconds.keys()
        is_choice = row.cache.kind == "implicit" and EXTENDED_RETENTION in retentions and len(retentions) > 1
        is_choice = is_choice and edits.should_fix(RETENTION_SHORT) and not raw.has_member(RETENTION_FIELD)
        if provider in _TAKE_RETENTION and is_choice:
            raw.members[RETENTION_FIELD] = encode_json(EXTENDED_RETENTION)
            edits.record_change(RETENTION_SHORT, RETENTION_FIELD)

    def _restore_conversations(self) -> None:
        with self._lock:
            if self._restore is not None:
                restore, self._restore = self._restore, None
                try:
                    self._plans.restore(restore())
                except Exception as error:  # noqa: BLE001 - without the log the planner starts from nothing
                    logger.warning("earlier conversations were not restored: %s", type(error).__name__)

    def _refresh_learned(self, at: float) -> None:
        with self._lock:
            if self._read_learned is None or at - self._learned_at < LEARNED_SECONDS:
                return
            self._learned_at = at
        try:
            self._plans.set_learned_events(self._read_learned())
        except Exception as error:  # noqa: BLE001 - what was read before still holds
            logger.warning("what earlier conversations learned was not read: %s", type(error).__name__)

    def _restore_tool_order(self, raw: RawBody, edits: RequestEdits, at: float) -> None:
        """Tools that an earlier request listed in another order are listed as there; others stay as they are."""
        # A breakpoint on a tool covers the tools before it, so another order would change what it caches.
        if len(raw.tools) < 2 or not raw.is_tool_order_free or any(map(raw.is_marked, raw.tools)):
            return
        by_digest = {hashlib.sha256(tool).digest(): tool for tool in raw.tools}
        digests = sorted(by_digest)
        key = hashlib.sha256(b"".join(digests)).digest()
        with self._lock:
            order = self._tool_orders.get(key)
        if order is None:
            order = self._find_restored_order(raw, tuple(by_digest))
            if self._shared is not None:
                agreed = self._shared.agree_on_order(key.hex(), tuple(map(digests.index, order)), at=at)
                order = tuple(digests[place] for place in agreed)
        with self._lock:
            order = self._tool_orders.setdefault(key, order)
            self._tool_orders.move_to_end(key)
            while len(self._tool_orders) > REMEMBERED_HEADS_MAX:
                self._tool_orders.popitem(last=False)
        if order != tuple(by_digest) and len(by_digest) == len(raw.tools):
            raw.tools = [by_digest[digest] for digest in order]
            edits.record_change(TOOLS_UNSORTED, "tools")

    def _find_restored_order(self, raw: RawBody, received: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The order of the tools in an earlier process; the received one if there was none."""
        segments = raw.decode_head().segments
        blocks = [block for segment in segments if segment.tools for block in raw.adapter.encode_segment(segment)]
        order = self._plans.find_tool_order(raw.adapter, blocks) if len(blocks) == len(received) else None
        return received if order is None else tuple(received[index] for index in order)


def split_body(adapter_name: str, body: bytes, *, path: str, path_fields: Mapping[str, str | bool]) -> RawBody:
    """Raises an error for a body that is no request in the adapter's format."""
    named = path_fields.get("model")
    model = named if isinstance(named, str) else None
    match adapter_name:
        case "anthropic":
            return AnthropicBody(body, model=model)
        case "openai-chat":
            return ChatBody(body, model=model)
        case "openai":
            return ResponsesBody(body, model=model)
        case "openrouter":
            return OpenRouterBody(body, model=model)
        case "gemini":
            return GeminiBody(body, path=path)
        case _:
            raise UserError(f"no rewrite is known for requests in the format of {adapter_name}")


def _place_breakpoints(
    raw: RawBody, row: Model, call: PlannedCall, *, provider: str, edits: RequestEdits
) -> PlacedBreakpoints:
    """Raises UserError if that would change the content of the request."""
    head, messages = list(raw.system), list(raw.messages)
    slots, finding = row.cache.breakpoints_max, BREAKPOINTS_MISSING
    if not edits.should_fix(EXPLICIT_BREAKPOINT_MISSING if row.cache.kind == "hybrid" else BREAKPOINTS_MISSING):
        return PlacedBreakpoints(list_client_breakpoints(raw, call) if raw.mark_name else (), is_changed=False)
    if row.cache.kind == "explicit" and raw.mark_name:
        placed = place_planned_breakpoints(raw, call, slots)
    elif row.cache.kind == "hybrid" and isinstance(raw, OpenAIBody) and provider in _TAKE_CACHE_KEY:
        # The implicit breakpoint at the newest message takes one of the provider's 4. Moved text gets that one, so
        # that the message before it needs its own.
        finding, free = EXPLICIT_BREAKPOINT_MISSING, slots - 1 if raw.takes_implicit_breakpoint else 0
        placed = add_planned_breakpoints(raw, call, free, end_ttl="30m" if edits.moved_text else None)
    else:
        return PlacedBreakpoints((), is_changed=False)
    if placed.is_changed:
        edits.record_change(finding, f"{len(placed.breakpoints)} placed")
    check_same_content(raw.decode_message, messages, raw.messages)
    if isinstance(raw, OpenAIBody):
        check_same_content(raw.decode_message, head, raw.system)
    return placed


def _move_volatile_text(raw: RawBody, edits: RequestEdits) -> str:
    """Takes volatile lines out of the system text, to be appended at the end; returns the role of what they become."""
    match raw:
        case OpenRouterBody() | AnthropicBody() | GeminiBody():
            # Appended to the last message, which must be the user's: after an assistant prefill they would be taken for
            # the model's own words. Gemini treats a missing role as the user's.
            if _role_of(raw.messages[-1]) != "user":
                return "user"
        case ResponsesBody() if raw.is_stored_by_provider:
            # The provider would store the moved text in the conversation.
            return "developer"
        case _:
            pass
    if isinstance(raw, OpenAIBody):
        return _move_from_messages(raw, edits)
    if raw.system:
        system: Json = msgspec.json.decode(b"[" + b",".join(bytes(item) for item in raw.system) + b"]")
        assert isinstance(system, list)
        rest, volatile = edits.extract_from_content(system[0] if isinstance(system[0], str) else system)
        if volatile:
            edits.record_move(volatile, "systemInstruction" if isinstance(raw, GeminiBody) else "system")
            items: Sequence[Json] = rest if isinstance(rest, list) else [rest] if rest else []
            raw.system = [encode_json(item) for item in items]
    return "user"


def _move_from_messages(raw: OpenAIBody, edits: RequestEdits) -> str:
    role = "developer" if isinstance(raw, ResponsesBody) else "system"
    kept: list[RawItem] = []
    for item in raw.system:
        message = msgspec.json.decode(item)
        rest, volatile = edits.extract_from_content(message.get("content"))
        if volatile:
            role = "system" if message["role"] == "system" else "developer"
            edits.record_move(volatile, message["role"])
            item = encode_json({**message, "content": rest})
        if rest or not volatile:
            kept.append(item)
    raw.system = kept
    if isinstance(raw, ResponsesBody) and raw.instructions:
        text, volatile = edits.extract_from_text(raw.instructions)
        if volatile:
            edits.record_move(volatile, "instructions")
            raw.members["instructions"] = encode_json(text)
    return role


def derive_cache_key(raw: OpenAIBody, row: Model) -> str | None:
    """The key of a request without one; None if no later request of its conversation could derive the same.

    From GPT-5.6 on a key separates caches, so conversations that begin with the same head share one. Before, it decides
    which machine serves a request, and one machine serves about 15 requests a minute (OpenAI, "Prompt caching"): there
    each conversation gets its own.
    """
    stored = raw.is_stored_by_provider
    if row.cache.kind == "implicit" and not stored:
        return derive_conversation_key(raw)
    system: list[Json] = [raw.instructions] if isinstance(raw, ResponsesBody) and raw.instructions else []
    system += [_find_content(raw.remove_marks(item)) for item in raw.system]
    if system or raw.tools:
        return _derive_key(system, raw.tools)
    return None if stored else derive_conversation_key(raw)


def derive_conversation_key(raw: OpenAIBody) -> str:
    """Equal for all requests of one conversation: from its first user message and its tools, whatever their order."""
    first = raw.first_user_message() or raw.messages[0]
    return _derive_key(_find_content(raw.remove_marks(first)), raw.tools)


def _derive_key(content: Json, tools: Sequence[RawItem]) -> str:
    digests = sorted(hashlib.sha256(tool).hexdigest() for tool in tools)
    return f"{OWN_SESSION_PREFIX}{sha256_hex(encode_json([content, digests]))[:32]}"


def _find_content(message: RawItem) -> Json:
    """The content of a message; a single text part equals a string."""
    content: Json = msgspec.json.decode(message).get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        return content[0].get("text", content)
    return content


def _find_wait(response: bytes) -> WaitsFor:
    # In a string the quotes would be escaped: this is a block's type, or the reason why the reply ended.
    return "tool" if b'"tool_use"' in response else "user"


def _role_of(message: RawItem) -> str:
    return msgspec.json.decode(message, type=_Role).role


class _Role(msgspec.Struct, frozen=True):
    role: str = "user"


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
    if response.lstrip()[:1] in (b"{", b"["):
        return find_usage(response)
    lines = [line for line in response.splitlines() if b'"usage' in line]
    return find_usage(b"\n\n".join(lines))
