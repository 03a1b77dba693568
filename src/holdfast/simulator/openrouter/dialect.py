"""OpenRouter's side of the simulator: chat completions under a path of their own, and the list of models."""

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

    def takes(self, asked: Asked) -> bool:
        return (asked.method, asked.path) in (("POST", _COMPLETIONS), ("GET", _MODELS))

    def understand(self, asked: Asked, setting: Setting) -> Understood | bytes:
        if asked.path == _MODELS:
            return plain_json(list_models(setting.models, at=setting.at))
        return understand(openrouter.read_request(asked.body, asked.headers), setting)

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        """Thinking stands in front of everything else, because there it comes back."""
        ordered = openrouter.lower(Passage("assistant", tuple(content)))
        blocks = ordered.content if ordered else ()
        return sealed(blocks, model=request.parameters.model, prefix=request.prefix, spell=_spell_said)

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        written = spelled(openrouter, reply, stream=request.parameters.stream)
        cost = cost_of(reply.usage, request)
        if cost is None:
            return written
        return with_cost(written, cost) if isinstance(written, bytes) else stream_with_cost(written, cost)

    def refusal(self, error: ProviderError) -> tuple[int, bytes]:
        return reported(openrouter, error)


def _spell_said(block: Block) -> bytes:
    said = Segment("reply", Stability.GROWING, "messages", passages=(Passage("assistant", (block,)),))
    return b"".join(piece.data for piece in openrouter.spell(said))
