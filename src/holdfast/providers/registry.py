"""The providers: where each is reached, and its adapter, imported on first use."""

import functools
import importlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter

if TYPE_CHECKING:
    from holdfast.providers.anthropic import anthropic
    from holdfast.providers.claude_code import claude_code
    from holdfast.providers.gemini import gemini
    from holdfast.providers.openai_chat import openai_chat
    from holdfast.providers.openai_responses import openai_responses
    from holdfast.providers.openrouter import openrouter

    _all: tuple[Adapter, ...] = (anthropic, claude_code, gemini, openai_chat, openai_responses, openrouter)


class Provider(msgspec.Struct, frozen=True):
    """The environment variables are those of the provider's own SDK; `base_url` is what that SDK appends paths to.

    `package` names the package under `holdfast.providers`, and the adapter instance in it.
    """

    name: str
    home: str
    base_url: str = ""
    base_url_variable: str = ""
    key_variable: str = ""

    @property
    def adapter(self) -> Adapter:
        return _adapter_in(self.home)

    @property
    def is_command(self) -> bool:
        """Whether it is a local command instead of a host."""
        return not self.base_url

    @property
    def path_prefix(self) -> str:
        """The path of the base URL, such as `/v1`, without a trailing slash."""
        return urlsplit(self.base_url).path.rstrip("/")


_OPENAI = ("https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY")

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


def provider_named(name: str) -> Provider:
    if name not in PROVIDERS:
        raise UserError(f"unknown provider {name!r}; known providers: {', '.join(PROVIDERS)}")
    return PROVIDERS[name]


def adapter_for(provider: str) -> Adapter:
    return provider_named(provider).adapter


# Imported on first use: a process that talks to one provider should not pay for the import of all.
@functools.cache
def _adapter_in(home: str) -> Adapter:
    adapter: Adapter = getattr(importlib.import_module(f"holdfast.providers.{home}"), home)
    return adapter
