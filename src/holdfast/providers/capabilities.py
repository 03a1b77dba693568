"""What a model can do through our adapters, declared only where it is so."""

from typing import Literal

import msgspec

from holdfast.catalog.rows import Model

Caching = Literal["marks", "prefix", "none"]
"""`marks`: we tell the provider what to keep. `prefix`: it keeps what repeats, and we keep that from moving."""


class Capabilities(msgspec.Struct, frozen=True):
    """`explicit_caches`: a prefix can be kept under a name, for as long as it is paid for."""

    caching: Caching
    explicit_caches: bool

    @property
    def supports_prompt_caching(self) -> bool:
        return self.caching != "none"


def capabilities_of(model: Model) -> Capabilities:
    """A row that is turned off, or whose requests may land anywhere, declares no cache."""
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
