"""Events for cache controls that users set while a session runs."""

from holdfast.events.controls import TtlSetting
from holdfast.events.payload import Payload


class CacheControlled(Payload, frozen=True, tag="cache.controlled"):
    """The cache controls that apply to the following requests.

    After a cache invalidation, `nonce` precedes the stable system prompt and `cache_key` replaces the session id.
    `reason` says why cached content is lost, if it is; `new_prefix` that the prompt starts with different bytes.
    `refreshes` counts how often the session was asked to refresh its stable prefix.
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
