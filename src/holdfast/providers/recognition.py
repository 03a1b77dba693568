"""Detects which provider's API a request body is for, from its fields."""

from collections.abc import Mapping

import msgspec

from holdfast.catalog.lookup import Models, find_model
from holdfast.errors import UserError
from holdfast.providers.registry import PROVIDERS

# Fields and roles that only this API has.
_ANTHROPIC_FIELDS = frozenset({"system", "stop_sequences", "thinking", "cache_control", "anthropic_version", "top_k"})
_CHAT_FIELDS = frozenset(
    {"max_completion_tokens", "stream_options", "response_format", "reasoning_effort", "prompt_cache_key", "stop"}
)
_CHAT_ROLES = frozenset({"system", "developer", "tool"})


class Recognised(msgspec.Struct, frozen=True):
    """`model` is the bare name, empty if the body has none; `reason` says what identified the provider."""

    provider: str
    model: str
    because: str


def recognise(body: Mapping[str, object], *, model: str | None = None, models: Models | None = None) -> Recognised:
    """An explicit `provider:name` beats detection; a model named in the body is kept."""
    body_model = body.get("model")
    name = body_model.removeprefix("models/") if isinstance(body_model, str) else ""
    if model is not None:
        provider, colon, default_name = model.partition(":")
        if not (colon and default_name) or provider not in PROVIDERS or PROVIDERS[provider].is_command:
            names = ", ".join(option.name for option in PROVIDERS.values() if not option.is_command)
            raise UserError(f"model {model[:120]!r} names no provider; write provider:name with one of {names}")
        return Recognised(provider, name or default_name, "as specified")
    if "contents" in body:
        return Recognised("gemini", name, "it has `contents`")
    if "input" in body or "instructions" in body:
        return Recognised("openai", name, "it has `input`" if "input" in body else "it has `instructions`")
    if not isinstance(body.get("messages"), list):
        raise UserError("the body has no prompt: a request has `messages`, `input` or `contents`")
    return _by_messages(body, name, models)


def _by_messages(body: Mapping[str, object], name: str, models: Models | None) -> Recognised:
    for provider in ("anthropic", "openai-chat", "openrouter"):
        if name and _is_known(f"{provider}:{name}", models):
            return Recognised(provider, name, f"the model is one of {provider}'s")
    if "/" in name:
        return Recognised("openrouter", name, "the model's name starts with a vendor")
    for provider, members in (("anthropic", _ANTHROPIC_FIELDS), ("openai-chat", _CHAT_FIELDS)):
        if matching := members & body.keys():
            return Recognised(provider, name, f"it has `{min(matching)}`")
    if roles := _CHAT_ROLES & _roles(body["messages"]):
        return Recognised("openai-chat", name, f"it has messages of the role {min(roles)}")
    if name.startswith("claude"):
        return Recognised("anthropic", name, "the model is called claude")
    if "max_tokens" in body:
        return Recognised("anthropic", name, "it has `max_tokens`, and no field of another provider")
    return Recognised("openai-chat", name, "it has `messages`, and no field of another provider")


def _is_known(id: str, models: Models | None) -> bool:
    try:
        find_model(id, models)
    except UserError:
        return False
    return True


def _roles(messages: object) -> set[str]:
    entries = messages if isinstance(messages, list) else []
    return {str(message.get("role")) for message in entries if isinstance(message, dict)}
