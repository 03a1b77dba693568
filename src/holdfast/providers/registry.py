"""The providers: where each is reached, its adapter, and how to tell from a request body whose API it is for."""

import functools
import importlib
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from holdfast.catalog.lookup import Models, find_model_of_provider, shipped_models
from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter

# Fields and roles that only this API has.
_ANTHROPIC_FIELDS = frozenset({"system", "stop_sequences", "thinking", "cache_control", "anthropic_version", "top_k"})
_CHAT_FIELDS = frozenset(
    {"max_completion_tokens", "stream_options", "response_format", "reasoning_effort", "prompt_cache_key", "stop"}
)
_CHAT_ROLES = frozenset({"system", "developer", "tool"})
_OPENAI = ("https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY")


class Provider(msgspec.Struct, frozen=True):
    """The environment variables are those of the provider's own SDK; `base_url` is what that SDK appends paths to.

    `package` names the package under `holdfast.providers`, and the adapter instance in it.
    """

    name: str
    package: str
    base_url: str = ""
    base_url_variable: str = ""
    key_variable: str = ""

    @property
    def adapter(self) -> Adapter:
        return _adapter_in(self.package)

    @property
    def is_command(self) -> bool:
        """Whether it is a local command instead of a host."""
        return not self.base_url

    @property
    def path_prefix(self) -> str:
        """The path of the base URL, such as `/v1`, without a trailing slash."""
        return urlsplit(self.base_url).path.rstrip("/")


# Imported on first use: a process that talks to one provider should not pay for the import of all.
@functools.cache
def _adapter_in(package: str) -> Adapter:
    adapter: Adapter = getattr(importlib.import_module(f"holdfast.providers.{package}"), package)
    return adapter


# Anthropic's and Gemini's SDKs put the version into each path, OpenAI's and OpenRouter's into the base URL.
PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider("anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
        Provider("openai", "openai_responses", *_OPENAI),
        Provider("openai-chat", "openai_chat", *_OPENAI),
        Provider(
            "gemini", "gemini", "https://generativelanguage.googleapis.com", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"
        ),
        Provider(
            "openrouter", "openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_BASE_URL", "OPENROUTER_API_KEY"
        ),
        Provider("claude-code", "claude_code"),
    )
}


_FORMATS = {
    **dict.fromkeys(
        ("deepseek", "xai", "mistral", "groq", "together", "fireworks", "moonshot", "cerebras", "azure"), "openai-chat"
    ),
    "bedrock": "anthropic",
    "vertex": "anthropic",
}
"""Hosts that only the gateway knows, and the provider whose format most of their requests have."""


def get_provider(name: str) -> Provider:
    if name not in PROVIDERS:
        raise UserError(f"unknown provider {name!r}; known providers: {', '.join(PROVIDERS)}")
    return PROVIDERS[name]


def get_adapter(provider: str) -> Adapter:
    return get_provider(_FORMATS.get(provider, provider)).adapter


def find_adapter(provider: str) -> Adapter:
    """The adapter of a recorded call. An upstream with a name of its own nearly always has OpenAI's chat format."""
    return get_adapter(provider if provider in PROVIDERS or provider in _FORMATS else "openai-chat")


class DetectedApi(msgspec.Struct, frozen=True):
    """`model` is the bare name, empty if the body has none; `reason` says what identified the provider."""

    provider: str
    model: str
    reason: str


def detect_api(body: Mapping[str, object], *, model: str | None = None, models: Models | None = None) -> DetectedApi:
    """An explicit `provider:name` beats detection; a model named in the body is kept."""
    body_model = body.get("model")
    name = body_model.removeprefix("models/") if isinstance(body_model, str) else ""
    if model is not None:
        provider, colon, default_name = model.partition(":")
        if not (colon and default_name) or provider not in PROVIDERS or PROVIDERS[provider].is_command:
            names = ", ".join(option.name for option in PROVIDERS.values() if not option.is_command)
            raise UserError(f"model {model[:120]!r} names no provider; write provider:name with one of {names}")
        return DetectedApi(provider, name or default_name, "as specified")
    if "contents" in body:
        return DetectedApi("gemini", name, "it has `contents`")
    if "input" in body or "instructions" in body:
        return DetectedApi("openai", name, "it has `input`" if "input" in body else "it has `instructions`")
    if not isinstance(body.get("messages"), list):
        raise UserError("the body has no prompt: a request has `messages`, `input` or `contents`")
    return _detect_by_messages(body, name, models)


def _detect_by_messages(body: Mapping[str, object], name: str, models: Models | None) -> DetectedApi:
    catalog = shipped_models() if models is None else models
    for provider in ("anthropic", "openai-chat", "openrouter"):
        if name and find_model_of_provider(f"{provider}:{name}", catalog):
            return DetectedApi(provider, name, f"the model is one of {provider}'s")
    if "/" in name:
        return DetectedApi("openrouter", name, "the model's name starts with a vendor")
    for provider, members in (("anthropic", _ANTHROPIC_FIELDS), ("openai-chat", _CHAT_FIELDS)):
        if matching := members & body.keys():
            return DetectedApi(provider, name, f"it has `{min(matching)}`")
    messages = body["messages"] if isinstance(body["messages"], list) else []
    if roles := _CHAT_ROLES & {str(message.get("role")) for message in messages if isinstance(message, dict)}:
        return DetectedApi("openai-chat", name, f"it has messages of the role {min(roles)}")
    if name.startswith("claude"):
        return DetectedApi("anthropic", name, "the model is called claude")
    if "max_tokens" in body:
        return DetectedApi("anthropic", name, "it has `max_tokens`, and no field of another provider")
    return DetectedApi("openai-chat", name, "it has `messages`, and no field of another provider")
