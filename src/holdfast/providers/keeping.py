"""What an adapter offers whose provider keeps a prefix under a name, for a time that is paid for."""

from typing import Protocol, runtime_checkable

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.errors import ProviderError
from holdfast.providers.adapter import Endpoint


class NamedCache(msgspec.Struct, frozen=True):
    """A cache as the provider describes it; `expires_at` in seconds since the epoch."""

    name: str
    model: str
    tokens: int
    expires_at: float
    display_name: str = ""


@runtime_checkable
class KeepsCaches(Protocol):
    """Beside what every adapter offers; each request is an endpoint and a body."""

    def create_cache(self, parameters: Parameters, head: bytes, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        """`head` are the cacheable bytes of a scroll up to its stable end."""

    def extend_cache(self, name: str, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        """The cache lives for so long from now on."""

    def delete_cache(self, name: str) -> tuple[Endpoint, bytes]: ...

    def read_cache(self, body: bytes) -> NamedCache: ...

    def refer_to(self, parameters: Parameters, name: str) -> Parameters:
        """The parameters of a request that leaves its head out and names a cache instead."""

    def is_lost(self, error: ProviderError) -> bool:
        """Whether a request failed because the cache it named is no longer there."""
