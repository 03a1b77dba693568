"""OpenAI's Responses API in the simulator, and the list of OpenAI's models."""

from collections.abc import Iterable, Sequence

from holdfast.canonical.blocks import Block
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Parameters
from holdfast.canonical.reply import Reply
from holdfast.catalog.rows import Model
from holdfast.errors import ProviderError
from holdfast.providers.fields import extra_field
from holdfast.providers.openai_responses import openai_responses
from holdfast.simulator.dialect import Asked, Setting, Understood, model_asked_for, refuse, reported, spelled
from holdfast.simulator.openai.checks import check_responses_calls, model_named
from holdfast.simulator.openai.listing import describe, list_models
from holdfast.simulator.openai.reasoning import check_reasoning, sealed_reasoning
from holdfast.simulator.openai.understand import PROVIDER, Interface, understand

_RESPONSES = "/v1/responses"
_COUNT = "/v1/responses/input_tokens"
_MODELS = "/v1/models"

_INTERFACE = Interface(
    adapter=openai_responses,
    prompt_name="input",
    output_tokens_unlimited=0,
    cache_options=frozenset({"mode", "ttl", "prewarm", "comparison_response_id"}),
    check_calls=check_responses_calls,
    check_thinking=check_reasoning,
)


class ResponsesDialect:
    provider = openai_responses.name
    routes = (f"POST {_RESPONSES}", f"POST {_COUNT}", f"GET {_MODELS}", f"GET {_MODELS}/ID")
    key_header = "authorization"
    request_id_header = "x-request-id"
    reply_id_prefix = "resp_sim"
    call_id_prefix = "call_"

    def takes(self, http_request: Asked) -> bool:
        if http_request.method == "POST":
            return http_request.path in (_RESPONSES, _COUNT)
        return http_request.method == "GET" and (
            http_request.path == _MODELS or bool(model_asked_for(http_request.path, _MODELS))
        )

    def understand(self, http_request: Asked, setting: Setting) -> Understood | bytes:
        if http_request.path == _MODELS:
            return plain_json(list_models(setting.models))
        if name := model_asked_for(http_request.path, _MODELS):
            return plain_json(describe(model_named(name, setting.models, provider=PROVIDER)))
        wire = openai_responses.read_request(http_request.body, http_request.headers)
        _check_state(wire.parameters)
        counting = http_request.path == _COUNT
        understood = understand(wire, setting, _INTERFACE, counting=counting)
        _check_reasoning_options(wire.parameters, understood.model)
        if counting:
            return plain_json({"object": "response.input_tokens", "input_tokens": understood.call.tokens})
        return understood

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        return sealed_reasoning(content, model=request.parameters.model, prefix=request.prefix)

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        return spelled(openai_responses, reply, stream=request.parameters.stream)

    def refusal(self, error: ProviderError) -> tuple[int, bytes]:
        return reported(openai_responses, error)


def _check_reasoning_options(parameters: Parameters, model: Model) -> None:
    """A model without reasoning takes neither an effort nor a request for encrypted reasoning."""
    if model.reasons:
        return
    if parameters.thinking_json is not None:
        raise refuse("Unsupported parameter: 'reasoning.effort' is not supported with this model.")
    # Decoding drops the value that our adapter always sends, so a missing extra field means that value.
    if "reasoning.encrypted_content" in dict(parameters.extra).get("include", "reasoning.encrypted_content"):
        raise refuse("Encrypted content is not supported with this model.")


def _check_state(parameters: Parameters) -> None:
    """The simulator stores no responses, so state from earlier ones cannot be referenced."""
    for name in ("previous_response_id", "conversation"):
        if extra_field(parameters, name) is not None:
            raise refuse(f"'{name}' was not found: nothing is stored; send the whole input.")
