"""Which dialects the simulator speaks, and which of them a request is in."""

from holdfast.simulator.anthropic import AnthropicDialect
from holdfast.simulator.dialect import Asked, Dialect

DIALECTS: tuple[Dialect, ...] = (AnthropicDialect(),)


def dialect_of(asked: Asked) -> Dialect | None:
    return next((dialect for dialect in DIALECTS if dialect.takes(asked)), None)


def refusing_dialect(asked: Asked) -> Dialect:
    """The dialect to refuse a request in, also where it is nobody's."""
    return dialect_of(asked) or DIALECTS[0]


def known_routes() -> str:
    return ", ".join(route for dialect in DIALECTS for route in dialect.routes)
