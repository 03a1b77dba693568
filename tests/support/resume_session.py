"""A program that resumes a stored session, lets its model load skills, and prints the last request.

Arguments: the session, the store, and the names of the skills.
"""

import asyncio
import os
import sys

from tests.support.agents import ReplayTransport, says

from holdfast import Session
from holdfast.types.blocks import ToolUse


async def main(session_id: str, store: str, *names: str) -> None:
    calls = (ToolUse(f"again_{name}", "skill_load", f'{{"name":"{name}"}}') for name in names)
    wire = ReplayTransport([says(*calls), says("ok")])
    async with Session.resume(session_id, store=store, transport=wire) as session:
        await session.send("Go on.")
    os.write(1, wire.bodies[1])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
