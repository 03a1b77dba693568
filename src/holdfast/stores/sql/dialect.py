"""The dialects of SQL. Every query is written once, and translated where it is sent to an engine.

Queries are in PostgreSQL's SQL with `?` for a parameter; the tables are in the schema `holdfast`. Of the statements
that only one engine has (COPY, PRAGMA, advisory locks) none comes through here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

# Queries differ by the number of parameters in a list: this many are kept, and others are translated again.
_TRANSLATIONS_MAX = 1_000
Row = tuple[object, ...]
_QUOTED = r"'(?:[^']|'')*'"

# PostgreSQL text cannot contain NUL: NUL and the escape character \x01 become two characters each.
_ESCAPES = str.maketrans({"\x00": "\x01\x01", "\x01": "\x01\x02"})


class SqlDialect:
    """How an engine's SQL differs: `words` are replaced, except in quoted text; `name` is its folder of migrations.

    `has_nul` says whether its text can contain the character NUL; if not, it is escaped. `newest_sessions_query` has
    the sessions of a JSON list of conversation keys, of each key at most as many as its second parameter.
    """

    def __init__(
        self,
        name: str,
        words: Mapping[str, str],
        *,
        version_query: str,
        size_query: str,
        newest_sessions_query: str,
        has_nul: bool,
    ) -> None:
        self.name = name
        self.version_query = version_query
        self.size_query = size_query
        self.newest_sessions_query = newest_sessions_query
        self._words = dict(words)
        # A word is replaced as a whole: `trunc` is not a part of `truncated`.
        alternatives = "|".join(rf"(?<!\w){re.escape(word)}" + r"(?!\w)" * word[-1].isalnum() for word in words)
        self._pattern = re.compile(f"{_QUOTED}|{alternatives}")
        # Kept on the instance: a translated query costs one look-up.
        self.translate: Callable[[str], str] = lru_cache(_TRANSLATIONS_MAX)(self._translate)
        self.encode_cells: Callable[[Sequence[object]], Sequence[object]] = tuple if has_nul else _escape_cells
        self.decode_rows: Callable[[list[Row]], list[Row]] = list if has_nul else _unescape_rows

    def _translate(self, query: str) -> str:
        return self._pattern.sub(lambda match: self._words.get(match[0], match[0]), query)


def _escape_cells(cells: Sequence[object]) -> Sequence[object]:
    return [escape_nul(cell) for cell in cells]


def _unescape_rows(rows: list[Row]) -> list[Row]:
    return [tuple(map(unescape_nul, row)) for row in rows]


def escape_nul(cell: object) -> object:
    return cell.translate(_ESCAPES) if isinstance(cell, str) and ("\x00" in cell or "\x01" in cell) else cell


def unescape_nul(cell: object) -> object:
    if not isinstance(cell, str) or "\x01" not in cell:
        return cell
    return cell.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")


SQLITE = SqlDialect(
    "sqlite",
    {
        "holdfast.": "",
        "least": "min",
        "greatest": "max",
        "strpos": "instr",
        # CAST to an integer truncates here and rounds in PostgreSQL.
        "trunc": "",
        "server_seconds()": "((julianday('now') - 2440587.5) * 86400.0)",
    },
    version_query="SELECT user_version FROM pragma_user_version",
    size_query="SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    newest_sessions_query="""
SELECT session_id FROM (
    SELECT session_id, row_number() OVER (PARTITION BY key ORDER BY at DESC) AS number
    FROM conversation_keys WHERE key IN (SELECT value FROM json_each(?))
) WHERE number <= ?""",
    has_nul=True,
)

POSTGRES = SqlDialect(
    "postgres",
    {"?": "%s", "%": "%%", "server_seconds()": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"},
    version_query="SELECT max(version) FROM holdfast.versions",
    size_query="""
SELECT CAST(sum(pg_total_relation_size(c.oid)) AS bigint)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'holdfast' AND c.relkind = 'r'""",
    newest_sessions_query="""
SELECT newest.session_id FROM json_array_elements_text(?) AS wanted, LATERAL (
    SELECT session_id FROM holdfast.conversation_keys WHERE key = wanted.value ORDER BY at DESC LIMIT ?
) AS newest""",
    has_nul=False,
)


# The default limit per statement of SQLite before 3.32, so every version accepts it.
PARAMETERS_MAX = 999


def repeat_params(count: int) -> str:
    """The parameters of a list."""
    return ", ".join("?" * count)
