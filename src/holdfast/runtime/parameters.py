"""The request parameters of a session: everything in its requests but the prompt."""

import re

import msgspec

from holdfast.canonical.blocks import Json, mend_surrogates
from holdfast.canonical.prompt import Parameters
from holdfast.catalog.rows import Model
from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options

# Fields that the cache planner sets itself.
_RESERVED_FIELDS = re.compile(r"cache_control|cachedContent|diagnostics|prompt_cache_.*|session_id|stream_options")


def parameters_of(
    options: Options, config: Config, model: Model, *, adapter: Adapter, stored: Parameters | None
) -> Parameters:
    """The parameters of the options. A stored session keeps its own, because some of them are part of the cache key.

    Raises UserError for parameters that the provider's API cannot express, before anything is sent.
    """
    base = stored or Parameters(model.name, min(config.output_tokens_max, model.output_tokens_max), stream=True)
    changes: dict[str, object] = {}
    if "output_tokens_max" in options:
        changes["output_tokens_max"] = min(config.output_tokens_max, model.output_tokens_max)
    if "temperature" in options:
        changes["temperature"] = float(options["temperature"])
    if "thinking" in options:
        changes["thinking_json"] = _json("thinking", options["thinking"])
    if "tool_choice" in options:
        changes["tool_choice_json"] = _json("tool_choice", options["tool_choice"])
    if "betas" in options:
        changes["betas"] = tuple(options["betas"])
    if "stop_sequences" in options:
        changes["stop_sequences"] = tuple(_checked_stop_sequence(text) for text in options["stop_sequences"])
    if "request_fields" in options:
        changes["extra"] = tuple(_field(name, value) for name, value in options["request_fields"].items())
    parameters: Parameters = msgspec.structs.replace(base, **changes)
    if changes:
        # Encoding them once here raises for a parameter that the provider does not support.
        adapter.opening(parameters)
    return parameters


def _field(name: str, value: Json) -> tuple[str, str]:
    if _RESERVED_FIELDS.fullmatch(name):
        raise UserError(f"request_fields: {name!r} is set by the session, which manages the cache; leave it out")
    return name, _json(f"request_fields: {name!r}", value)


def _checked_stop_sequence(text: str) -> str:
    if not text or text != mend_surrogates(text):
        raise UserError("stop_sequences must be non-empty texts in valid Unicode")
    return text


def _json(name: str, value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UserError(f"{name} cannot be written as JSON: use texts, numbers, lists and mappings") from error
