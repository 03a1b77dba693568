"""Whose request a body is, told by its members, where nobody says."""

from collections.abc import Mapping

import msgspec

from holdfast.catalog.lookup import Models, find_model
from holdfast.errors import UserError
from holdfast.providers.registry import PROVIDERS

_ANTHROPICS_OWN = frozenset({"system", "stop_sequences", "thinking", "cache_control", "anthropic_version", "top_k"})
_CHATS_OWN = frozenset(
    {"max_completion_tokens", "stream_options", "response_format", "reasoning_effort", "prompt_cache_key", "stop"}
)
_CHATS_ROLES = frozenset({"system", "developer", "tool"})


class Recognised(msgspec.Struct, frozen=True):
    """`model` is the bare name, empty where the body has none; `because` says what told."""

    provider: str
    model: str
    because: str


def recognise(body: Mapping[str, object], *, told: str | None = None, models: Models | None = None) -> Recognised:
    """`told` is `provider:name`; what is told beats what is seen, and a model named in the body is kept."""
    own = body.get("model")
    name = own.removeprefix("models/") if isinstance(own, str) else ""
    if told is not None:
        provider, colon, given = told.partition(":")
        if not (colon and given) or provider not in PROVIDERS or PROVIDERS[provider].is_command:
            spoken = ", ".join(known.name for known in PROVIDERS.values() if not known.is_command)
            raise UserError(f"model {told[:120]!r} names no provider; write provider:name with one of {spoken}")
        return Recognised(provider, name or given, "as told")
    if "contents" in body:
        return Recognised("gemini", name, "it has `contents`")
    if "input" in body or "instructions" in body:
        return Recognised("openai", name, "it has `input`" if "input" in body else "it has `instructions`")
    if not isinstance(body.get("messages"), list):
        raise UserError("no prompt is in it: a request has `messages`, `input` or `contents`")
    return _by_messages(body, name, models)


def _by_messages(body: Mapping[str, object], name: str, models: Models | None) -> Recognised:
    for provider in ("anthropic", "openai-chat", "openrouter"):
        if name and _is_known(f"{provider}:{name}", models):
            return Recognised(provider, name, f"the model is one of {provider}'s")
    if "/" in name:
        return Recognised("openrouter", name, "the model's name has a vendor in front")
    for provider, members in (("anthropic", _ANTHROPICS_OWN), ("openai-chat", _CHATS_OWN)):
        if found := members & body.keys():
            return Recognised(provider, name, f"it has `{min(found)}`")
    if found := _CHATS_ROLES & _roles(body["messages"]):
        return Recognised("openai-chat", name, f"it has messages of the role {min(found)}")
    if name.startswith("claude"):
        return Recognised("anthropic", name, "the model is called claude")
    if "max_tokens" in body:
        return Recognised("anthropic", name, "it has `max_tokens`, and nothing of another provider's")
    return Recognised("openai-chat", name, "it has `messages`, and nothing of another provider's")


def _is_known(id: str, models: Models | None) -> bool:
    try:
        find_model(id, models)
    except UserError:
        return False
    return True


def _roles(messages: object) -> set[str]:
    listed = messages if isinstance(messages, list) else []
    return {str(message.get("role")) for message in listed if isinstance(message, dict)}
