"""What can happen when people set something for the caches of sessions that run."""

from holdfast.events.controls import TtlSetting
from holdfast.events.payload import Payload


class CacheControlled(Payload, frozen=True, tag="cache.controlled"):
    """What people have set holds for the requests that follow.

    `nonce` stands in front of the stable system prompt, and `cache_key` in the place of the session's id, once a cache
    was given up. `reason` says why what was cached is lost, where it is; `new_prefix` that the first bytes are others.
    `adoptions` counts how often people have told the session to take a newer head.
    """

    enabled: bool = True
    ttl: TtlSetting = "auto"
    kept_seconds: int | None = None
    generation: int = 0
    nonce: str = ""
    cache_key: str = ""
    reason: str = ""
    new_prefix: bool = False
    adoptions: int = 0
