"""Waiting until nothing goes on any more, without asking a clock."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

ROUNDS = 40


def use_one_thread() -> None:
    """What this loop gives to threads is done one after the other: what was given later is also done later."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


async def wait_until_settled() -> None:
    """Everything that can go on without anybody's doing has gone on; `use_one_thread` was called before it began."""
    for _ in range(ROUNDS):
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.to_thread(int)
