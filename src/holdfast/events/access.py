"""Who may ask a service for what: keys as they are kept, without what would open a door."""

from typing import Protocol

import msgspec

COOKIE = "holdfast_key"
"""In which a page in a browser carries a key."""


class KeyRow(msgspec.Struct, frozen=True):
    """`digest` is that of the secret part; the key itself is shown once and kept nowhere.

    `entity` is the URI under which the holder signs, where one was given; what goes through with the key is on the
    account of its user and its team.
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

    def key(self, key_id: str) -> KeyRow | None:
        """One row, found by its id."""

    def all_keys(self) -> tuple[KeyRow, ...]:
        """All that were ever made, oldest first."""

    def has_keys(self) -> bool:
        """Whether one was ever made; a revoked one counts, so that no revocation opens a door."""

    def revoke_key(self, key_id: str, *, at: float) -> bool:
        """From now on it opens nothing; whether there was such a key that still did."""
