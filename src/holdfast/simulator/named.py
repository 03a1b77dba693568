"""The caches that clients have made under a name: whose they are, what they hold, and until when."""

from collections.abc import Mapping

import msgspec

from holdfast.clock import CountedIds
from holdfast.errors import ProviderError
from holdfast.providers.keeping import NamedCache

CACHES_MAX = 1_000
CACHES_BYTES_MAX = 256 * 1024 * 1024


class KeptContent(msgspec.Struct, frozen=True):
    """A cache, and the members of the request that made it, byte for byte."""

    workspace: str
    cache: NamedCache
    members: Mapping[str, bytes]

    @property
    def bytes_held(self) -> int:
        return sum(map(len, self.members.values()))


class NamedCaches:
    """Those of one workspace are nothing to another. What has lapsed is gone."""

    def __init__(self, *, caches_max: int = CACHES_MAX, bytes_max: int = CACHES_BYTES_MAX) -> None:
        self._caches_max = caches_max
        self._bytes_max = bytes_max
        self._ids = CountedIds("sim")
        self._kept: dict[str, KeptContent] = {}

    def new_id(self, at: float) -> str:
        return self._ids(at)

    def keep(self, kept: KeptContent, *, at: float) -> None:
        """Also in place of what has this name already; `ProviderError` where there is no room."""
        alive = {name: one for name, one in self._kept.items() if _lives(one, at)} | {kept.cache.name: kept}
        if len(alive) > self._caches_max or sum(one.bytes_held for one in alive.values()) > self._bytes_max:
            raise ProviderError("rate_limit", "there is no room for another cache; delete some first", status=429)
        self._kept = alive

    def find(self, workspace: str, name: str, *, at: float) -> KeptContent | None:
        kept = self._kept.get(name)
        return kept if kept is not None and kept.workspace == workspace and _lives(kept, at) else None

    def remove(self, name: str) -> None:
        self._kept.pop(name, None)

    def live(self, *, at: float) -> tuple[KeptContent, ...]:
        """All of them, in the order in which they were made."""
        return tuple(kept for kept in self._kept.values() if _lives(kept, at))


def _lives(kept: KeptContent, at: float) -> bool:
    return at < kept.cache.expires_at
