"""OpenRouter's API in the simulator: chat completions under its own path, and the model list."""

from collections.abc import Iterable, Sequence

from holdfast.canonical.blocks import Block
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Passage, Segment, Stability
from holdfast.canonical.reply import Reply
from holdfast.errors import ProviderError
from holdfast.providers.openrouter import openrouter
from holdfast.simulator.anthropic.thinking import sealed
from holdfast.simulator.dialect import Asked, Setting, Understood, reported, spelled
from holdfast.simulator.openrouter.cost import cost_of, stream_with_cost, with_cost
from holdfast.simulator.openrouter.listing import list_models
from holdfast.simulator.openrouter.understand import understand

_COMPLETIONS = "/api/v1/chat/completions"
_MODELS = "/api/v1/models"


class OpenRouterDialect:
    provider = openrouter.name
    routes = (f"POST {_COMPLETIONS}", f"GET {_MODELS}")
    key_header = "authorization"
    request_id_header = "x-request-id"
    reply_id_prefix = "gen-sim"
    call_id_prefix = "call_"

    def takes(self, http_request: Asked) -> bool:
        return (http_request.method, http_request.path) in (("POST", _COMPLETIONS), ("GET", _MODELS))

    def understand(self, http_request: Asked, setting: Setting) -> Understood | bytes:
        if http_request.path == _MODELS:
            return plain_json(list_models(setting.models, at=setting.at))
        return understand(openrouter.read_request(http_request.body, http_request.headers), setting)

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        """Thinking is moved before all other blocks, because clients send it back there."""
        ordered = openrouter.lower(Passage("assistant", tuple(content)))
        blocks = ordered.content if ordered else ()
        return sealed(blocks, model=request.parameters.model, prefix=request.prefix, encode_block=_encode_block)

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        encoded = spelled(openrouter, reply, stream=request.parameters.stream)
        cost = cost_of(reply.usage, request)
        if cost is None:
            return encoded
        return with_cost(encoded, cost) if isinstance(encoded, bytes) else stream_with_cost(encoded, cost)

    def refusal(self, error: ProviderError) -> tuple[int, bytes]:
        return reported(openrouter, error)


def _encode_block(block: Block) -> bytes:
    segment = Segment("reply", Stability.GROWING, "messages", passages=(Passage("assistant", (block,)),))
    return b"".join(encoded.data for encoded in openrouter.spell(segment))
