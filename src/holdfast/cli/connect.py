"""`holdfast connect`: points a client at the gateway in the client's own settings, undoes that, and checks it."""

import datetime
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from holdfast import __version__
from holdfast.cli.format import format_count, format_file_change, format_usd, print_json, replace_unprintable
from holdfast.cli.options import OptionValueError, convert_to_option_error, json_option
from holdfast.errors import UserError
from holdfast.redaction import REDACTION_MASK, redact_secrets

if TYPE_CHECKING:
    from holdfast.runtime.client_settings import ClientProgram, ConnectionChange, Dialect, GatewayAccess

CLIENT_NAMES = ("claude-code", "codex", "gemini", "opencode", "aider")
DEFAULT_URL = "http://127.0.0.1:8787"
CLIENT_SECONDS_MAX = 180.0
REQUEST_SECONDS_MAX = 60.0
RECORD_SECONDS_MAX = 10.0
START_SECONDS_MAX = 10.0
"""`holdfast serve &` takes one to three seconds until it listens; the check may be the next command."""
RESPONSE_BYTES_MAX = 4_000_000
OUTPUT_LINES_SHOWN = 8
_KEY_IN_SETTINGS = r"""(?i)(x-holdfast-key["']?\s*[:=]\s*["']?)[^\s"'\\]+"""
"""A key that was written before may have any format, too."""


class _Probe(NamedTuple):
    """One small request in a client's dialect: path, model, credential header and its variable."""

    path: str
    header: str
    variable: str
    body: Mapping[str, object]


_QUESTION = "Reply with the word ok."
_PROBES: "Mapping[Dialect, _Probe]" = {
    "anthropic": _Probe(
        "/anthropic/v1/messages",
        "x-api-key",
        "ANTHROPIC_API_KEY",
        {"model": "claude-haiku-5-5", "max_tokens": 8, "messages": [{"role": "user", "content": _QUESTION}]},
    ),
    "openai": _Probe(
        "/openai/v1/responses",
        "authorization",
        "OPENAI_API_KEY",
        {"model": "gpt-6-luna", "max_output_tokens": 16, "input": _QUESTION},
    ),
    "gemini": _Probe(
        "/gemini/v1beta/models/gemini-2.5-flash-lite:generateContent",
        "x-goog-api-key",
        "GEMINI_API_KEY",
        {"contents": [{"role": "user", "parts": [{"text": _QUESTION}]}], "generationConfig": {"maxOutputTokens": 8}},
    ),
}


