"""Runs a command with the prompt as text on its standard input, with limits on time and output."""

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Adapter, Endpoint, WireRequest
from holdfast.providers.connection_pool import REPLY_BYTES_MAX, Timeouts, acquire_host, release_host
from holdfast.providers.errors import sanitize_message
from holdfast.providers.wire_request import CONCURRENT_REQUESTS_MAX, OnRetry
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse
from holdfast.types.transcript import merge_into_messages

STDERR_BYTES_MAX = 64 * 1024
CHUNK_BYTES = 64 * 1024
_QUEUE_SCHEME = "command://"
Result = TypeVar("Result")


def split_command(command: str) -> tuple[str, ...]:
    """The program and its arguments, split like a shell does; no shell is started."""
    try:
        arguments = tuple(shlex.split(command))
    except ValueError as error:
        raise UserError(f"the command cannot be parsed: {error}; check its quotes") from error
    if not arguments:
        raise UserError("the command is empty; name a program, such as: claude -p --output-format stream-json")
    return arguments


class CommandTransport:
    """Runs the command once per request; `{model}` in its arguments is replaced by the model's name.

    Nothing is retried, because a failed command may already have had effects.
    """

    def __init__(
        self,
        adapter: Adapter,
        command: Sequence[str],
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - a frozen value
        requests_max: int = CONCURRENT_REQUESTS_MAX,
    ) -> None:
        self._adapter = adapter
        self._command = tuple(command)
        self._timeouts = timeouts
        self._requests_max = requests_max
        self._closed = False

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        if self._closed:
            raise UserError("the connection to the provider is closed; open a new one")
        request = self._adapter.decode_request(body, {})
        if request.prompt.tools:
            raise UserError(f"{self._adapter.name} runs its own tools and cannot call yours; give the session none")
        arguments = [argument.replace("{model}", request.parameters.model) for argument in self._command]
        address = _QUEUE_SCHEME + self._adapter.name
        host = acquire_host(address)
        try:
            async with host.queue.slot(self._requests_max):
                process = await _start(arguments)
                try:
                    async with aclosing(self._output(process, render_prompt_text(request).encode())) as chunks:
                        async for chunk in chunks:
                            yield chunk
                finally:
                    await _stop(process)
        finally:
            await release_host(address)

    async def _output(self, process: asyncio.subprocess.Process, prompt: bytes) -> AsyncGenerator[bytes, None]:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        writing = asyncio.ensure_future(_write(process.stdin, prompt))
        stderr = asyncio.ensure_future(process.stderr.read(STDERR_BYTES_MAX))
        received, seconds = 0, self._timeouts.first_byte_seconds
        try:
            while chunk := await _within(seconds, process.stdout.read(CHUNK_BYTES)):
                received += len(chunk)
                if received > REPLY_BYTES_MAX:
                    raise ProviderError("server_error", f"the command printed more than {REPLY_BYTES_MAX} bytes")
                yield chunk
                seconds = self._timeouts.idle_seconds
            # Standard output is closed; a command that does not exit then counts as silent.
            status = await _within(seconds, process.wait())
            if status != 0:
                reason = sanitize_message((await _within(seconds, stderr)).decode(errors="replace"))
                raise ProviderError("other", f"the command ended with status {status}: {reason or 'it gave no reason'}")
            if not received:
                raise ProviderError("other", "the command printed nothing")
        finally:
            writing.cancel()
            stderr.cancel()

    async def aclose(self) -> None:
        self._closed = True


def render_prompt_text(request: WireRequest) -> str:
    """The whole prompt as text: the command has no transcript of its own between requests."""
    system = [text.text for segment in request.prompt.segments for text in segment.system]
    parts = [f"<system>\n{text}\n</system>" for text in system]
    messages = merge_into_messages(request.prompt.entries)
    if len(messages) == 1 and not system:
        return _message_text(messages[0])
    parts += [f"<{message.role}>\n{_message_text(message)}\n</{message.role}>" for message in messages]
    return "\n\n".join([*parts, "Answer the last message of the user."])


def _message_text(message: Message) -> str:
    texts = []
    for block in message.content:
        match block:
            case Text(text=text):
                texts.append(text)
            case ToolUse(name=name, arguments_json=arguments):
                texts.append(f"[called {name} with {arguments}]")
            case ToolResult(content=content):
                texts.append("\n".join(part.text if isinstance(part, Text) else "[not text]" for part in content))
            case _:
                texts.append("[not text]")
    return "\n\n".join(texts)


async def _start(arguments: Sequence[str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        # In a process group of its own, so that killing the group also ends its children.
        return await asyncio.create_subprocess_exec(
            *arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"command {arguments[0]!r} cannot be run: {reason}; set claude_code_command") from error


async def _write(stdin: asyncio.StreamWriter, prompt: bytes) -> None:
    # A command that closes its input early reports the reason on stderr.
    with suppress(ConnectionError):
        stdin.write(prompt)
        await stdin.drain()
        stdin.close()


async def _within(seconds: float, operation: Awaitable[Result]) -> Result:
    try:
        async with asyncio.timeout(seconds):
            return await operation
    except TimeoutError:
        raise ProviderError("network", "the command printed nothing for too long") from None


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
