"""The adapter protocols: what a provider's adapter has to do, what it may do beyond that, and what a model supports.

An adapter encodes our values into the provider's exact wire bytes, and decodes them. It does no I/O.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, Protocol, cast, runtime_checkable

import msgspec

from holdfast.catalog.schema import CacheKind, Model
from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment
from holdfast.types.reply import Delta, Reply
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer, WireEncoder
from holdfast.types.tool_spec import ToolSpec

PATH_HEADER = ":path"
"""The pseudo header that holds a request's path."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Endpoint(msgspec.Struct, frozen=True):
    """Where a request goes below the provider's base URL, and its headers, without credentials."""

    path: str
    headers: tuple[tuple[str, str], ...]
    method: str = "POST"


class WireRequest(msgspec.Struct, frozen=True):
    """A decoded request: its prompt, and the breakpoints that the caller placed."""

    prompt: Prompt
    plan: Plan
    parameters: Parameters


class StreamDecoder(Protocol):
    """Decodes one streamed response. The last delta of a complete one is `ReplyFinished`."""

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The deltas that this chunk completes; a chunk may end anywhere, even inside a UTF-8 character."""

    def partial(self) -> Reply | None:
        """What has arrived of an interrupted stream, as a valid message; None if nothing has."""


class Adapter(WireEncoder, Protocol):
    """Pure functions in pairs: the engine uses one half, the simulator and wrapped clients the other."""

    @property
    def name(self) -> str: ...

    def lower_entry(self, entry: HistoryEntry) -> HistoryEntry | None:
        """The entry reduced to what this provider can represent: other blocks are dropped or replaced by text.

        Encoding an entry and encoding its lowered form give the same bytes. None if nothing is left. Opaque blocks are
        assumed to be the provider's own.
        """

    def encode_segment(self, segment: Segment) -> tuple[EncodedBlock, ...]:
        """One encoded block per tool, system text or message block; a function of the segment alone."""

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        """Fields, as (name, JSON text), that keep a session on one cache: cache keys, TTLs, sticky routing.

        None where the cache is keyed by the prefix alone.
        """
        return ()

    def request_head(self, parameters: Parameters) -> bytes:
        """The body's JSON object up to the prompt, without the closing brace: everything that is not cacheable."""

    def endpoint(self, parameters: Parameters) -> Endpoint: ...

    def credentials(self, api_key: str) -> Mapping[str, str]:
        """The headers that carry the API key; Anthropic's SDK sends a bearer too since API version 2026-10-21."""
        return {"authorization": f"Bearer {api_key}"}

    def encode_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        """A whole request at once; a session keeps a `RequestBuffer` and encodes only what is new."""
        buffer = RequestBuffer(self, count=len)
        for segment in prompt.segments:
            buffer.extend(self.encode_segment(segment))
        indexes = [point.block_index for point in plan.breakpoints]
        if len(set(indexes)) < len(indexes):
            raise UserError("two cache breakpoints on one block; keep one of them")
        for index in indexes:
            if not 0 <= index < len(buffer.blocks):
                raise UserError(f"a cache breakpoint on block {index}, but the prompt has {len(buffer.blocks)} blocks")
        return buffer.render(self.request_head(parameters), plan.breakpoints)

    def decode_request(self, body: bytes, headers: Mapping[str, str] = NO_HEADERS) -> WireRequest:
        """The inverse of `encode_request`; `ProviderError("invalid_request")` if the body cannot be decoded.

        `headers` include the request's path under `PATH_HEADER`, because Gemini names the model in the path.
        """

    def encode_reply(self, reply: Reply) -> bytes: ...

    def decode_reply(self, body: bytes) -> Reply: ...

    def encode_stream(self, reply: Reply) -> Iterable[bytes]:
        """The response as the provider would stream it, one server-sent event per chunk."""

    def make_stream_decoder(self) -> StreamDecoder: ...

    def encode_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        """Status and body with which the provider reports such a failure."""

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError: ...


@runtime_checkable
class CacheDiagnosticsAdapter(Protocol):
    """Implemented in addition to `Adapter`. Asking for a diagnosis does not change what is cached."""

    def request_diagnosis(self, parameters: Parameters, previous_response_id: str | None) -> Parameters:
        """The parameters with a request to compare with an earlier response, if there was one.

        Parameters in which the caller already asks for a diagnosis are returned unchanged.
        """

    def requests_comparison(self, parameters: Parameters) -> bool:
        """Whether the parameters name an earlier response; without one the response has no diagnosis."""

    def is_diagnosis_refusal(self, error: ProviderError) -> bool:
        """Whether a request failed because it asked for a diagnosis."""


