"""Which providers there are, where each is reached, and the adapter of each."""

from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter
from holdfast.providers.anthropic import anthropic
from holdfast.providers.claude_code import claude_code
from holdfast.providers.gemini import gemini
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.openrouter import openrouter


class Provider(NamedTuple):
    """The variables are those that the provider's own client reads; `base_url` is what that client appends paths to."""

    adapter: Adapter
    base_url: str = ""
    base_url_variable: str = ""
    key_variable: str = ""

    @property
    def is_command(self) -> bool:
        """Whether it is a program on this machine and not a host."""
        return not self.base_url

    @property
    def path_prefix(self) -> str:
        """What stands in front of every path on the provider's host, such as `/v1`."""
        return urlsplit(self.base_url).path.rstrip("/")


PROVIDERS = {
    provider.adapter.name: provider
    for provider in (
        Provider(anthropic, "https://api.anthropic.com", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
        Provider(claude_code),
        Provider(openai_responses, "https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY"),
        Provider(openai_chat, "https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY"),
        Provider(openrouter, "https://openrouter.ai/api/v1", "OPENROUTER_BASE_URL", "OPENROUTER_API_KEY"),
        Provider(gemini, "https://generativelanguage.googleapis.com", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
    )
}


def provider_named(name: str) -> Provider:
    if name not in PROVIDERS:
        raise UserError(f"provider {name!r} cannot be spoken to; these can: {', '.join(PROVIDERS)}")
    return PROVIDERS[name]


def adapter_for(provider: str) -> Adapter:
    return provider_named(provider).adapter
