"""Track the effect of compactions: whether they helped, and whether a session may compact automatically again."""

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.events.payloads_compaction import CompactionRefused, ContextCompacted

# Guards against compacting in a loop: if the prompt is not below 80 % of its size afterwards, that is a strike.
EFFECT_SHARE_MAX = 0.8
"""After a compaction the prompt must be smaller than this share of its size before, by the provider's count."""

STRIKES_MAX = 2
WAIT_CALLS = 10
# More calls than any session makes: a back-off that ends only with the next user message.
NEVER_CALLS = 1_000_000_000


class Watch(msgspec.Struct, frozen=True):
    """The state since the last compaction, which covered up to `last_message` and left `base_tokens`.

    `calls` were answered since and sent `sent_tokens`; `from_tokens` is the size before, until a call reports the size
    after. After STRIKES_MAX compactions that did not help, there is no automatic one until the next user message; after
    a refused one, not for WAIT_CALLS calls.
    """

    count: int = 0
    last_message: int = 0
    calls: int = 0
    from_tokens: int = 0
    strikes: int = 0
    waits: int = 0
    sent_tokens: int = 0
    base_tokens: int = 0

    @property
    def may_act(self) -> bool:
        """Not directly after another compaction, and not after repeated ones that did not help."""
        return not self.waits and self.strikes < STRIKES_MAX and (not self.count or self.calls > 1)


def after_compaction(watch: Watch, event: ContextCompacted, *, messages: int) -> Watch:
    return Watch(watch.count + 1, messages, 0, event.tokens_before, watch.strikes, base_tokens=event.tokens_after)


def after_call(watch: Watch, usage: Usage) -> Watch:
    strikes = watch.strikes
    # Measured by the provider's usage, because our own estimate could be wrong in the same way before and after.
    if watch.from_tokens:
        has_helped = usage.tokens_sent < watch.from_tokens * EFFECT_SHARE_MAX
        strikes = 0 if has_helped else strikes + 1
    sent = watch.sent_tokens + usage.tokens_sent
    return msgspec.structs.replace(
        watch,
        calls=watch.calls + 1,
        from_tokens=0,
        strikes=strikes,
        sent_tokens=sent,
        waits=max(0, watch.waits - 1),
    )


def after_refusal(watch: Watch, event: CompactionRefused) -> Watch:
    """Back off for some calls, or for good if the stable prefix itself is too long (`final`)."""
    return msgspec.structs.replace(watch, waits=NEVER_CALLS if event.final else WAIT_CALLS)


def after_ask(watch: Watch) -> Watch:
    """A new user message resets the back-off, because a compaction may help now."""
    return msgspec.structs.replace(watch, strikes=0, waits=0) if watch.strikes or watch.waits else watch
