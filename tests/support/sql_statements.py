"""Every statement that Holdfast sends to PostgreSQL during the tests, recorded at the driver.

`tests/golden/statements.json` has them all, in one shape for each length of a list. A test that sends one that is not
there fails until it is added (`HOLDFAST_GOLDEN=write`), and `tests/stores/postgres/test_plans.py` reads its plan.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import psycopg
from tests.support.goldens import is_writing_goldens

from holdfast.stores import __file__ as stores_file

STATEMENTS_FILE = Path(__file__).parents[1] / "golden" / "statements.json"
_LIST = re.compile(r"IN \(%s(?:, %s)+\)")
_STARTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
_SOURCES = str(Path(stores_file).parent)
_recorded: set[str] = set()


def start_recording() -> None:
    for owner, name in ((psycopg.Connection, "execute"), (psycopg.Cursor, "executemany")):
        setattr(owner, name, _recording(getattr(owner, name)))


def _recording(send: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(send)
    def record_and_send(self: object, statement: object, *arguments: object, **options: object) -> object:
        result = send(self, statement, *arguments, **options)
        if isinstance(statement, str) and sys._getframe(1).f_code.co_filename.startswith(_SOURCES):
            shape = normalize_statement(statement)
            if shape.startswith(_STARTS):
                _recorded.add(shape)
        return result

    return record_and_send


@cache
def normalize_statement(statement: str) -> str:
    return _LIST.sub("IN (%s, %s)", " ".join(statement.split()))


@cache
def load_statements() -> frozenset[str]:
    return frozenset(json.loads(STATEMENTS_FILE.read_text())) if STATEMENTS_FILE.exists() else frozenset()


def forget_recorded() -> None:
    _recorded.clear()


def check_recorded() -> None:
    unknown = sorted(_recorded - load_statements())
    if unknown and is_writing_goldens():
        STATEMENTS_FILE.write_text(json.dumps(sorted(load_statements() | _recorded), indent=0) + "\n")
        load_statements.cache_clear()
        return
    assert not unknown, (
        f"{STATEMENTS_FILE.name} lacks {unknown[0][:200]!r}: run this test with HOLDFAST_GOLDEN=write, "
        "then tests/stores/postgres/test_plans.py"
    )