@click.command("connect")
@click.argument("client", type=click.Choice(CLIENT_NAMES), required=False)
@click.option("--write", is_flag=True, help="Write the settings; the file as it was is kept for --undo.")
@click.option("--undo", is_flag=True, help="Restore what --write has changed.")
@click.option("--check", is_flag=True, help="Make one call through the gateway and show the recorded session.")
@click.option("--dry-run", is_flag=True, help="Show what --write, or --undo, would change.")
@click.option("--project", is_flag=True, help="Use the settings of this folder instead of the user's.")
@click.option(
    "--url",
    envvar="HOLDFAST_GATEWAY_URL",
    show_envvar=True,
    show_default=f"that of the connection to check, else {DEFAULT_URL}",
    help="Address of the gateway.",
)
@click.option("--key", envvar="HOLDFAST_GATEWAY_KEY", show_envvar=True, help="Key of the gateway, if it needs one.")
@click.option(
    "--replace-provider-key", is_flag=True, help="Send the gateway's key in place of the provider's (serve --grants)."
)
@click.option(
    "--provider", "providers", multiple=True, metavar="NAME", help="Provider to redirect, for opencode and aider."
)
@click.option("--direct", is_flag=True, help="With --check: send one small request, even if the client is installed.")
@json_option
def command(
    *,
    client: str | None,
    write: bool,
    undo: bool,
    check: bool,
    dry_run: bool,
    project: bool,
    url: str | None,
    key: str | None,
    replace_provider_key: bool,
    providers: tuple[str, ...],
    direct: bool,
    as_json: bool,
) -> None:
    """Show the settings that point CLIENT at the running gateway, or write them into its own settings file.

    Everything else in the file stays as it is, comments included. Settings take effect when the client is started next.
    """
    from holdfast.runtime.client_settings import (
        CLIENTS,
        GatewayAccess,
        check_gateway_url,
        connect_client,
        disconnect_client,
        find_connected_url,
        show_settings,
    )

    if sum((write, undo, check)) > 1:
        raise click.UsageError("--write, --undo or --check, not several")
    if direct and not check:
        raise click.UsageError("--direct says how --check sends its call; add --check")
    if replace_provider_key and key is None:
        raise click.UsageError("--replace-provider-key sends the gateway's key; add --key, or set HOLDFAST_GATEWAY_KEY")
    if client is None and not check:
        raise click.UsageError(f"name a client: {', '.join(CLIENT_NAMES)}")
    program = CLIENTS[client or CLIENT_NAMES[0]]
    folder = Path.cwd() if project else None
    connected_url = find_connected_url(program, os.environ, project=folder) if check and client else None
    with convert_to_option_error():
        address = check_gateway_url(url or connected_url or DEFAULT_URL)
    access = GatewayAccess(address, _check_key(key), replace_provider_key, _choose_providers(program, providers))
    if check:
        # The client would send its call to the other gateway.
        with_client = connected_url == address and not direct
        _check(program, access, with_client=with_client, as_json=as_json)
    elif undo:
        changes = disconnect_client(program, os.environ, project=folder, write=not dry_run)
        _print_changes(changes, program, key, done="undone", dry_run=dry_run, as_json=as_json)
    elif write or dry_run:
        changes = connect_client(program, access, os.environ, project=folder, write=write and not dry_run)
        _print_changes(changes, program, key, done="written", dry_run=dry_run, as_json=as_json)
    else:
        _print_settings(program, show_settings(program, access, os.environ, project=folder), key, as_json=as_json)


def _check_key(key: str | None) -> str | None:
    if key is not None and not (key and all("!" <= char <= "~" and char not in "\"'`\\" for char in key)):
        raise OptionValueError("the key has characters that no key has; `holdfast keys create` prints one")
    return key


