"""A session on PostgreSQL: run, inspected from the command line, resumed by another process."""

import asyncio
import json
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from tests.support.event_examples import message_events, session_started_event
from tests.support.postgres_server import PASSWORD

from holdfast import Session, SimulatedProvider
from holdfast.cli.main import command
from holdfast.events.payloads.calls import RequestPrepared
from holdfast.stores.open import open_store
from holdfast.stores.postgres.store import PostgresStore

GO_ON = """
import asyncio, json, sys
from holdfast import Session, SimulatedProvider

async def main(id, store):
    async with Session.resume(id, store=store, transport=SimulatedProvider()) as session:
        before = len(session.history)
        await session.send("Go on.")
        print(json.dumps([before, len(session.history)]))

asyncio.run(main(*sys.argv[1:]))
"""


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


async def test_a_session_is_resumed_by_another_process_with_the_same_prefix(postgres: str) -> None:
    prompt = "You are a patient tutor. " * 300
    async with Session.create(system_prompt=prompt, store=postgres, transport=SimulatedProvider()) as session:
        await session.send("What is a prefix?")
        length = len(session.history)
    program = [sys.executable, "-c", GO_ON, session.id, postgres]
    resumed = await asyncio.to_thread(subprocess.run, program, capture_output=True, text=True, timeout=50)
    assert resumed.stderr == ""
    assert json.loads(resumed.stdout) == [length, length + 2]
    store = open_store(postgres)
    prepared = [event.payload for event in store.read(session.id) if isinstance(event.payload, RequestPrepared)]
    store.close()
    assert prepared[1].shared_blocks == prepared[0].shared_blocks + len(prepared[0].digests)


def test_stored_sessions_are_listed_shown_and_deleted(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        store.append([session_started_event(name="mend the roof"), *message_events(2)]).result(10)
    (row,) = json.loads(run("sessions", "list", "--json", "--db", postgres))
    assert (row["id"], row["name"], row["event_count"]) == ("s", "mend the roof", 3)
    assert "mend the roof" in run("sessions", "list", "--db", postgres)
    run("sessions", "delete", "s", "--yes", "--db", postgres)
    assert json.loads(run("sessions", "list", "--json", "--db", postgres)) == []


def test_the_configured_store_is_used_and_shown_without_its_password(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresStore(postgres) as store:
        store.append(message_events(2)).result(10)
    monkeypatch.setenv("HOLDFAST_DB", postgres)
    (row,) = json.loads(run("sessions", "list", "--json"))
    assert row["event_count"] == 2
    output = run("config") + run("config", "--json")
    assert urlsplit(postgres).path in output
    assert PASSWORD not in output
    assert (urlsplit(postgres).password or PASSWORD) not in output


def test_an_audit_accepts_a_database_and_does_not_show_its_password(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        store.append(message_events(2)).result(10)
    result = CliRunner().invoke(command, ["audit", postgres])
    output = result.output + str(result.exception)
    assert "no call with reported usage" in output
    assert "the store 'postgresql://" in output
    assert (urlsplit(postgres).password or PASSWORD) not in output
