"""What is asked of a database beside its log, in the words that all engines share."""

import msgspec

from holdfast.events.access import KeyRow
from holdfast.stores.rows import COLUMNS

KEY_COLUMNS = KeyRow.__struct_fields__


class RecordQueries(msgspec.Struct, frozen=True):
    add_key: str
    key: str
    keys: str
    any_key: str
    revoke_key: str
    controls: str
    session_controls: str
    settings: str
    set_settings: str
    enable: str
    invalidate: str
    adopt: str
    forget_controls: str
    newest_place: str
    behind: str


def record_queries(mark: str, *, schema: str = "") -> RecordQueries:
    """The queries of an engine that writes `mark` for a parameter, and `schema` in front of a table."""
    keys, settings, controls = f"{schema}api_keys", f"{schema}settings", f"{schema}cache_controls"
    columns, marks = ", ".join(KEY_COLUMNS), ", ".join([mark] * len(KEY_COLUMNS))
    said = "caching_enabled, generation, invalidated_at, adoptions"
    set_now = f"SELECT value FROM {settings} WHERE name = 'cache'"
    return RecordQueries(
        add_key=f"INSERT INTO {keys} ({columns}) VALUES ({marks})",
        key=f"SELECT {columns} FROM {keys} WHERE id = {mark}",
        keys=f"SELECT {columns} FROM {keys} ORDER BY created_at, id",
        any_key=f"SELECT 1 FROM {keys} LIMIT 1",
        revoke_key=f"UPDATE {keys} SET revoked_at = {mark} WHERE id = {mark} AND revoked_at IS NULL",
        controls=f"SELECT ({set_now}), {said} FROM (SELECT 1) AS one LEFT JOIN {controls} ON session_id = {mark}",
        session_controls=f"SELECT session_id, {said} FROM {controls}",
        settings=set_now,
        set_settings=f"INSERT INTO {settings} (name, value) VALUES ('cache', {mark}) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        enable=f"INSERT INTO {controls} AS kept (session_id, {said}) VALUES ({mark}, {mark}, 0, NULL, 0) "
        "ON CONFLICT (session_id) DO UPDATE SET caching_enabled = excluded.caching_enabled",
        invalidate=f"INSERT INTO {controls} AS kept (session_id, {said}) VALUES ({mark}, 1, 1, {mark}, 0) "
        "ON CONFLICT (session_id) DO UPDATE SET generation = kept.generation + 1, "
        "invalidated_at = excluded.invalidated_at",
        adopt=f"INSERT INTO {controls} AS kept (session_id, {said}) VALUES ({mark}, 1, 0, NULL, 1) "
        "ON CONFLICT (session_id) DO UPDATE SET adoptions = kept.adoptions + 1",
        forget_controls=f"DELETE FROM {controls} WHERE session_id = {mark}",
        newest_place=f"SELECT coalesce(max(seq), 0) FROM {schema}events",
        behind=f"SELECT seq, {', '.join(COLUMNS)} FROM {schema}events WHERE seq > {mark} ORDER BY seq LIMIT {mark}",
    )
