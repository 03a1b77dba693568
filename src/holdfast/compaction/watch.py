"""What a session remembers of its compactions: whether they helped, and whether it may try again by itself."""

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.events.payloads_compaction import CompactionRefused, ContextCompacted

EFFECT_SHARE_MAX = 0.8
"""Behind a compaction the prompt must be smaller than this share of what it was, as the provider counts it."""

STRIKES_MAX = 2
WAIT_CALLS = 10
NEVER_CALLS = 1_000_000_000


class Watch(msgspec.Struct, frozen=True):
    """`last_message` was the newest when it was last compacted, `calls` were answered since and sent `sent_tokens`;
    `from_tokens` is what it
    started from, as long as no call has told what it became. After two that did not help nothing
    is done by itself until the user speaks, and after one that was refused not for so many calls."""

    count: int = 0
    last_message: int = 0
    calls: int = 0
    from_tokens: int = 0
    strikes: int = 0
    waits: int = 0
    sent_tokens: int = 0

    @property
    def may_act(self) -> bool:
        """Never directly behind another, and not where it did not help."""
        return not self.waits and self.strikes < STRIKES_MAX and (not self.count or self.calls > 1)


def after_compaction(watch: Watch, it: ContextCompacted, *, messages: int) -> Watch:
    return Watch(watch.count + 1, messages, 0, it.tokens_before, watch.strikes)


def after_call(watch: Watch, usage: Usage) -> Watch:
    strikes = watch.strikes
    if watch.from_tokens:
        helped = usage.tokens_sent < watch.from_tokens * EFFECT_SHARE_MAX
        strikes = 0 if helped else strikes + 1
    sent = watch.sent_tokens + usage.tokens_sent
    return msgspec.structs.replace(
        watch,
        calls=watch.calls + 1,
        from_tokens=0,
        strikes=strikes,
        sent_tokens=sent,
        waits=max(0, watch.waits - 1),
    )


def after_refusal(watch: Watch, it: CompactionRefused) -> Watch:
    """What is too long now may have been passed in a few calls; a head that is too long will not."""
    return msgspec.structs.replace(watch, waits=NEVER_CALLS if it.final else WAIT_CALLS)


def after_ask(watch: Watch) -> Watch:
    """The user has spoken: what did not help before may help now."""
    return msgspec.structs.replace(watch, strikes=0, waits=0) if watch.strikes or watch.waits else watch
