"""Anthropic's Messages API in the simulator: its endpoints, errors and replies."""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.canonical.blocks import Block
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.reply import Reply
from holdfast.errors import ProviderError
from holdfast.providers.anthropic import anthropic
from holdfast.providers.failures import header
from holdfast.simulator.anthropic.checks import BINDING_BETA
from holdfast.simulator.anthropic.listing import describe, list_models
from holdfast.simulator.anthropic.reply import stream_with_input_transformations, with_input_transformations
from holdfast.simulator.anthropic.thinking import sealed
from holdfast.simulator.anthropic.understand import understand
from holdfast.simulator.dialect import Asked, Setting, Understood, model_asked_for, model_named, refuse, reported

# The SDK sends the newer version from 2.0.0 on.
API_VERSIONS = ("2023-06-01", "2026-10-21")

_MESSAGES = "/v1/messages"
_COUNT = "/v1/messages/count_tokens"
_MODELS = "/v1/models"


class AnthropicDialect:
    provider = anthropic.name
    routes = (f"POST {_MESSAGES}", f"POST {_COUNT}", f"GET {_MODELS}", f"GET {_MODELS}/ID")
    key_header = "x-api-key"
    request_id_header = "request-id"
    reply_id_prefix = "msg_sim"
    call_id_prefix = "toolu_"

    def takes(self, http_request: Asked) -> bool:
        if http_request.method == "POST":
            return http_request.path in (_MESSAGES, _COUNT)
        # Other providers list their models at the same path; only Anthropic's clients send one of these headers.
        is_anthropic = any(
            header(http_request.headers, name) is not None for name in ("anthropic-version", "x-api-key")
        )
        return (
            http_request.method == "GET"
            and is_anthropic
            and (http_request.path == _MODELS or bool(model_asked_for(http_request.path, _MODELS)))
        )

    def understand(self, http_request: Asked, setting: Setting) -> Understood | bytes:
        _check_version(http_request.headers)
        if http_request.path == _MODELS:
            return plain_json(list_models(setting.models, http_request.query))
        if name := model_asked_for(http_request.path, _MODELS):
            return plain_json(describe(model_named(name, setting.models, provider=anthropic.name)))
        if http_request.path == _COUNT:
            counted = understand(
                anthropic.read_count_request(http_request.body, http_request.headers), setting, counting=True
            )
            return plain_json({"input_tokens": counted.call.tokens})
        return understand(anthropic.read_request(http_request.body, http_request.headers), setting)

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        return sealed(content, model=request.parameters.model, prefix=request.prefix)

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        reports_dropped = BINDING_BETA in request.parameters.betas
        if not request.parameters.stream:
            body = anthropic.write_reply(reply)
            return with_input_transformations(body, request.dropped) if reports_dropped else body
        events = iter(anthropic.write_stream(reply))
        return stream_with_input_transformations(events, request.dropped) if reports_dropped else events

    def refusal(self, error: ProviderError) -> tuple[int, bytes]:
        return reported(anthropic, error)


def _check_version(headers: Mapping[str, str]) -> None:
    version = header(headers, "anthropic-version")
    if version is not None and version not in API_VERSIONS:
        raise refuse(f"anthropic-version: must be one of {', '.join(API_VERSIONS)}")
