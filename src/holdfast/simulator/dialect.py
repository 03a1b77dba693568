"""The interface of a simulated provider API: which requests it takes, how it parses them and how it responds."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from holdfast.cachemodel.values import Call
from holdfast.canonical.blocks import Block, Message
from holdfast.canonical.prompt import Parameters
from holdfast.canonical.reply import Reply, StopReason
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.rows import Model
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Adapter
from holdfast.simulator.blocks import TokenCounts
from holdfast.simulator.diagnosing import Fingerprint, Wish
from holdfast.simulator.named import NamedCaches

NOTHING: Mapping[str, str] = MappingProxyType({})


class Asked(msgspec.Struct, frozen=True):
    """An HTTP request as received."""

    method: str
    path: str
    headers: Mapping[str, str] = NOTHING
    body: bytes = b""
    query: Mapping[str, str] = NOTHING


class Setting(msgspec.Struct, frozen=True):
    """What parsing a request depends on: catalog, workspace, time, token counter and explicit caches."""

    models: Models
    workspace: str
    at: float
    count: TokenCounts
    named: NamedCaches


class DroppedBlock(msgspec.Struct, frozen=True):
    """A block that was sent but not shown to the model, as the provider reports it."""

    path: str
    reason: str
    type: str = "thinking_dropped"


class Understood(msgspec.Struct, frozen=True):
    """A request that the provider accepts.

    `prefix` is what thinking in the reply is bound to. `dropped` are the blocks that the model does not see. A request
    that only prewarms the cache gets no output; `prewarm_stop_reason` is then the stop reason of its reply. A request
    with a `fingerprint` can be compared with others; `diagnosis_request` says which earlier reply to compare it with.
    """

    model: Model
    parameters: Parameters
    messages: tuple[Message, ...]
    call: Call
    conversations: tuple[str, ...]
    prefix: str
    dropped: tuple[DroppedBlock, ...] = ()
    prewarmed: StopReason | None = None
    fingerprint: Fingerprint | None = None
    wish: Wish | None = None

    @property
    def turn(self) -> int:
        """The number of assistant messages so far; a prefilled one at the end does not count."""
        assistant_messages = sum(message.role == "assistant" for message in self.messages)
        return assistant_messages - (self.messages[-1].role == "assistant")


class Dialect(Protocol):
    """One provider's API. The simulator handles clock, script, cache and faults for all of them."""

    @property
    def provider(self) -> str:
        """The name of the provider's adapter."""

    @property
    def routes(self) -> tuple[str, ...]:
        """Its endpoints, as listed in the error for an unknown one."""

    @property
    def key_header(self) -> str:
        """The header that the error for a missing key names."""

    @property
    def request_id_header(self) -> str: ...

    @property
    def reply_id_prefix(self) -> str: ...

    @property
    def call_id_prefix(self) -> str: ...

    def takes(self, http_request: Asked) -> bool:
        """Whether the request belongs to this API: by method and path, and by headers where two APIs share a path."""

    def understand(self, http_request: Asked, setting: Setting) -> Understood | bytes:
        """The parsed request, or the response body if no model is needed for it.

        Raises `ProviderError` for what the provider refuses.
        """

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        """The blocks of a reply with their thinking signed as the provider does it."""

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        """The reply in wire format: one body, or one event per chunk if the request asked for a stream."""

    def refusal(self, error: ProviderError) -> tuple[int, bytes]:
        """Status and body of the provider's error response."""


def spelled(adapter: Adapter, reply: Reply, *, stream: bool) -> bytes | Iterable[bytes]:
    """Implements `ProviderApi.encode_reply` for a provider whose adapter already writes the complete reply."""
    return adapter.write_stream(reply) if stream else adapter.write_reply(reply)


def reported(adapter: Adapter, error: ProviderError) -> tuple[int, bytes]:
    """Implements `ProviderApi.encode_error`."""
    return adapter.write_error(error.kind, str(error), status=error.status)


def model_asked_for(path: str, models_path: str) -> str:
    """The model name in the path of a request for one model; empty for any other path."""
    return path.removeprefix(f"{models_path}/") if path.startswith(f"{models_path}/") else ""


def refuse(reason: str, *, status: int = 400) -> ProviderError:
    return ProviderError("invalid_request", reason, status=status)


def model_named(name: str, models: Models, *, provider: str) -> Model:
    try:
        return find_model(f"{provider}:{name}", models)
    except UserError as error:
        # Clients of a provider's own API name models without our provider prefix.
        raise refuse(f"model: {str(error).replace(f'{provider}:', '')}", status=404) from error
