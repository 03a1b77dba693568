"""The provider APIs that the simulator implements, and which of them a request belongs to."""

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
"""The first that takes a request answers it, so APIs that recognise a header come before those that do not."""


def all_dialects() -> tuple[Dialect, ...]:
    """New instances, one of each; every simulated provider has its own."""
    return tuple(make() for make in DIALECTS)


def dialect_of(http_request: Asked, dialects: Iterable[Dialect]) -> Dialect | None:
    return next((dialect for dialect in dialects if dialect.takes(http_request)), None)


def refusing_dialect(http_request: Asked, dialects: Sequence[Dialect]) -> Dialect:
    """The dialect of the error response; the first one if no dialect takes the request."""
    return dialect_of(http_request, dialects) or dialects[0]


def known_routes(dialects: Iterable[Dialect]) -> str:
    return ", ".join(dict.fromkeys(route for dialect in dialects for route in dialect.routes))