def expects_diagnosis(adapter: Adapter, parameters: Parameters) -> bool:
    """Whether the response to these parameters can hold a diagnosis; in any other the field is meaningless."""
    return _has_diagnostics(type(adapter)) and cast("CacheDiagnosticsAdapter", adapter).requests_comparison(parameters)


@functools.cache
def _has_diagnostics(kind: type[object]) -> bool:
    """Looked up once: checking for the methods of a protocol takes longer than using them."""
    return issubclass(kind, CacheDiagnosticsAdapter)


@runtime_checkable
class PingAdapter(Protocol):
    """Implemented in addition to `Adapter`. Such a ping refreshes what it reads and writes at its breakpoints."""

    def ping_parameters(self, parameters: Parameters) -> Parameters:
        """The parameters for a ping: no output, not streamed. What the cache key depends on stays."""

    def find_ping_conflict(self, parameters: Parameters) -> str | None:
        """The parameter that makes the provider refuse such a ping, or None."""


class ExplicitCacheEntry(msgspec.Struct, frozen=True):
    """An explicit cache as the provider describes it; `expires_at` is a Unix timestamp."""

    name: str
    model: str
    tokens: int
    expires_at: float
    display_name: str = ""


@runtime_checkable
class ExplicitCacheAdapter(Protocol):
    """Implemented in addition to `Adapter`; each request is an endpoint and a body."""

    def encode_create_cache(self, parameters: Parameters, head: bytes, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        """`head` holds the cacheable bytes of the request's stable prefix."""

    def encode_extend_cache(self, name: str, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        """Set the remaining TTL, counted from now."""

    def encode_delete_cache(self, name: str) -> tuple[Endpoint, bytes]: ...

    def decode_cache(self, body: bytes) -> ExplicitCacheEntry: ...

    def reference_cache(self, parameters: Parameters, name: str) -> Parameters:
        """The parameters of a request that names a cache instead of sending the stable prefix."""

    def is_cache_missing(self, error: ProviderError) -> bool:
        """Whether a request failed because the cache it named no longer exists."""


CachingKind = Literal["breakpoints", "prefix", "none"]
"""`breakpoints`: we place them. `prefix`: the provider caches repeated prefixes, and we keep them unchanged."""

_CACHING_KINDS: dict[CacheKind, CachingKind] = {
    "explicit": "breakpoints",
    "hybrid": "breakpoints",
    "implicit": "prefix",
    "none": "none",
}


class Capabilities(msgspec.Struct, frozen=True):
    """`explicit_caches`: a prefix can be stored under a name, for as long as the storage is paid for."""

    caching: CachingKind
    explicit_caches: bool

    @property
    def supports_prompt_caching(self) -> bool:
        return self.caching != "none"


def model_capabilities(model: Model) -> Capabilities:
    """A model with caching turned off, or whose requests may reach any cache, has none."""
    if not model.supports_prompt_caching:
        return Capabilities("none", explicit_caches=False)
    return Capabilities(_CACHING_KINDS[model.cache.kind], explicit_caches=model.cache.explicit_tokens_min > 0)


def encode_stable_blocks(
    segment: Segment,
    encode_tool: Callable[[ToolSpec], bytes],
    encode_text: Callable[[Text], bytes],
    *,
    tool_breakpoints: bool = False,
    accepts_breakpoint: Callable[[Text], bool],
) -> Iterator[EncodedBlock]:
    """One encoded block per tool and system text of the segment; `tool_breakpoints`: tools accept breakpoints."""
    layer, stability = segment.name, segment.stability
    for tool in segment.tools:
        # A deferred tool is not in the prefix; Anthropic answers 400 if it has a breakpoint.
        accepts = tool_breakpoints and not tool.is_deferred
        yield EncodedBlock(layer, "tools", stability, encode_tool(tool), accepts_breakpoint=accepts)
    for text in segment.system:
        accepts = accepts_breakpoint(text)
        yield EncodedBlock(layer, "system", stability, encode_text(text), accepts_breakpoint=accepts)
