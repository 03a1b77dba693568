"""SQL of the records beside the log, shared by all engines."""

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


def record_queries(param: str, *, schema: str = "") -> RecordQueries:
    """The queries of an engine that writes `param` for a parameter and `schema` as table prefix."""
    keys, settings, controls = f"{schema}api_keys", f"{schema}settings", f"{schema}cache_controls"
    columns, params = ", ".join(KEY_COLUMNS), ", ".join([param] * len(KEY_COLUMNS))
    fields = "caching_enabled, generation, invalidated_at, adoptions"
    select_settings = f"SELECT value FROM {settings} WHERE name = 'cache'"
    return RecordQueries(
        add_key=f"INSERT INTO {keys} ({columns}) VALUES ({params})",
        key=f"SELECT {columns} FROM {keys} WHERE id = {param}",
        keys=f"SELECT {columns} FROM {keys} ORDER BY created_at, id",
        any_key=f"SELECT 1 FROM {keys} LIMIT 1",
        revoke_key=f"UPDATE {keys} SET revoked_at = {param} WHERE id = {param} AND revoked_at IS NULL",
        # The one-row table makes the result one row even for a session without controls.
        controls=f"SELECT ({select_settings}), {fields} FROM (SELECT 1) AS one "
        f"LEFT JOIN {controls} ON session_id = {param}",
        session_controls=f"SELECT session_id, {fields} FROM {controls}",
        settings=select_settings,
        set_settings=f"INSERT INTO {settings} (name, value) VALUES ('cache', {param}) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        enable=f"INSERT INTO {controls} AS kept (session_id, {fields}) VALUES ({param}, {param}, 0, NULL, 0) "
        "ON CONFLICT (session_id) DO UPDATE SET caching_enabled = excluded.caching_enabled",
        invalidate=f"INSERT INTO {controls} AS kept (session_id, {fields}) VALUES ({param}, 1, 1, {param}, 0) "
        "ON CONFLICT (session_id) DO UPDATE SET generation = kept.generation + 1, "
        "invalidated_at = excluded.invalidated_at",
        adopt=f"INSERT INTO {controls} AS kept (session_id, {fields}) VALUES ({param}, 1, 0, NULL, 1) "
        "ON CONFLICT (session_id) DO UPDATE SET adoptions = kept.adoptions + 1",
        forget_controls=f"DELETE FROM {controls} WHERE session_id = {param}",
        newest_place=f"SELECT coalesce(max(seq), 0) FROM {schema}events",
        behind=f"SELECT seq, {', '.join(COLUMNS)} FROM {schema}events WHERE seq > {param} ORDER BY seq LIMIT {param}",
    )
