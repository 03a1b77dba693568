"""How many tokens a call left in the cache, judged by its reported usage."""

from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules


def kept_tokens(usage: Usage, rules: CacheRules) -> int:
    """What the next call can read: the reported reads and writes, or the whole prompt where writes are not reported."""
    match rules.kind:
        case "marks" | "breakpoints":
            return usage.cache_read + usage.cache_write
        case "implicit":
            return usage.tokens_sent if usage.tokens_sent >= rules.tokens_min else 0
        case "none":
            return 0
