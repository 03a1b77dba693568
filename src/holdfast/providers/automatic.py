"""Where does a provider place the mark that a request asks for at its top, and on no block?"""

from collections.abc import Sequence

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Mark, Parameters
from holdfast.catalog.rows import CacheRules
from holdfast.providers.fields import extra_field, field_of


def automatic_mark(
    parameters: Parameters, pieces: Sequence[Piece], marks: Sequence[Mark], rules: CacheRules
) -> tuple[Mark, ...]:
    """That mark, which stands behind all others; none where it is not asked for, not taken, or there already."""
    asked = extra_field(parameters, "cache_control")
    if asked is None or not rules.takes_automatic_mark:
        return ()
    last = next((index for index in reversed(range(len(pieces))) if pieces[index].markable), None)
    if last is None or any(mark.piece == last for mark in marks):
        return ()
    return (Mark(last, "1h" if field_of(asked, "ttl") == "1h" else "5m", "automatic"),)
