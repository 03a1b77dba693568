"""`holdfast mcp`: serves an agent's instructions and skills to MCP clients."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.instructions.open import agent_option
from holdfast.cli.open_store import open_store_with_records, resolve_store_address
from holdfast.cli.options import db_option, host_option, port_option
from holdfast.clock import system_clock
from holdfast.errors import InstructionError, UserError

if TYPE_CHECKING:
    from holdfast.events.records import StoreRecords
    from holdfast.instructions.access import InstructionCaller
    from holdfast.mcp.tools import McpToolbox
    from holdfast.sources.skills.store import SkillStore

PORT = 8789
MISSING_PACKAGES_HINT = "MCP needs extra packages: pip install 'holdfast-context[mcp,server]'"
KEY_VARIABLE = "HOLDFAST_KEY"


@click.command("mcp")
@agent_option
@db_option
@click.option("--http", "over_http", is_flag=True, help="Serve over HTTP at /mcp instead of standard input and output.")
@host_option
@port_option(PORT)
@click.option(
    "--allow-host", "allowed", metavar="NAME", multiple=True, help="Host name under which clients reach the server."
)
@click.option("--require-keys", is_flag=True, help="Require a key even if none has been created yet.")
@click.option(
    "--no-stub", is_flag=True, help="Leave out boot stub and index, because a hook adds them to each session."
)
def command(
    *,
    agent: str,
    db: str | None,
    over_http: bool,
    host: str,
    port: int,
    allowed: tuple[str, ...],
    require_keys: bool,
    no_stub: bool,
) -> None:
    """Serve instructions and skills to an MCP client: recall, list, read, report usage; search and load.

    The answer to `initialize` carries the agent's boot stub and the index of its units, unless --no-stub is given.

    Over standard input and output, the client's key is read from HOLDFAST_KEY; over HTTP it is sent as a bearer token,
    and a key of scope agent:NAME acts as that agent. On this machine no key is needed until `holdfast keys create` has
    created one.
    """
    import gc
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise UserError(MISSING_PACKAGES_HINT)
    # What is imported lives as long as the process: to look for garbage in it would take a quarter of the start,
    # during which a client waits for the answer to `initialize`.
    gc.disable()
    from holdfast.cli.instructions.command import open_instruction_context
    from holdfast.mcp.tools import McpToolbox

    address, exists = resolve_store_address(db)
    if db is not None and not exists:
        raise UserError(f"there is no store at {address!r}; check the path")
    with open_store_with_records(db) as (log, records):
        # Over stdio the first recall loads the encoder: many sessions never recall.
        library = open_instruction_context(log, wanted=True, load_encoder=over_http)
        assert library is not None
        toolbox = McpToolbox(library, functools.cache(_read_skills), agent=agent, has_stub=not no_stub)
        if over_http:
            _serve_http(toolbox, records, agent=agent, address=(host, port), allowed=allowed, require_keys=require_keys)
        else:
            _serve_stdio(toolbox, make_mcp_authorizer(records, agent=agent, require_keys=require_keys))


def _serve_stdio(toolbox: "McpToolbox", authorize: "Callable[[str | None], InstructionCaller]") -> None:
    """Answer `initialize` first, then load the SDK: clients wait for the one, and hardly notice the other."""
    import asyncio

    from holdfast.mcp.handshake import read_opening

    def describe() -> str | None:

        key = os.environ.get(KEY_VARIABLE)
        try:
            return toolbox.describe_instructions(authorize(f"Bearer {key}" if key else None))
        except InstructionError:
            return None

    opening = read_opening(sys.stdin.fileno(), describe)
    if not opening.line:
        return
    sys.stdout.buffer.write(opening.answer)
    sys.stdout.buffer.flush()
    from holdfast.mcp.server import make_mcp_server, serve_stdio

    collect_garbage_of_calls()
    server = make_mcp_server(toolbox, authorize, stdio_key=os.environ.get(KEY_VARIABLE))
    asyncio.run(serve_stdio(server, opening))


def collect_garbage_of_calls() -> None:
    """Collect garbage again, without looking at what the start has created."""
    import gc

    gc.freeze()
    gc.enable()


def _serve_http(
    toolbox: "McpToolbox",
    records: "StoreRecords",
    *,
    agent: str,
    address: tuple[str, int],
    allowed: tuple[str, ...],
    require_keys: bool,
) -> None:
    try:
        import uvicorn

        from holdfast.mcp.server import MCP_PATH, make_mcp_http_app, make_mcp_server
        from holdfast.service.server import bind_socket, make_url
    except ImportError as error:
        raise UserError(MISSING_PACKAGES_HINT) from error
    from holdfast.service.auth.origins import is_loopback

    collect_garbage_of_calls()

    host, port = address
    authorize = make_mcp_authorizer(records, agent=agent, require_keys=require_keys or not is_loopback(host))
    # Other Host headers are refused: a web page could otherwise reach a local server by DNS rebinding.
    names = ("127.0.0.1", "localhost", "[::1]") if is_loopback(host) else (host,)
    server = make_mcp_server(toolbox, authorize, stdio_key=os.environ.get(KEY_VARIABLE))
    app = make_mcp_http_app(server, authorize, hosts=(*names, *allowed))
    with contextlib.closing(bind_socket(host, port)) as bound:
        click.echo(f"{make_url(bound, host)}{MCP_PATH}")
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="on")
        uvicorn.Server(config).run(sockets=[bound])


def make_mcp_authorizer(
    records: "StoreRecords", *, agent: str, require_keys: bool
) -> "Callable[[str | None], InstructionCaller]":
    """Maps an Authorization header to a caller. While no key exists, a local caller without one is the agent itself."""
    from holdfast.instructions.access import InstructionCaller

    def authorize(header: str | None) -> InstructionCaller:
        from holdfast.service.auth.keys import verify_key
        from holdfast.service.http.routes import ApiError

        try:
            row = verify_key(header, records.key, system_clock())
        except ApiError as error:
            raise InstructionError(error.response.error.code, str(error)) from error
        if row is not None:
            return InstructionCaller(row.scope, row.id, row.entity)
        if require_keys or records.has_keys():
            raise InstructionError("key_required", f"a key is needed: send it as a bearer token, or in {KEY_VARIABLE}")
        return InstructionCaller(f"agent:{agent}", "local")

    return authorize


def _read_skills() -> "SkillStore":
    from holdfast.runtime.config import default_skill_roots, load_config
    from holdfast.sources.skills.library import read_skill_library

    config = load_config(os.environ, workspace=Path.cwd())
    return read_skill_library(default_skill_roots(config, os.environ, workspace=Path.cwd())).store