def _choose_providers(program: "ClientProgram", names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return program.providers[: program.default_providers]
    unknown = [name for name in names if name not in program.providers]
    if unknown:
        known = f"use {' or '.join(program.providers)}" if program.providers else "it has only one: leave it out"
        raise UserError(f"{program.name} cannot be connected for the provider {unknown[0][:40]!r}; {known}")
    return tuple(dict.fromkeys(names))


def _print_settings(program: "ClientProgram", files: list[tuple[Path, str]], key: str | None, *, as_json: bool) -> None:
    if as_json:
        shown = [{"path": str(path), "settings": _mask(text, key)} for path, text in files]
        print_json({"client": program.name, "files": shown, "note": program.note})
        return
    for path, text in files:
        click.echo(f"in {path}:\n")
        click.echo(_mask(text, key))
    _print_note(program)
    click.echo(f"`holdfast connect {program.name} --write` writes this.", err=True)


def _print_changes(
    changes: "list[ConnectionChange]",
    program: "ClientProgram",
    key: str | None,
    *,
    done: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        files = [
            {
                "path": str(change.path),
                "is_changed": not change.is_unchanged,
                "is_written": not (dry_run or change.is_unchanged),
                "diff": _mask(format_file_change(change.path, change.before or "", change.after or ""), key),
                "backup": str(change.backup) if change.backup else None,
            }
            for change in changes
        ]
        print_json({"client": program.name, "files": files, "note": program.note})
        return
    for change in changes:
        if change.is_unchanged:
            click.echo(f"{change.path}: nothing to change")
            continue
        click.echo(_mask(format_file_change(change.path, change.before or "", change.after or ""), key), nl=False)
        if not dry_run:
            removed = "; the file is removed" if change.after is None else ""
            backup = f"; the file as it was: {change.backup}" if change.backup else ""
            click.echo(f"{change.path}: {done}{removed}{backup}", err=True)
    if done == "written" and not dry_run:
        _print_note(program)
        click.echo(f"`holdfast connect {program.name} --undo` restores it, `--check` tries it.", err=True)


def _print_note(program: "ClientProgram") -> None:
    if program.note:
        click.echo(program.note, err=True)


def _mask(text: str, key: str | None = None) -> str:
    """For the screen: the file may contain keys of the user, and control characters; `key` may have any format."""
    text = text.replace(key, REDACTION_MASK) if key else text
    text = re.sub(_KEY_IN_SETTINGS, rf"\1{REDACTION_MASK}", text)
    # Line by line: across lines a name such as `api-key:` would hide the next line's name.
    lines = (redact_secrets(line) for line in text.replace("\t", "    ").splitlines())
    return replace_unprintable("".join(f"{line}\n" for line in lines))


class _Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


def _check(program: "ClientProgram", access: "GatewayAccess", *, with_client: bool, as_json: bool) -> None:
    """Make one call, wait until the gateway has recorded it, and show it. Raises UserError that says what is wrong."""
    import shutil

    ready = _await_gateway(access.url)
    status = ready.json()
    if not isinstance(status, dict) or "status" not in status or "version" not in status:
        raise UserError(f"what answers at {access.url} is not Holdfast; start it with `holdfast serve`, or give --url")
    if ready.status != 200:
        raise UserError(f"the gateway at {access.url} is not ready: its store cannot be read; see its output")
    # By the gateway's clock, whose seconds are cut off: the call cannot be older than this.
    since = _http_date(ready.headers.get("date", ""))
    command = shutil.which(program.command) if with_client else None
    problem = _run_client(program, command) if command else _send_probe(program.dialect, access)
    recorded = _wait_for_session(access, since, expected=not problem)
    if as_json:
        way = "client" if command else "request"
        print_json({"client": program.name, "sent_by": way, **recorded, "problem": problem or recorded["problem"]})
    else:
        sender = program.command if command else f"a request in the dialect of {program.name}"
        click.echo(f"sent by {sender}")
        _print_session(recorded, access.url)
    if problem:
        raise UserError(problem)
    if recorded["problem"]:
        raise UserError(recorded["problem"])


def _await_gateway(url: str) -> _Response:
    """Its answer to `/readyz`; a gateway that does not listen yet is waited for. Raises UserError if none starts."""
    until = time.monotonic() + START_SECONDS_MAX
    is_shown = False
    while True:
        try:
            return _request(f"{url}/readyz")
        except UserError as error:
            if not isinstance(error.__cause__, ConnectionRefusedError) or time.monotonic() >= until:
                raise
        if not is_shown:
            click.echo(f"waiting for a gateway at {_address(url)}", err=True)
            is_shown = True
        time.sleep(0.1)


def _address(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


def _request(
    url: str, *, body: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None
) -> _Response:
    """One request to the gateway, never by a proxy; any status is a response. Raises UserError if nothing answers."""
    import http.client
    import urllib.error
    import urllib.request

    sent = {"content-type": "application/json", "user-agent": f"holdfast-connect/{__version__}", **(headers or {})}
    request = urllib.request.Request(url, msgspec.json.encode(body) if body is not None else None, sent)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            response = opener.open(request, timeout=REQUEST_SECONDS_MAX)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            names = {name.lower(): value for name, value in response.headers.items()}
            return _Response(response.status, names, response.read(RESPONSE_BYTES_MAX))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise UserError(
            f"nothing answers at {_address(url)}; start the gateway with `holdfast serve`, or give --url"
        ) from (reason if isinstance(reason, OSError) else error)


def _http_date(text: str) -> float:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return time.time() - 1


def _send_probe(dialect: "Dialect", access: "GatewayAccess") -> str:
    """Send one small request; returns what is wrong, or nothing."""
    probe = _PROBES[dialect]
    own_key = os.environ.get(probe.variable, "none")
    provider_key = access.key if access.key and access.replaces_key else own_key
    headers = {probe.header: f"Bearer {provider_key}" if probe.header == "authorization" else provider_key}
    if dialect == "anthropic":
        headers["anthropic-version"] = "2023-06-01"
    if access.key and not access.replaces_key:
        headers["x-holdfast-key"] = access.key
    response = _request(f"{access.url}{probe.path}", body=probe.body, headers=headers)
    if response.status < 400:
        return ""
    reason = _error_message(response.json())
    if response.headers.get("x-holdfast-gateway") != "refused":
        own = f"set {probe.variable}" if own_key == "none" else f"check {probe.variable}"
        return f"the provider refused the call with status {response.status}: {reason}; {own}"
    match response.status:
        case 401 | 403:
            return (
                f"the gateway refused the key: {reason}; give --key, `holdfast keys create --scope gateway` makes one"
            )
        case 429:
            return f"the gateway refused the call: {reason}"
        case _:
            return f"the gateway cannot reach the provider: {reason}"


def _error_message(document: object) -> str:
    """The provider's message, in any of their formats; it quotes nothing but our own small request."""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(_mask(str(message or "no reason given")).split())[:300]


def _run_client(program: "ClientProgram", command: str) -> str:
    """Run the client once in an empty folder; returns what is wrong, or nothing."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
        environ = os.environ | dict(program.check_environment)
        try:
            run = subprocess.run(
                [command, *program.check_arguments],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=CLIENT_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{program.command} did not answer within {CLIENT_SECONDS_MAX:.0f} seconds"
        except OSError as error:
            return f"{program.command} cannot be started: {error.strerror}"
    if run.returncode == 0:
        return ""
    lines = [line for line in _mask(run.stdout.decode("utf-8", "replace")).splitlines() if line.strip()]
    last = "\n  ".join(line[:200] for line in lines[-OUTPUT_LINES_SHOWN:])
    return f"{program.command} ended with status {run.returncode}:\n  {last}"


def _wait_for_session(access: "GatewayAccess", since: float, *, expected: bool) -> dict[str, Any]:
    """The newest session since then, its calls and failures; recording follows the response by some milliseconds."""
    headers = {"authorization": f"Bearer {access.key}"} if access.key else {}
    start = datetime.datetime.fromtimestamp(since, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    until = time.monotonic() + (RECORD_SECONDS_MAX if expected else 2.0)
    found: dict[str, Any] = {"session_id": None, "model": None, "calls": [], "failures": {}}
    while True:
        sessions = _request(f"{access.url}/analytics/sessions?order=recency&limit=1", headers=headers)
        if sessions.status in (401, 403):
            hint = "open the dashboard, or give --key with a key of scope admin"
            return {**found, "problem": f"the gateway answered, but this key may not read what it recorded; {hint}"}
        rows = (sessions.json() or {}).get("data") or []
        if rows and datetime.datetime.fromisoformat(rows[0]["updated_at"]).timestamp() >= since:
            session_id = rows[0]["id"]
            calls = _request(f"{access.url}/api/sessions/{session_id}/calls", headers=headers).json() or {}
            errors = _request(f"{access.url}/analytics/reliability?from={start}", headers=headers).json() or {}
            classes = (errors.get("data") or {}).get("errors_by_class") or []
            failures = {row["error_class"]: row["count"] for row in classes}
            if calls.get("calls") or failures:
                unreadable = "the response is recorded, but could not be read: its usage is estimated by size"
                return {
                    "session_id": session_id,
                    "model": rows[0].get("active_model"),
                    "calls": calls.get("calls") or [],
                    "failures": failures,
                    "problem": unreadable if "unreadable" in failures else None,
                }
        if time.monotonic() > until:
            return {**found, "problem": "the call was answered, but not recorded; see the output of the gateway"}
        time.sleep(0.2)


def _print_session(recorded: Mapping[str, Any], url: str) -> None:
    if not recorded["session_id"]:
        return
    calls = recorded["calls"]
    click.echo(f"session {recorded['session_id']}, {recorded['model']}: {format_count(len(calls), 'call')}")
    for call in calls:
        sent = call["read_tokens"] + call["written_tokens"] + call["uncached_tokens"]
        click.echo(
            f"  call {call['number']}: {sent:,} tokens sent, {call['read_tokens']:,} read from the cache, "
            f"{call['output_tokens']:,} received, {format_usd(call['cost_usd'], 6)}, {call['verdict']}"
        )
    for kind, count in recorded["failures"].items():
        click.echo(f"  {format_count(count, 'call')} failed: {kind}")
    # Not `holdfast sessions show`: the gateway may write another store than the one configured here.
    click.echo(f"more in the dashboard: {url}/#/session/{recorded['session_id']}", err=True)
