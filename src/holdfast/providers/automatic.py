"""Where Anthropic places the automatic breakpoint that a request asks for with a top-level `cache_control`."""

from collections.abc import Sequence

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Mark, Parameters
from holdfast.catalog.rows import CacheRules
from holdfast.providers.fields import extra_field, field_of


def automatic_mark(
    parameters: Parameters, blocks: Sequence[Piece], breakpoints: Sequence[Mark], rules: CacheRules
) -> tuple[Mark, ...]:
    """The breakpoint after all others; none if it was not asked for, is not supported, or is already there."""
    cache_control = extra_field(parameters, "cache_control")
    if cache_control is None or not rules.takes_automatic_mark:
        return ()
    # On the last cacheable block: an ineligible one makes the provider walk back (Anthropic, "Prompt caching").
    last = next((index for index in reversed(range(len(blocks))) if blocks[index].markable), None)
    if last is None or any(point.piece == last for point in breakpoints):
        return ()
    return (Mark(last, "1h" if field_of(cache_control, "ttl") == "1h" else "5m", "automatic"),)
