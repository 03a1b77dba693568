"""Which dialects the simulator speaks, and which of them a request is in."""

from collections.abc import Callable, Iterable, Sequence

from holdfast.simulator.anthropic import AnthropicDialect
from holdfast.simulator.dialect import Asked, Dialect
from holdfast.simulator.gemini import GeminiDialect
from holdfast.simulator.openai import ChatDialect, ResponsesDialect
from holdfast.simulator.openrouter import OpenRouterDialect

DIALECTS: tuple[Callable[[], Dialect], ...] = (
    AnthropicDialect,
    OpenRouterDialect,
    GeminiDialect,
    ChatDialect,
    ResponsesDialect,
)
"""The first that takes a request answers it: those that know theirs by a header stand in front of those that do not."""


def all_dialects() -> tuple[Dialect, ...]:
    """One of each, as every simulated provider has its own."""
    return tuple(make() for make in DIALECTS)


def dialect_of(asked: Asked, dialects: Iterable[Dialect]) -> Dialect | None:
    return next((dialect for dialect in dialects if dialect.takes(asked)), None)


def refusing_dialect(asked: Asked, dialects: Sequence[Dialect]) -> Dialect:
    """The dialect to refuse a request in, also where it is nobody's."""
    return dialect_of(asked, dialects) or dialects[0]


def known_routes(dialects: Iterable[Dialect]) -> str:
    return ", ".join(dict.fromkeys(route for dialect in dialects for route in dialect.routes))
