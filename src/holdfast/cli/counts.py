"""How numbers of things are said."""


def counted(count: int, noun: str) -> str:
    """One call, two calls."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
