"""A service with instructions, on a real port over a real store, and the requests that tests send to it."""

import base64
import functools
import hashlib
import hmac
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.postgres_server import reused_database
from tests.support.served_service import Client, ServiceResponse, serve_store, serve_store_in_process

from holdfast.clock import CountingIds, ManualClock
from holdfast.events.log import EventLog
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.recall.wake_token import WakeIssuer
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.store import SupportsInstructions
from holdfast.instructions.units.signatures import DeploymentKey
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.instructions.store import InstructionStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore

AGENT = "8e0ed057-bcd8-4f8f-92ee-c046c55b64e9"
SECRET = "a secret that only the control plane knows"
ANN, BEN = "acme:user/ann", "acme:user/ben"
DEPLOYMENT_KEY = DeploymentKey(bytes(range(32)))

UNITS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "security-posture": (
        "Security constraints, escalation thresholds and hard prohibitions.",
        ("what am I not allowed to do", "escalation threshold for security"),
        "Never print credentials. Escalate every security incident to the owner within the hour.",
    ),
    "checkout-procedure": (
        "How to check out an issue and claim a ticket before work.",
        ("check out an issue", "claim a ticket"),
        "Claim the ticket first. Set the issue to in progress, then create a branch.",
    ),
    "code-review": (
        "How to review a pull request and leave comments.",
        ("review a pull request", "leave review comments on a change"),
        "Read the whole diff of the pull request before you leave a review comment.",
    ),
    "budget-rules": (
        "Spending limits and who approves purchases.",
        ("approve a purchase", "spending limit for invoices"),
        "Purchases above 500 dollars need an approval by finance. Keep every invoice.",
    ),
    "release-notes": (
        "How to write release notes and announce a version.",
        ("write release notes", "announce a new version"),
        "Release notes list what changed for users of the new version, newest first.",
    ),
}
"""By name: description, intents, content."""


def uri(name: str, version: str = "v1", *, agent: str = AGENT) -> str:
    return f"instruction:local/{agent}/{name}/{version}"


def entry(name: str, /, **more: object) -> dict[str, object]:
    description, intents, _ = UNITS.get(name, (f"About {name}.", (), ""))
    return {
        "name": name,
        "description": description,
        "load_triggers": {"intents": list(intents)},
        "fact_uri": uri(name),
        **more,
    }


class InstructionService:
    """A service with keys: Ann and Ben are admins with entities."""

    def __init__(self, client: Client, clock: ManualClock, library: InstructionContext, root: Path) -> None:
        self.client = client
        self.clock = clock
        self.library = library
        self.root = root
        self.warned: list[str] = []
        library.warn = self.warned.append
        self.ann = client.key("admin", entity=ANN)
        self.ben = client.key("admin", entity=BEN)
        self.agent_key = client.key(f"agent:{AGENT}")

    def drop_table(self, table: str) -> None:
        """Drop a table, so that everything that needs it fails like in a broken database."""
        assert isinstance(self.library.records, InstructionStore)
        self.library.records._changes.run_statement(f"DROP TABLE holdfast.{table}", ())

    def request(self, method: str, path: str, body: object = None, *, key: str | None = None) -> ServiceResponse:
        return self.client.request(method, path, body, key=key or self.ann)

    def agent_request(self, method: str, rest: str, body: object = None, *, key: str | None = None) -> ServiceResponse:
        return self.request(method, f"/v1/agents/{AGENT}{rest}", body, key=key)

    def write(self, name: str, version: str = "v1", content: str | None = None, **more: object) -> ServiceResponse:
        text = content if content is not None else UNITS[name][2]
        return self.request("PUT", "/v1/instruction/units", {"fact_uri": uri(name, version), "content": text, **more})

    def write_all(self) -> None:
        for name in UNITS:
            assert self.write(name).status == 201

    def publish(
        self, entries: Sequence[object] | None = None, version: str = "v1", *, key: str | None = None, **more: object
    ) -> ServiceResponse:
        listed = [entry(name) for name in UNITS] if entries is None else list(entries)
        body = {"version": version, "entries": listed, **more}
        return self.agent_request("PUT", "/instruction-manifest", body, key=key)

    def publish_all(self, entries: Sequence[object] | None = None, **more: Any) -> None:
        """Write all units and publish a manifest."""
        self.write_all()
        published = self.publish(entries, **more)
        assert published.status == 200, published.body

    def recall(self, intent: str, *, key: str | None = None, **more: object) -> ServiceResponse:
        return self.agent_request("POST", "/recall-instruction", {"intent": intent, **more}, key=key or self.agent_key)

    def recalled(self, intent: str, **more: Any) -> list[str]:
        response = self.recall(intent, **more)
        assert response.status == 200, response.body
        return [chunk["name"] for chunk in response.json["chunks"]]

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.agent_request("GET", "/instruction-audit?days=3000").json["records"]
        return [one for one in found if kind in (None, one["event_type"])]

    def wake(self, reason: str = "issue_assigned", *, secret: str = SECRET, **claims: object) -> str:
        now = self.clock()
        payload = {
            "iss": "control-plane",
            "aud": "holdfast",
            "sub": AGENT,
            "wake_reason": reason,
            "heartbeat_id": "run_1",
            "iat": now,
            "exp": now + 300,
            "jti": f"jti-{reason}",
            **claims,
        }
        return jwt(payload, secret)

    def heartbeat(self, token: str, *, key: str | None = None, **more: object) -> ServiceResponse:
        return self.agent_request("POST", "/heartbeat", {"wake_token": token, **more}, key=key or self.agent_key)


def jwt(claims: dict[str, object], secret: str, *, alg: str = "HS256") -> str:
    head = b64(json.dumps({"alg": alg, "typ": "JWT"}).encode())
    message = f"{head}.{b64(json.dumps(claims).encode())}"
    return f"{message}.{b64(hmac.digest(secret.encode(), message.encode(), hashlib.sha256))}"


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@contextmanager
def open_store_of_kind(kind: str, folder: Path) -> Iterator[DatabaseEventLog]:
    if kind == "postgres":
        with reused_database() as url, PostgresStore(url) as store:
            yield store
        return
    path = folder / "log.db"
    if not path.exists():
        path.write_bytes(_make_empty_store())
    with SqliteStore(path) as store:
        yield store


@functools.cache
def _make_empty_store() -> bytes:
    """The file of a new store: hundreds of tests begin with one, and its migrations take 20 ms."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        SqliteStore(path).close()
        return path.read_bytes()


def library_of(
    store: EventLog, clock: ManualClock, root: Path, *, ids: str = "id", **settings: Any
) -> InstructionContext:
    assert isinstance(store, SupportsInstructions)
    fields = {
        "wake": WakeIssuer("control-plane", "holdfast", secret=SECRET, public_key=DEPLOYMENT_KEY.public_key),
        "root": root,
        "encoder": "wordllama",
        **settings,
    }
    return InstructionContext(
        store.instructions,
        InstructionSettings(**fields),
        key=DEPLOYMENT_KEY,
        clock=clock,
        new_id=CountingIds(ids),
        warn=lambda line: None,
    )


@contextmanager
def serve_instructions(
    kind: str, folder: Path, *, in_process: bool = False, **settings: Any
) -> Iterator[InstructionService]:
    clock, root = ManualClock(), folder / "root"
    (root / AGENT).mkdir(parents=True)
    with open_store_of_kind(kind, folder) as store:
        library = library_of(store, clock, root, **settings)
        with (serve_store_in_process if in_process else serve_store)(store, clock=clock, library=library) as client:
            yield InstructionService(client, clock, library, root / AGENT)
