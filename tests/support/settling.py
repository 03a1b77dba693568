"""Waits until a session is idle, without using a clock."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

ROUNDS = 40


def use_one_thread() -> None:
    """Make this loop run its thread jobs one after the other, in order."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


async def wait_until_settled() -> None:
    """Let every task run that can proceed without outside input. Requires `use_one_thread` beforehand."""
    for _ in range(ROUNDS):
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.to_thread(int)
