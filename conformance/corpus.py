"""The corpus in tests/wire: requests as the clients send them and the responses they get, one file per client.

Kept are the fields, types, roles and short values. A long text is replaced by its length: the prompts of the clients
are not ours to copy, and only their shape matters. So is what differs from machine to machine and from run to run.
"""

import datetime
import json
import platform
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from conformance.client import FOLDER, Client
from conformance.tap import TappedExchange
from holdfast.types.blocks import Json

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "wire"
TEXT_CHARS_MAX = 200
_HEADERS = ("anthropic-beta", "anthropic-version", "content-type", "session_id", "x-claude-code-session-id")
# Values that tell a reader, and a decoder, what kind of value the object is.
_KINDS = ("type", "role", "status", "object")
_TIMES = ("created", "created_at", "completed_at")
_RUN_FOLDER = re.compile(r"[/-]tmp[/-]client-\w{8}")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_DIGEST = re.compile(r"\b[0-9a-f]{32,}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?")


def write_corpus(client: Client, exchanges: Sequence[TappedExchange], folder: Path = CORPUS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    generalize = Generalizer()
    entry = {
        "client": client.name,
        "packages": dict(client.packages),
        "exchanges": [generalize.exchange(exchange) for exchange in choose_exchanges(exchanges)],
    }
    file = folder / f"{client.name}.json"
    file.write_text(json.dumps(entry, indent=1, ensure_ascii=False) + "\n")
    return file


def choose_exchanges(exchanges: Sequence[TappedExchange]) -> Iterator[TappedExchange]:
    """Model calls that have something which no earlier one has: a field, a kind of value, or a set of parameters."""
    seen: set[str] = set()
    for exchange in exchanges:
        if exchange.method != "POST" or exchange.status != 200 or not exchange.body.startswith(b"{"):
            continue
        request, response = json.loads(exchange.body), read_response(exchange.response)
        shape = {f"request{path}" for path in _list_paths(request)} | {
            f"response{path}" for path in _list_paths(response)
        }
        shape.add(f"parameters {sorted(request)}")
        if not shape <= seen:
            seen |= shape
            yield exchange


def read_response(body: bytes) -> Json:
    """A JSON document, or the events of a stream as text."""
    text = body.decode()
    if text.startswith(("{", "[")):
        document: Json = json.loads(text)
        return document
    return [event for event in re.split(r"(?:\r?\n){2}", text) if event]


def _list_paths(value: Json, path: str = "") -> Iterator[str]:
    match value:
        case dict():
            for name, member in value.items():
                kind = f"={member}" if name in _KINDS and isinstance(member, str) else ""
                yield f"{path}.{name}{kind}"
                yield from _list_paths(member, f"{path}.{name}")
        case list():
            for item in value:
                yield from _list_paths(item, f"{path}[]")
        case str() if value.startswith(("data:", "event:")):
            data = value.partition("data:")[2].strip()
            if data.startswith("{"):
                yield from _list_paths(json.loads(data), path)
        case _:
            yield f"{path} {type(value).__name__}"


class Generalizer:
    """Replaces what belongs to one machine or one run; the same value gets the same replacement in a whole file."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        today = datetime.datetime.now(datetime.UTC).date()
        self._literals = {
            str(FOLDER): "/opt/clients",
            socket.gethostname(): "harbour",
            platform.release(): "6.1.0",
            today.isoformat(): "2026-01-01",
            f"{today:%A, %B %-d, %Y}": "Thursday, January 1, 2026",
            f"{today:%B %-d, %Y}": "January 1, 2026",
        }

    def exchange(self, exchange: TappedExchange) -> dict[str, Json]:
        response = self.value(read_response(exchange.response))
        headers = {name.lower(): value for name, value in exchange.headers}
        return {
            "path": self.text(exchange.path),
            "headers": {name: self.text(headers[name]) for name in _HEADERS if name in headers},
            "request": self.value(json.loads(exchange.body)),
            "stream" if isinstance(response, list) else "response": response,
        }

    def value(self, value: Json, name: str = "") -> Json:
        match value:
            case dict():
                return {self.text(key): self.value(member, key) for key, member in value.items()}
            case list():
                return [self.value(item) for item in value]
            case str():
                is_event = value.startswith(("data:", "event:"))
                return self.text(value) if is_event else self._shorten(self.text(value))
            case int() | float() if name in _TIMES:
                return 1_767_225_600
            case _:
                return value

    def text(self, text: str) -> str:
        for literal, replacement in self._literals.items():
            # As a word, because a host may be called `vm`.
            text = re.sub(rf"(?<!\w){re.escape(literal)}(?!\w)", replacement, text)
        text = _RUN_FOLDER.sub(lambda match: "-home-user" if match[0].startswith("-") else "/home/user", text)
        text = _TIME.sub("2026-01-01T00:00:00Z", text)
        text = _UUID.sub(self._number("{:08}-0000-4000-8000-000000000000"), text)
        return _DIGEST.sub(self._number("{:032}"), text)

    def _number(self, template: str) -> Callable[[re.Match[str]], str]:
        return lambda match: self._ids.setdefault(match[0], template.format(len(self._ids) + 1))

    def _shorten(self, text: str) -> str:
        return text if len(text) <= TEXT_CHARS_MAX else f"A text of the client with {len(text)} characters."
