"""`holdfast instructions` against a real `holdfast serve` elsewhere: the same commands, with a URL and a key."""

import http.server
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.instruction_service import UNITS

from holdfast.cli.main import command
from holdfast.errors import StoreError, UserError
from holdfast.service.auth.keys import make_key
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore


class Remote:
    """A service on a port of its own, with one key for each scope, and a folder to publish."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path / "folder"
        self.keys: dict[str, str] = {}
        self.url = ""
        self.environ = {"HOLDFAST_HOME": str(path / "home")}
        with closing(open_store(path / "kept.db")) as store:
            assert isinstance(store, SqliteStore)
            for scope, entity in (("admin", "acme:user/ann"), ("read", None), ("agent:main", None)):
                key = make_key(scope, at=time.time(), random_bytes=secrets.token_bytes, entity=entity)
                store.records.add_key(key.row)
                self.keys[scope] = key.key
        self.write_folder()

    def write_folder(self, **approved: object) -> None:
        self.folder.mkdir(exist_ok=True)
        entries = []
        for name, (description, intents, content) in UNITS.items():
            (self.folder / f"{name}.md").write_text(content)
            entry = {"name": name, "description": description, "load_triggers": {"intents": intents}}
            entries.append(entry | {"fact_uri": f"instruction:local/main/{name}/v1", "path": f"{name}.md"})
        entries[0]["required_by_task_types"] = ["issue_assigned"]
        manifest = {"agent_id": "main", "version": "v1", "migration_mode": "coexistence", "entries": entries}
        (self.folder / "manifest.json").write_text(json.dumps(manifest | approved))

    def run(self, *words: str, scope: str = "admin", url: str | None = None, **environ: str) -> Result:
        given = self.environ | {"HOLDFAST_KEY": self.keys[scope]} | environ
        return CliRunner().invoke(command, ("instructions", *words, "--url", url or self.url), env=given)

    def error(self, *words: str, scope: str = "admin", url: str | None = None, **environ: str) -> str:
        """The one line of an error, which the program prints after `holdfast: `."""
        result = self.run(*words, scope=scope, url=url, **environ)
        assert isinstance(result.exception, UserError | StoreError), result.output
        assert "\n" not in str(result.exception)
        assert self.keys[scope] not in str(result.exception)
        return str(result.exception)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    remote = Remote(tmp_path_factory.mktemp("remote"))
    words = [sys.executable, "-m", "holdfast", "serve", "--instructions", "--port", "0", "--db"]
    environ = os.environ | remote.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*words, str(remote.path / "kept.db")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environ,
    ) as server:
        assert server.stdout is not None
        remote.url = server.stdout.readline().strip()
        yield remote
        server.terminate()


def test_a_folder_is_checked_published_measured_approved_and_promoted_over_a_url(remote: Remote) -> None:
    checked = remote.run("check", str(remote.folder))
    assert (checked.exit_code, checked.output.splitlines()[-1]) == (0, "it can be published")
    published = remote.run("publish", str(remote.folder))
    assert published.exit_code == 0, published.output
    assert "create code-review" in published.output
    assert "published instruction:local/main/manifest/v1: 5 units" in published.output
    assert "nothing to do" in remote.run("publish", str(remote.folder)).output
    assert "ok   release-notes: 100% of" in remote.run("coverage").output

    (remote.folder / "security-posture.md").write_text("Never print credentials. Escalate incidents at once.\n")
    changed = remote.run("publish", str(remote.folder))
    assert "update security-posture" in changed.output
    approved = remote.run("approve", "security-posture")
    assert "approved instruction:local/main/security-posture/v2" in approved.output
    assert "it is active from now on" in approved.output
    assert "5 units unchanged" in remote.run("coverage", "--against", "v1").output

    assert "observe it for 7 days first" in remote.error("promote")
    promoted = remote.run("promote", "--force")
    assert "published instruction:local/main/manifest/v" in promoted.output
    shadow = remote.run("shadow")
    assert (shadow.exit_code, shadow.output.splitlines()[0].startswith("0 turns in shadow mode")) == (1, True)


def test_the_author_is_the_holder_of_the_key(remote: Remote) -> None:
    remote.run("publish", str(remote.folder))
    with closing(open_store(remote.path / "kept.db")) as store:
        assert isinstance(store, SqliteStore)
        unit = store.instructions.unit("instruction:local/main/code-review/v1")
        assert unit is not None
        assert unit.authored_by == "acme:user/ann"
    assert "leave out --entity" in remote.error("publish", str(remote.folder), "--entity", "acme:user/ben")


@pytest.mark.parametrize("scope", ["read", "agent:main"])
def test_a_key_without_the_scope_is_refused_in_one_line(remote: Remote, scope: str) -> None:
    folder = str(remote.folder)
    for words in (["check", folder], ["publish", folder], ["approve", "x"], ["promote"], ["coverage"], ["shadow"]):
        assert remote.error(*words, scope=scope) == f"a key of scope {scope} may not do this"


def test_a_wrong_key_address_or_service_is_one_line(remote: Remote) -> None:
    assert remote.error("coverage", HOLDFAST_KEY="hf_wrong") == "unknown, revoked or expired key"
    assert "address of a service begins with http" in remote.error("coverage", url="localhost:1")
    assert "give --db or --url" in remote.error("coverage", "--db", "x.db")
    with closing(socket.create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    assert "cannot be reached: Connection refused" in remote.error("coverage", url=f"http://127.0.0.1:{port}")
    assert "/other has no such route" in remote.error("coverage", url=f"{remote.url}/other")
    assert "has no manifest" in remote.error("coverage", "--agent", "none")


def test_a_server_of_another_kind_is_one_line(remote: Remote) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        assert remote.error("coverage", url=url) == f"{url} answers with status 501, and not as Holdfast does"
        other.shutdown()


def test_the_key_can_come_from_the_keyring(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package `keyring` has one function that is used here."""
    folder = remote.path / "packages"
    folder.mkdir()
    known = {remote.url: remote.keys["admin"]}
    source = f"def get_password(service, name):\n    return {known!r}.get(name) if service == 'holdfast' else None\n"
    (folder / "keyring.py").write_text(source)
    assert "set HOLDFAST_KEY, or run `keyring set holdfast" in remote.error("shadow", HOLDFAST_KEY="")
    monkeypatch.syspath_prepend(str(folder))
    assert remote.run("coverage", HOLDFAST_KEY="").exit_code == 0
    assert "no key for http://127.0.0.1:1" in remote.error("shadow", url="http://127.0.0.1:1", HOLDFAST_KEY="")


def test_what_is_no_address_is_said_before_a_key_is_asked_for(remote: Remote) -> None:
    for url in ("nonsense", "ftp://127.0.0.1", "http://"):
        assert "address of a service begins with http" in remote.error("shadow", url=url, HOLDFAST_KEY="")
