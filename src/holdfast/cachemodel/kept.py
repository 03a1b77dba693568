"""What a call has left in a cache, as far as what was reported of it tells."""

from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules


def kept_tokens(usage: Usage, rules: CacheRules) -> int:
    """What is there to be read by the next call: as reported, or a prompt that is kept without a word."""
    match rules.kind:
        case "marks" | "breakpoints":
            return usage.cache_read + usage.cache_write
        case "implicit":
            return usage.tokens_sent if usage.tokens_sent >= rules.tokens_min else 0
        case "none":
            return 0
