"""The public API matches its snapshot."""

from pathlib import Path

from tests.support.goldens import is_writing_goldens
from tests.tidy.checks import public_api

ROOT = Path(__file__).parents[2]


def test_public_names_match_the_api_snapshot() -> None:
    if is_writing_goldens():
        (ROOT / public_api.SNAPSHOT).write_text(public_api.public_api(ROOT))
    found = public_api.unrecorded_names(ROOT)
    assert not found, "\n".join(("`make golden` rewrites the API snapshot", *found))
