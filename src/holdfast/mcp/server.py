"""Serves the MCP tools to one client over stdio, or to many over HTTP."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import anyio
import mcp_types as types
import msgspec
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import __version__
from holdfast.errors import InstructionError, StoreError, UserError
from holdfast.instructions.access import InstructionCaller
from holdfast.mcp.handshake import SERVER_NAME, Opening
from holdfast.mcp.tools import McpToolbox

MCP_PATH = "/mcp"

McpAuthorizer = Callable[[str | None], InstructionCaller]
"""Maps an `Authorization` header (or None) to a caller. Raises InstructionError `key_required` or `invalid_key`."""


_http_caller: ContextVar[InstructionCaller | None] = ContextVar("http_caller", default=None)
"""Who sent the HTTP request that is being answered: each may belong to another agent, with other instructions."""


class InstructedServer(Server):
    """A server whose `instructions` are those of the client that initializes it."""

    describe: Callable[[InstructionCaller | None], str | None]

    @property
    def instructions(self) -> str | None:
        return self.describe(_http_caller.get())

    @instructions.setter
    def instructions(self, value: str | None) -> None:
        """The SDK sets what it was given, which is nothing."""


def make_mcp_server(toolbox: McpToolbox, authorize: McpAuthorizer, *, stdio_key: str | None = None) -> Server:
    """`stdio_key` is the key of a client on stdio, which cannot send a header."""

    async def list_tools(
        context: ServerRequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=tool.name, description=tool.description, input_schema=dict(tool.input_schema))
                for tool in toolbox.tools.values()
            ]
        )

    async def call_tool(context: ServerRequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = toolbox.tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:80]!a}")
        header = _header(context) if context.request is not None else f"Bearer {stdio_key}" if stdio_key else None

        def run_tool() -> types.CallToolResult:
            try:
                result = tool.run(authorize(header), params.arguments or {})
            except InstructionError as error:
                return _error_result(error.code, str(error))
            except StoreError:
                return _error_result("store_unavailable", "the store cannot be used now; try again")
            except UserError as error:
                return _error_result("refused", str(error))
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=result.text)], structured_content=result.structured
            )

        # The store blocks: run the tool outside the event loop.
        return await asyncio.to_thread(run_tool)

    def describe(caller: InstructionCaller | None) -> str | None:
        try:
            return toolbox.describe_instructions(caller or authorize(f"Bearer {stdio_key}" if stdio_key else None))
        except (InstructionError, StoreError):
            return None

    server = InstructedServer(SERVER_NAME, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)
    server.describe = describe
    return server


async def serve_stdio(server: Server, opening: Opening) -> None:
    """Serve a client from its first line on; what the opening has answered is processed, and not answered again."""
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, answers = anyio.create_memory_object_stream[SessionMessage](0)

    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:

        async def forward_input() -> None:
            async with incoming:
                await incoming.send(_parse_message(opening.line))
                async for message in read:
                    await incoming.send(message)

        async def forward_answers() -> None:
            is_answered = not opening.answer
            async with write, answers:
                async for answer in answers:
                    message = answer.message
                    is_repeated = isinstance(message, types.JSONRPCResponse) and message.id == opening.request_id
                    if is_answered or not is_repeated:
                        await write.send(answer)
                    is_answered |= is_repeated

        tasks.start_soon(forward_input)
        tasks.start_soon(forward_answers)
        await server.run(received, outgoing, server.create_initialization_options())


def _parse_message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


def make_mcp_http_app(server: Server, authorize: McpAuthorizer, *, hosts: Sequence[str]) -> ASGIApp:
    """The MCP endpoint as an ASGI app; rejects requests without a valid key or with a foreign Host header."""
    allowed = [f"{host}:*" for host in hosts]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*hosts, *allowed],
        allowed_origins=[f"http://{host}" for host in (*hosts, *allowed)],
    )
    # Stateless: each request carries its key, so that several processes can serve the same clients.
    app = server.streamable_http_app(streamable_http_path=MCP_PATH, stateless_http=True, transport_security=security)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = Request(scope).headers.get("authorization")
            try:
                _http_caller.set(await asyncio.to_thread(authorize, header))
            except InstructionError as error:
                await _unauthorized(error)(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded


def _header(context: ServerRequestContext) -> str | None:
    header = context.request.headers.get("authorization") if isinstance(context.request, Request) else None
    return header if isinstance(header, str) else None


def _error_result(code: str, message: str) -> types.CallToolResult:
    """An error as a tool result: unlike a protocol error, the model sees it and can react."""
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=f"{code}: {message}")],
        structured_content={"error": {"code": code, "message": message}},
        is_error=True,
    )


def _unauthorized(error: InstructionError) -> Response:
    # A JSON-RPC error, because clients show only those: a bare status would look like a server fault.
    details = {"code": types.INVALID_REQUEST, "message": f"{error.code}: {error}", "data": {"code": error.code}}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": details})
    return Response(body, 401, {"www-authenticate": "Bearer"}, "application/json")
