"""The optional adapter protocol for explicit caches: a prefix stored under a name, with storage billed by time."""

from typing import Protocol, runtime_checkable

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.errors import ProviderError
from holdfast.providers.adapter import Endpoint


class NamedCache(msgspec.Struct, frozen=True):
    """An explicit cache as the provider describes it; `expires_at` is a Unix timestamp."""

    name: str
    model: str
    tokens: int
    expires_at: float
    display_name: str = ""


@runtime_checkable
class KeepsCaches(Protocol):
    """Implemented in addition to `Adapter`; each request is an endpoint and a body."""

    def create_cache(self, parameters: Parameters, head: bytes, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        """`head` holds the cacheable bytes of the request's stable prefix."""

    def extend_cache(self, name: str, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        """Set the remaining TTL, counted from now."""

    def delete_cache(self, name: str) -> tuple[Endpoint, bytes]: ...

    def read_cache(self, body: bytes) -> NamedCache: ...

    def refer_to(self, parameters: Parameters, name: str) -> Parameters:
        """The parameters of a request that names a cache instead of sending the stable prefix."""

    def is_lost(self, error: ProviderError) -> bool:
        """Whether a request failed because the cache it named no longer exists."""
