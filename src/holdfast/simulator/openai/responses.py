"""OpenAI's Responses API in the simulator, and the list of OpenAI's models."""

import datetime
from collections.abc import Sequence

from holdfast.catalog.lookup import Models
from holdfast.catalog.schema import Model
from holdfast.providers.json_splice import decode_json_or_none, extra_field, nested_field
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.openai_responses.items import make_signature
from holdfast.simulator.openai.request import OpenAIInterface, parse_openai_request
from holdfast.simulator.openai.validation import OPENAI, check_responses_calls, find_openai_model
from holdfast.simulator.provider_api import (
    AcceptedRequest,
    ProviderApi,
    RequestContext,
    SimulatedRequest,
    is_model_request,
    parse_model_name,
    refuse,
)
from holdfast.simulator.request_blocks import SentBlock
from holdfast.simulator.signatures import digest_thought, read_seal, write_seal
from holdfast.types.blocks import Block, Opaque, RedactedThinking, Thinking
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.prompt import Parameters

_RESPONSES = "/v1/responses"
_COUNT = "/v1/responses/input_tokens"
_MODELS = "/v1/models"


def check_openai_reasoning(blocks: Sequence[SentBlock]) -> None:
    """Raises `ProviderError` for encrypted content that is not ours, or does not match its summary."""
    for sent in blocks:
        summary: str | None = None
        match sent.block:
            case Thinking(text=text, signature=signature):
                summary, encoded = text, signature
            case Opaque(kind="reasoning", raw=raw):
                encoded = raw.decode(errors="replace")
            case _:
                continue
        encrypted = nested_field(decode_json_or_none(encoded), "encrypted_content")
        if encrypted is None:
            continue
        seal = read_seal(encrypted) if isinstance(encrypted, str) else None
        if seal is None or (summary is not None and seal.thought_digest != digest_thought(summary)):
            raise refuse(
                f"The encrypted content of the reasoning item at {sent.path} could not be verified; send it as it came."
            )


_INTERFACE = OpenAIInterface(
    adapter=openai_responses,
    prompt_name="input",
    cache_options=frozenset({"mode", "ttl", "prewarm", "comparison_response_id"}),
    check_calls=check_responses_calls,
    check_thinking=check_openai_reasoning,
)


class OpenAIResponsesApi(ProviderApi):
    adapter = openai_responses
    routes: tuple[str, ...] = (f"POST {_RESPONSES}", f"POST {_COUNT}", f"GET {_MODELS}", f"GET {_MODELS}/ID")
    reply_id_prefix = "resp_sim"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        if http_request.method == "POST":
            return http_request.path in (_RESPONSES, _COUNT)
        return is_model_request(http_request, _MODELS)

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        if http_request.path == _MODELS:
            return encode_json(list_openai_models(context.models))
        if name := parse_model_name(http_request.path, _MODELS):
            return encode_json(describe_openai_model(find_openai_model(name, context.models)))
        wire = openai_responses.decode_request(http_request.body, http_request.headers)
        _check_state(wire.parameters)
        counting = http_request.path == _COUNT
        accepted = parse_openai_request(wire, context, _INTERFACE, counting=counting)
        _check_reasoning_options(wire.parameters, accepted.model)
        if counting:
            return encode_json({"object": "response.input_tokens", "input_tokens": accepted.call.tokens})
        return accepted

    def sign_thinking(self, content: Sequence[Block], request: AcceptedRequest) -> tuple[Block, ...]:
        return sign_openai_reasoning(content, model=request.parameters.model, prefix=request.prefix)


def _check_reasoning_options(parameters: Parameters, model: Model) -> None:
    """A model without reasoning takes neither an effort nor a request for encrypted reasoning."""
    if model.has_reasoning:
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


def list_openai_models(models: Models) -> dict[str, object]:
    rows = [describe_openai_model(row) for row in models.values() if row.provider == OPENAI]
    return {"object": "list", "data": rows}


def describe_openai_model(row: Model) -> dict[str, object]:
    return {"id": row.name, "object": "model", "created": find_release_timestamp(row), "owned_by": "openai"}


def find_release_timestamp(row: Model) -> int:
    """The release date in seconds since the Unix epoch; 0 if unknown."""
    if row.released is None:
        return 0
    return int(datetime.datetime.combine(row.released, datetime.time(), datetime.UTC).timestamp())


_ID_CHARS = 24


def sign_openai_reasoning(content: Sequence[Block], *, model: str, prefix: str) -> tuple[Block, ...]:
    """The blocks of a reply, thinking with an id and encrypted content; redacted thinking has no summary."""
    blocks: list[Block] = []
    for index, block in enumerate(content):
        if isinstance(block, Thinking | RedactedThinking):
            text = block.text if isinstance(block, Thinking) else ""
            id = f"rs_{sha256_hex(f'{prefix}/{index}'.encode())[:_ID_CHARS]}"
            encrypted_content = write_seal(model, prefix, digest_thought(text))
            block = Thinking(text, make_signature(encrypted_content, id, (text,) if text else ()))
        blocks.append(block)
    return tuple(blocks)
