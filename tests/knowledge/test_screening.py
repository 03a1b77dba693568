"""A secret planted anywhere in a session reaches no knowledge file, digest, log line or export."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.knowledge_folders import FACT, contents, harvest_all, knowledge_folder
from tests.support.scripted_sessions import new_session, scripted_provider, tool_use
from tests.support.served_service import serve_store

from holdfast.cli.main import command
from holdfast.clock import new_ulid, system_clock
from holdfast.knowledge.llm_extraction import ModelReply
from holdfast.knowledge.review import list_knowledge_items
from holdfast.runtime.knowledge import finished_sessions, project_lookup
from holdfast.runtime.options import Options
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore

PLACES = ("asked", "answered", "argument", "output", "name", "task", "found", "noted", "path", "written")
PLANTED = {place: f"ghp_{place}{'aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6k'}"[:40] for place in PLACES}
"""A different secret for each place, so that a leak shows where it came from."""


def said_in_tools(folder: Path) -> list[str | list[dict[str, object]]]:
    """The model's replies: they contain secrets in text, tool arguments, file names and the summary."""
    return [
        [
            {"type": "text", "text": f"We decided to use {PLANTED['answered']} instead of Redis."},
            tool_use("run", command=f"deploy --key {PLANTED['argument']} src/app.py"),
        ],
        [tool_use("write_file", path=str(folder / f"src/{PLANTED['name']}.py"), content="x")],
        [tool_use("todo_write", todos=[f"Rotate {PLANTED['task']}", "Read src/app.py"])],
        "Done.",
    ]


async def planted(store: SqliteStore, folder: Path) -> str:
    def run(command: str) -> str:
        """Runs."""
        return f"error: cannot log in to src/app.py with {PLANTED['output']}\nexit code 1"

    def write_file(path: str, content: str) -> str:
        """Writes."""
        return f"written {content}"

    def todo_write(todos: list[str]) -> str:
        """Notes."""
        return f"{len(todos)} noted"

    provider = scripted_provider(*said_in_tools(folder), "Ok.")
    given: Options = {"store": store, "workspace": folder, "new_id": new_ulid}
    async with new_session(provider, **(given | {"tools": [run, write_file, todo_write]})) as session:
        await session.send(f"Always use {PLANTED['asked']} for src/app.py.")
        await session.send(FACT)
        await session.end()
    return session.id


def reply(prompt: str) -> ModelReply:
    assert not leaked(prompt)
    facts = [{"statement": f"The key of src/app.py is {PLANTED[place]}.", "from": [1]} for place in ("found", "noted")]
    return ModelReply(json.dumps({"facts": facts}))


def leaked(*texts: str) -> set[str]:
    return {place for place, secret in PLANTED.items() if any(secret in text for text in texts)}


async def test_planted_secret_reaches_no_stored_shown_or_exported_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    folder, db = tmp_path / "project", str(tmp_path / "log.db")
    (folder / "src").mkdir(parents=True)
    store = open_store(db)
    assert isinstance(store, SqliteStore)
    await planted(store, folder)
    place = knowledge_folder(folder)
    printed = []

    def run(*words: str) -> None:
        done = CliRunner().invoke(command, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        printed.append(done.output)

    where = ("--workspace", str(folder), "--db", db)
    run("knowledge", "harvest", *where, "--simulated", "--dry-run", "--json")
    sessions = list(finished_sessions(store, at=system_clock(), workspace=folder, simulated=True))
    outcome = harvest_all(place, sessions, project=project_lookup(folder), ask=reply)
    assert outcome.sessions == 1
    assert outcome.secrets >= 1
    assert FACT in {item.text for item in list_knowledge_items(place)}
    files = contents(place)
    assert {name for name in files if leaked(name, files[name].decode())} == set()

    # What a user writes into a page stays in that page and goes nowhere else.
    place.replace("facts.md", (place.read("facts.md") or b"") + f"- The key is {PLANTED['written']}.\n".encode())
    run("knowledge", "digest", "--rebuild", "--workspace", str(folder))
    run("knowledge", "harvest", *where, "--simulated", "--apply")
    run("db", "export", "--db", db)
    with serve_store(store) as client:
        client.service.workspace = folder
        for path in ("/api/knowledge/digest", "/api/knowledge/pending", "/api/sessions"):
            printed.append(client.request("GET", path).body.decode())
        printed.append(client.request("POST", "/api/knowledge/harvest", {"apply": True}).body.decode())
        listed = client.request("GET", "/api/knowledge").body.decode()
    store.close()
    assert FACT in printed[1]
    assert leaked(*printed, caplog.text) == set()
    assert leaked(listed) == {"written"}
    assert {name for name, raw in contents(place).items() if leaked(raw.decode())} == {"facts.md"}
