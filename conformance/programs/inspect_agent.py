"""Two samples of an Inspect evaluation at once, with one system prompt: `inspect_agent.py URL MODEL PROMPT PROMPT`.

Each tool call waits until both samples have made one, so that the calls of the two conversations interleave.
"""

import sys
from pathlib import Path

import anyio
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool

WAIT_SECONDS_MAX = 10
both_called = anyio.Event()
calls = 0


async def wait_for_the_other_sample() -> None:
    global calls
    calls += 1
    if calls == 2:
        both_called.set()
    with anyio.fail_after(WAIT_SECONDS_MAX):
        await both_called.wait()


def append(path: str, line: str) -> str:
    with Path(path).open("a") as file:
        file.write(line + "\n")
    return "appended"


@tool
def read_file():
    async def execute(path: str) -> str:
        """Read a file.

        Args:
            path: The file's name.
        """
        await wait_for_the_other_sample()
        return Path(path).read_text()

    return execute


@tool
def append_line():
    async def execute(path: str, line: str) -> str:
        """Append a line to a file.

        Args:
            path: The file's name.
            line: The line, without its end.
        """
        await wait_for_the_other_sample()
        return append(path, line)

    return execute


url, model, *prompts = sys.argv[1:]
task = Task(
    dataset=[Sample(input=prompt) for prompt in prompts],
    solver=[
        system_message("You keep the notes of a harbour. " * 200),
        use_tools([read_file(), append_line()]),
        generate(),
    ],
)
[log] = eval(
    task, model=get_model(f"anthropic/{model}", base_url=url, api_key="any"), max_samples=len(prompts), display="plain"
)
for sample in log.samples or []:
    print(sample.output.completion)
sys.exit(0 if log.status == "success" else 1)
