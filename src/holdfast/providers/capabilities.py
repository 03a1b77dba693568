"""Which kind of prompt caching a model supports through our adapters."""

from typing import Literal

import msgspec

from holdfast.catalog.rows import Model

Caching = Literal["marks", "prefix", "none"]
"""`marks`: we place cache breakpoints. `prefix`: the provider caches repeated prefixes, and we keep them unchanged."""


class Capabilities(msgspec.Struct, frozen=True):
    """`explicit_caches`: a prefix can be stored under a name, for as long as the storage is paid for."""

    caching: Caching
    explicit_caches: bool

    @property
    def supports_prompt_caching(self) -> bool:
        return self.caching != "none"


def capabilities_of(model: Model) -> Capabilities:
    """A model with caching turned off, or whose requests may reach any cache, has none."""
    if not model.supports_prompt_caching:
        return Capabilities("none", explicit_caches=False)
    return Capabilities(_caching(model), explicit_caches=model.cache.explicit_tokens_min > 0)


def _caching(model: Model) -> Caching:
    match model.cache.kind:
        case "marks" | "breakpoints":
            return "marks"
        case "implicit":
            return "prefix"
        case "none":
            return "none"
