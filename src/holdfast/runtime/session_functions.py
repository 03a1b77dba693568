"""Functions over a session: `run_sync` for scripts without an event loop, and those that the seed documents name."""

import asyncio
from collections.abc import Sequence
from typing import Unpack

from holdfast.compaction.models import CompactionConfig, CompactionResult
from holdfast.economics.keep_alive import NextWake
from holdfast.engine.loop import TurnResult
from holdfast.errors import UserError
from holdfast.runtime.compaction import compact_conversation
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.types.blocks import Block


def run_sync(*messages: str | Block | Sequence[Block], **options: Unpack[Options]) -> TurnResult:
    """For scripts: one session, the messages one after the other, the last answer. Not inside a running loop."""
    if not messages:
        raise UserError("run_sync needs at least one message")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UserError("run_sync cannot be used inside a running event loop; use `async with Session.create(...)`")

    async def send_all() -> TurnResult:
        session = Session.create(**options)
        session._messages_expected = len(messages)
        async with session:
            for message in messages[:-1]:
                await session.send(message)
            return await session.send(messages[-1])

    return asyncio.run(send_all())


def next_wake(session: Session) -> NextWake:
    """The same as `session.cache.next_wake()`."""
    return session.cache.next_wake()


async def compact_session(session: Session, config: CompactionConfig) -> CompactionResult:
    """Compact by the rules of seed 002, whatever the profile: a summary, and the last messages as they are."""
    return await compact_conversation(session._idle_conversation, config, seed=True)
