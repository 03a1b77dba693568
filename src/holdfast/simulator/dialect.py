"""What a provider's dialect offers the simulator: which requests are its own, what they mean, and how it answers."""

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
    """An HTTP request as it came."""

    method: str
    path: str
    headers: Mapping[str, str] = NOTHING
    body: bytes = b""
    query: Mapping[str, str] = NOTHING


class Setting(msgspec.Struct, frozen=True):
    """What a request meets: the models there are, whose request it is, what time it is, how tokens are counted,
    and which caches have a name."""

    models: Models
    workspace: str
    at: float
    count: TokenCounts
    named: NamedCaches


class DroppedBlock(msgspec.Struct, frozen=True):
    """A block that was sent and not shown to the model, as the provider reports it."""

    path: str
    reason: str
    type: str = "thinking_dropped"


class Understood(msgspec.Struct, frozen=True):
    """A request that the provider takes.

    `prefix` is what thinking in the reply is bound to. `dropped` are the blocks that the model does not see. A request
    that only prewarms the cache gets no output; `prewarmed` is then why its reply stops. A request with a
    `fingerprint` can be compared with others; its `wish` is what it is to be compared with.
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
        """How often the assistant has spoken; what it is to go on with does not count."""
        spoken = sum(message.role == "assistant" for message in self.messages)
        return spoken - (self.messages[-1].role == "assistant")


class Dialect(Protocol):
    """One provider's way to ask and to answer. Clock, script, cache and faults are kept for it by the simulator."""

    @property
    def provider(self) -> str:
        """Under which name the provider's adapter is known."""

    @property
    def routes(self) -> tuple[str, ...]:
        """Its endpoints, as they are told to whoever asks for another."""

    @property
    def key_header(self) -> str:
        """The header in which its clients are told to send the key."""

    @property
    def request_id_header(self) -> str: ...

    @property
    def reply_id_prefix(self) -> str: ...

    @property
    def call_id_prefix(self) -> str: ...

    def takes(self, asked: Asked) -> bool:
        """Whether this request is one of its own: by method and path, and by headers where two share a path."""

    def understand(self, asked: Asked, setting: Setting) -> Understood | bytes:
        """What is asked of the model; or the whole answer, where the model is not needed for it.

        Raises `ProviderError` for what the provider refuses.
        """

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        """The blocks of a reply, its thinking signed as the provider signs it."""

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        """The reply on the wire: at once, or one event a chunk where the request asked for a stream."""

    def refusal(self, error: ProviderError) -> tuple[int, bytes]:
        """Status and body with which the provider reports the failure."""


def spelled(adapter: Adapter, reply: Reply, *, stream: bool) -> bytes | Iterable[bytes]:
    """As `Dialect.spell`, where the adapter's words are all there is to say."""
    return adapter.write_stream(reply) if stream else adapter.write_reply(reply)


def reported(adapter: Adapter, error: ProviderError) -> tuple[int, bytes]:
    """As `Dialect.refusal`."""
    return adapter.write_error(error.kind, str(error), status=error.status)


def model_asked_for(path: str, models_path: str) -> str:
    """The name in the path that asks for one model; empty for any other path."""
    return path.removeprefix(f"{models_path}/") if path.startswith(f"{models_path}/") else ""


def refuse(reason: str, *, status: int = 400) -> ProviderError:
    return ProviderError("invalid_request", reason, status=status)


def model_named(name: str, models: Models, *, provider: str) -> Model:
    try:
        return find_model(f"{provider}:{name}", models)
    except UserError as error:
        # The client knows its models without the provider in front.
        raise refuse(f"model: {str(error).replace(f'{provider}:', '')}", status=404) from error
