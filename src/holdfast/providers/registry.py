"""Which providers there are, and the adapter of each."""

from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter
from holdfast.providers.anthropic import anthropic

ADAPTERS: tuple[Adapter, ...] = (anthropic,)


def adapter_for(provider: str) -> Adapter:
    for adapter in ADAPTERS:
        if adapter.name == provider:
            return adapter
    known = ", ".join(adapter.name for adapter in ADAPTERS)
    raise UserError(f"provider {provider!r} cannot be spoken to; these can: {known}")
