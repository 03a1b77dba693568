"""Explicit caches that clients created: workspace, content and expiry."""

from collections.abc import Mapping

import msgspec

from holdfast.clock import CountingIds
from holdfast.errors import ProviderError
from holdfast.providers.adapter import ExplicitCacheEntry

# Both limits bound the memory of a long-running simulator.
CACHES_MAX = 1_000
CACHES_BYTES_MAX = 256 * 1024 * 1024


class CachedContent(msgspec.Struct, frozen=True):
    """A cache, and the JSON members of the request that created it, byte for byte."""

    workspace: str
    cache: ExplicitCacheEntry
    members: Mapping[str, bytes]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.members.values()))


class SimulatedExplicitCaches:
    """The explicit caches of all workspaces, invisible to each other; expired ones are dropped."""

    def __init__(self, *, caches_max: int = CACHES_MAX, bytes_max: int = CACHES_BYTES_MAX) -> None:
        self._caches_max = caches_max
        self._bytes_max = bytes_max
        self._ids = CountingIds("sim")
        self._by_name: dict[str, CachedContent] = {}

    def new_id(self, at: float) -> str:
        return self._ids(at)

    def store(self, added: CachedContent, *, at: float) -> None:
        """Add a cache or replace the one with the same name; raises `ProviderError` if there is no room."""
        live = {name: content for name, content in self._by_name.items() if _is_live(content, at)}
        live[added.cache.name] = added
        if len(live) > self._caches_max or sum(content.size_bytes for content in live.values()) > self._bytes_max:
            raise ProviderError("rate_limit", "there is no room for another cache; delete some first", status=429)
        self._by_name = live

    def find(self, workspace: str, name: str, *, at: float) -> CachedContent | None:
        content = self._by_name.get(name)
        return content if content is not None and content.workspace == workspace and _is_live(content, at) else None

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)

    def list_live(self, *, at: float) -> tuple[CachedContent, ...]:
        """All live caches, in order of creation."""
        return tuple(content for content in self._by_name.values() if _is_live(content, at))


def _is_live(content: CachedContent, at: float) -> bool:
    return at < content.cache.expires_at
