"""Cache controls that users set, for all sessions of a store and for a single one, and the protocol to store them."""

from typing import Annotated, Literal, Protocol

import msgspec

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
