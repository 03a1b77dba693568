"""The interface of a simulated provider API: which requests it takes, how it parses them and how it responds."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.cachemodel.values import CacheCall
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.schema import Model
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Adapter
from holdfast.simulator.cache_diagnostics import DiagnosisFingerprint, DiagnosisRequest
from holdfast.simulator.explicit_caches import SimulatedExplicitCaches
from holdfast.simulator.request_blocks import TokenCounts
from holdfast.types.blocks import Block, Message
from holdfast.types.prompt import Parameters
from holdfast.types.reply import Reply, StopReason

EMPTY: Mapping[str, str] = MappingProxyType({})
NAME_SHOWN_CHARS_MAX = 120


class SimulatedRequest(msgspec.Struct, frozen=True):
    """An HTTP request as received."""

    method: str
    path: str
    headers: Mapping[str, str] = EMPTY
    body: bytes = b""
    query: Mapping[str, str] = EMPTY


class RequestContext(msgspec.Struct, frozen=True):
    """What parsing a request depends on: catalog, workspace, time, token counter and explicit caches."""

    models: Models
    workspace: str
    at: float
    count: TokenCounts
    explicit_caches: SimulatedExplicitCaches


class DroppedBlock(msgspec.Struct, frozen=True):
    """A block that was sent but not shown to the model, as the provider reports it."""

    path: str
    reason: str
    type: str = "thinking_dropped"


class AcceptedRequest(msgspec.Struct, frozen=True):
    """A request that the provider accepts.

    `prefix` is what thinking in the reply is bound to. `dropped` are the blocks that the model does not see. A request
    that only prewarms the cache gets no output; `prewarm_stop_reason` is then the stop reason of its reply. A request
    with a `fingerprint` can be compared with others; `diagnosis_request` says which earlier reply to compare it with.
    """

    model: Model
    parameters: Parameters
    messages: tuple[Message, ...]
    call: CacheCall
    conversations: tuple[str, ...]
    prefix: str
    dropped: tuple[DroppedBlock, ...] = ()
    prewarm_stop_reason: StopReason | None = None
    fingerprint: DiagnosisFingerprint | None = None
    diagnosis_request: DiagnosisRequest | None = None

    @property
    def assistant_turns(self) -> int:
        """The number of assistant messages so far; a prefilled one at the end does not count."""
        assistant_messages = sum(message.role == "assistant" for message in self.messages)
        return assistant_messages - (self.messages[-1].role == "assistant")


class ProviderApi(ABC):
    """One provider's API. The simulator handles clock, script, cache and faults for all of them.

    `routes` are its endpoints, as listed in the error for an unknown one; the error for a missing key names
    `key_header`.
    """

    adapter: Adapter
    routes: tuple[str, ...]
    reply_id_prefix: str
    key_header = "authorization"
    request_id_header = "x-request-id"
    call_id_prefix = "call_"
    stream_type = "text/event-stream; charset=utf-8"

    @property
    def provider(self) -> str:
        return self.adapter.name

    @abstractmethod
    def accepts(self, http_request: SimulatedRequest) -> bool:
        """Whether the request belongs to this API: by method and path, and by headers where two APIs share a path."""

    @abstractmethod
    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        """The parsed request, or the response body if no model is needed for it.

        Raises `ProviderError` for what the provider refuses.
        """

    @abstractmethod
    def sign_thinking(self, content: Sequence[Block], request: AcceptedRequest) -> tuple[Block, ...]:
        """The blocks of a reply with their thinking signed as the provider does it."""

    def encode_reply(self, reply: Reply, request: AcceptedRequest) -> bytes | Iterable[bytes]:
        """The reply in wire format: one body, or one event per chunk if the request asked for a stream."""
        return self.adapter.encode_stream(reply) if request.parameters.stream else self.adapter.encode_reply(reply)

    def reply_headers(self, reply: Reply) -> Mapping[str, str]:
        """Headers of a reply that is not streamed."""
        return EMPTY

    def encode_error(self, error: ProviderError) -> tuple[int, bytes]:
        """Status and body of the provider's error response."""
        return self.adapter.encode_error(error.kind, str(error), status=error.status)


def parse_model_name(path: str, models_path: str) -> str:
    """The model name in the path of a request for one model; empty for any other path."""
    return path.removeprefix(f"{models_path}/") if path.startswith(f"{models_path}/") else ""


def is_model_request(http_request: SimulatedRequest, models_path: str) -> bool:
    """Whether it asks for the list of models or for one of them."""
    path = http_request.path
    return http_request.method == "GET" and (path == models_path or bool(parse_model_name(path, models_path)))


def refuse(reason: str, *, status: int = 400) -> ProviderError:
    return ProviderError("invalid_request", reason, status=status)


def find_simulated_model(provider: str, name: str, models: Models, *, refusal: str) -> Model:
    """The catalog row of a model; `refusal` is the provider's error text for a missing one, with `{name}` in it."""
    try:
        return find_model(f"{provider}:{name}", models)
    except UserError as error:
        raise refuse(refusal.format(name=name[:NAME_SHOWN_CHARS_MAX]), status=404) from error
