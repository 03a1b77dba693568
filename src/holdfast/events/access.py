"""API keys as a store holds them: digests and scopes, never the secrets themselves."""

from typing import Protocol

import msgspec

# The cookie in which the dashboard sends a key.
COOKIE = "holdfast_key"


class KeyRow(msgspec.Struct, frozen=True):
    """`digest` is that of the secret part; the key itself is shown once and never stored.

    `entity` is the URI with which the holder signs, if one was given. Requests made with the key are charged to its
    user and team.
    """

    id: str
    digest: str
    scope: str
    created_at: float
    name: str | None = None
    entity: str | None = None
    expires_at: float | None = None
    revoked_at: float | None = None
    user_id: str | None = None
    team_id: str | None = None


class KeepsKeys(Protocol):
    def add_key(self, row: KeyRow) -> None: ...

    def key(self, key_id: str) -> KeyRow | None: ...

    def all_keys(self) -> tuple[KeyRow, ...]:
        """All keys ever created, oldest first."""

    def has_keys(self) -> bool:
        """Whether a key was ever created.

        Revoked keys count, so that revoking the last one does not disable authentication.
        """

    def revoke_key(self, key_id: str, *, at: float) -> bool:
        """Revokes a key; False if there is no such key or it was already revoked."""
