"""Cache events, and the controls that users set for a store or a session, with the protocol to store them."""

from decimal import Decimal
from typing import Annotated, Literal, Protocol

import msgspec

from holdfast.events.payloads import Payload
from holdfast.types.prompt import Ttl
from holdfast.types.usage import Usage

HOUR_SECONDS = 3_600

# Storage of an explicit cache is paid for by the hour, used or not: a week bounds what one setting can cost.
EXPLICIT_TTL_SECONDS_MAX = 7 * 24 * HOUR_SECONDS
FixedTtl = Literal["5m", "1h"]
TtlSetting = Literal["auto", "5m", "1h"]


class CacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for every session of a store.

    A provider that is not listed is enabled. `ttl` is the TTL of cache breakpoints; `auto` leaves it to the planner.
    `gemini_ttl_seconds` is the TTL of explicit Gemini caches; None leaves it to the session.
    """

    providers: dict[str, bool] = {}
    ttl: TtlSetting = "auto"
    gemini_ttl_seconds: Annotated[int, msgspec.Meta(ge=0, le=EXPLICIT_TTL_SECONDS_MAX)] | None = None
    allow_gemini_over_an_hour: bool = False


class SessionControl(msgspec.Struct, frozen=True):
    """Controls of one session.

    `generation` counts cache invalidations, `refreshes` how often the session was asked to refresh its stable prefix.
    """

    caching_enabled: bool = True
    generation: int = 0
    invalidated_at: float | None = None
    refreshes: int = 0


class CacheControls(msgspec.Struct, frozen=True):
    settings: CacheSettings = CacheSettings()
    session: SessionControl = SessionControl()


class ControlStore(Protocol):
    """Controls apply to every process that uses the store, from its next call on."""

    def controls(self, session_id: str) -> CacheControls:
        """The controls of a session, by one primary-key lookup."""

    async def look_up_controls(self, session_id: str) -> CacheControls:
        """The same, without blocking the event loop."""

    def session_controls(self) -> dict[str, SessionControl]:
        """The controls of every session that has any."""

    def settings(self) -> CacheSettings: ...

    def set_settings(self, settings: CacheSettings) -> None: ...

    def set_caching_enabled(self, session_id: str, *, enabled: bool) -> SessionControl: ...

    def invalidate(self, session_id: str, *, at: float) -> SessionControl:
        """Increases the generation; concurrent calls increase it once each."""

    def request_refresh(self, session_id: str) -> SessionControl:
        """Asks the session to refresh its stable prefix with its next turn."""


ExplicitCacheAction = Literal["created", "extended", "deleted", "lost", "refused"]
PingKind = Literal["refresh", "upgrade", "prewarm"]


class CacheControlsApplied(Payload, frozen=True, tag="cache.controls_applied"):
    """The cache controls that apply to the following requests.

    After a cache invalidation, `nonce` precedes the stable system prompt and `cache_key` replaces the session id.
    `reason` says why cached content is lost, if it is; `new_prefix` that the prompt starts with different bytes.
    `refreshes` counts how often the session was asked to refresh its stable prefix.
    """

    caching_enabled: bool = True
    ttl: TtlSetting = "auto"
    explicit_ttl_seconds: int | None = None
    generation: int = 0
    nonce: str = ""
    cache_key: str = ""
    reason: str = ""
    new_prefix: bool = False
    refreshes: int = 0


class ExplicitCacheChanged(Payload, frozen=True, tag="cache.explicit_cache"):
    """A change of an explicit cache at the provider.

    Storage is paid in advance at creation and extension. Deleting early is recorded as a negative storage cost, so that
    the amounts of all events add up to what was really stored.
    """

    action: ExplicitCacheAction
    name: str
    model: str
    digest: str
    tokens: int
    expires_at: float
    cost_usd: Decimal = Decimal(0)
    storage_cost_usd: Decimal = Decimal(0)
    reason: str = ""


class CachePinged(Payload, frozen=True, tag="cache.pinged"):
    """A request for no output: it refreshed the cache, extended its TTL, or prewarmed the stable prefix.

    `breakpoint_block` is the block of its last breakpoint, `block_count` the number of conversation blocks it contained
    and `prefix_tokens` their tokens; it was sent at `sent_at`.
    """

    kind: PingKind
    model: str
    ttl: Ttl
    usage: Usage
    cost_usd: Decimal
    pricing_version: str
    reason: str = ""
    sent_at: float = 0.0
    breakpoint_block: int | None = None
    block_count: int = 0
    prefix_tokens: int = 0


class CacheLearned(Payload, frozen=True, tag="cache.learned"):
    """What a session has observed so far: its idle times and its provider's cache behaviour. The newest one counts.

    Idle times are histograms by length, separately for waiting on a tool and on a person. An anchor is a breakpoint
    with the long TTL after a warm prefix: it was read after a pause, or lost. The provider's floor is above the largest
    prompt with a breakpoint of which nothing was cached, and at most the smallest of which something was.
    `growth_tokens` is how much its prompts grew from call to call, in total; older records do not have it.
    """

    model: str
    route: str
    workspace_hash: str | None
    calls: int
    tool_idle_times: tuple[float, ...]
    user_idle_times: tuple[float, ...]
    anchors_read: int = 0
    anchors_lost: int = 0
    upgrade_log_odds: float = 0.0
    floor_above_tokens: int = 0
    floor_misses: int = 0
    floor_at_most_tokens: int | None = None
    growth_tokens: int | None = None
