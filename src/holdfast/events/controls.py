"""What people have set for the caches of all sessions and of one, as everything but a store sees it."""

from typing import Annotated, Literal, Protocol

import msgspec

HOUR_SECONDS = 3_600
KEPT_SECONDS_MAX = 7 * 24 * HOUR_SECONDS

FixedTtl = Literal["5m", "1h"]
TtlSetting = Literal["auto", "5m", "1h"]


class CacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What holds for every session of a store.

    A provider that is not named is on. `ttl` is the lifetime of marks, and `auto` leaves it to the plan.
    `gemini_ttl_seconds` is how long a cache lives that Gemini keeps under a name; None leaves it to the session.
    """

    providers: dict[str, bool] = {}
    ttl: TtlSetting = "auto"
    gemini_ttl_seconds: Annotated[int, msgspec.Meta(ge=0, le=KEPT_SECONDS_MAX)] | None = None
    allow_gemini_over_an_hour: bool = False


class SessionControl(msgspec.Struct, frozen=True):
    """What was said of one session: whether it may cache, how often its cache was given up, and how often it was told
    to take what its head would say now."""

    caching_enabled: bool = True
    generation: int = 0
    invalidated_at: float | None = None
    adoptions: int = 0


class Controls(msgspec.Struct, frozen=True):
    settings: CacheSettings = CacheSettings()
    session: SessionControl = SessionControl()


class KeepsControls(Protocol):
    """What is set holds for every process that uses the store, from its next call on."""

    def controls(self, session_id: str) -> Controls:
        """What holds for a session; one look, however long the session is."""

    def session_controls(self) -> dict[str, SessionControl]:
        """What was said of each session that something was said of."""

    def settings(self) -> CacheSettings: ...

    def set_settings(self, settings: CacheSettings) -> None: ...

    def enable(self, session_id: str, *, enabled: bool) -> SessionControl: ...

    def invalidate(self, session_id: str, *, at: float) -> SessionControl:
        """Begin another generation; two who do so at once begin two."""

    def adopt(self, session_id: str) -> SessionControl:
        """Have the session take what its head would say now, with its next turn."""
