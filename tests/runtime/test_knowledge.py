"""Knowledge from the harvest of one session to the prompt of the next, on the wire of each provider."""

import json
from pathlib import Path
from typing import Unpack

import pytest
from click.testing import CliRunner, Result
from tests.support.all_providers import MODELS, answering_provider, inserted_bytes
from tests.support.knowledge_folders import FACT, RULE, knowledge_folder, store_session
from tests.support.scripted_sessions import new_session, scripted_provider, tool_use

from holdfast.cli.main import command
from holdfast.clock import CountingIds, ManualClock, new_ulid
from holdfast.engine.reducer import fold_events
from holdfast.engine.request_draft import build_sent_view
from holdfast.knowledge.folder import DIGEST_FILE, DISABLED_FILE
from holdfast.layers.assemble import assemble_prompt
from holdfast.providers.adapter import PATH_HEADER
from holdfast.providers.registry import get_adapter
from holdfast.runtime.context_report import encode_prompt
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store
from holdfast.types.json_encoding import canonical_json


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


def accept_all(*location: str) -> None:
    """Accept every item that waits, as a person would by id."""
    waiting = json.loads(run("knowledge", "review", "--json", *location).stdout)
    place = [word for word in location if word != "--db" and not word.endswith(".db")]
    assert run("knowledge", "accept", *(entry["item"]["id"] for entry in waiting), *place).exit_code == 0


async def send_and_capture_bodies(folder: Path, /, *questions: str, **options: Unpack[Options]) -> list[bytes]:
    """The request bodies of a session with these options."""
    defaults: Options = {"model": MODELS[0], "workspace": folder, "system_prompt": "Be brief.", "padding": "never"}
    dependencies: Options = {
        "store": MemoryStore(),
        "allow_uncached": True,
        "clock": ManualClock(),
        "new_id": CountingIds(),
    }
    chosen = defaults | dependencies | options
    provider = answering_provider(chosen["model"])
    async with Session.create(**(chosen | {"transport": provider, "simulated": False})) as session:
        for question in questions:
            await session.send(question)
    return [request.body for request in provider.requests]


async def cacheable(workspace: Path, *questions: str, model: str) -> bytes:
    """The cacheable bytes of the last request of such a session: without breakpoints and parameters."""
    store = MemoryStore()
    await send_and_capture_bodies(workspace, *questions, model=model, store=store)
    (row,) = store.sessions()
    state = fold_events(store.read(row.id), row.id)
    return encode_prompt(assemble_prompt(build_sent_view(state)), model=model).cacheable


async def test_a_conversation_is_harvested_by_hand_and_its_facts_reach_the_next_session(
    tmp_path: Path, workspace: Path
) -> None:
    db = str(tmp_path / "log.db")
    log = open_store(db)
    await store_session(log, workspace, f"{FACT} {RULE}")
    log.close()
    location = ("--workspace", str(workspace), "--db", db)
    dry = run("knowledge", "harvest", "--dry-run", *location)
    assert dry.exit_code == 0
    assert "1 session to harvest, 0 already harvested: 2 new items" in dry.stdout
    assert not (workspace / ".holdfast").exists()
    harvested = run("knowledge", "harvest", *location)
    assert "1 session harvested into .holdfast/knowledge: 2 items" in harvested.stdout
    assert "2 items wait for you: holdfast knowledge review" in harvested.stdout
    folder = workspace / ".holdfast" / "knowledge"
    assert not (folder / "facts.md").exists()
    accept_all("--workspace", str(workspace), "--db", db)
    assert FACT in (folder / "facts.md").read_text()
    assert RULE in (folder / "decisions.md").read_text()
    (body,) = await send_and_capture_bodies(workspace, "hello")
    assert FACT in json.loads(body)["system"][-1]["text"]
    again = run("knowledge", "harvest", "--dry-run", *location)
    assert "0 sessions to harvest, 1 already harvested" in again.stdout


@pytest.mark.parametrize("model", MODELS)
async def test_deleting_the_digest_removes_its_layer_and_changes_no_other_byte(model: str, workspace: Path) -> None:
    without = await send_and_capture_bodies(workspace, "hello", model=model)
    without_digest = await cacheable(workspace, "hello", model=model)
    folder = knowledge_folder(workspace)
    folder.replace(DIGEST_FILE, b"# Known\n- The harbour is shallow.\n")
    with_digest = await cacheable(workspace, "hello", model=model)
    assert b"# Known\\n- The harbour is shallow." in inserted_bytes(without_digest, with_digest)
    folder.remove(DIGEST_FILE)
    assert await send_and_capture_bodies(workspace, "hello", model=model) == without
    assert await cacheable(workspace, "hello", model=model) == without_digest


@pytest.mark.parametrize("model", MODELS)
async def test_the_digest_is_a_separate_text_in_the_system_prompt_of_every_provider(
    model: str, workspace: Path
) -> None:
    knowledge_folder(workspace).replace(DIGEST_FILE, b"- one\n")
    (body,) = await send_and_capture_bodies(workspace, "hello", model=model)
    provider, _, name = model.partition(":")
    prompt = get_adapter(provider).decode_request(body, {PATH_HEADER: f"/v1beta/models/{name}:generateContent"}).prompt
    system_texts = [text.text for segment in prompt.segments for text in segment.system]
    assert system_texts == ["Be brief.", "- one"]
    assert all(b"- one" not in canonical_json(entry.content) for entry in prompt.entries)


@pytest.mark.parametrize("model", MODELS)
async def test_a_running_session_keeps_the_digest_it_started_with(model: str, workspace: Path) -> None:
    folder = knowledge_folder(workspace)
    folder.replace(DIGEST_FILE, b"- one\n")
    provider, store = answering_provider(model), MemoryStore()
    common: Options = {"store": store, "transport": provider, "simulated": False, "clock": ManualClock()}
    chosen: Options = {"model": model, "workspace": workspace, "padding": "never", "allow_uncached": True}
    async with Session.create(**(common | chosen)) as session:
        await session.send("a")
        folder.replace(DIGEST_FILE, b"- one\n- two\n")
        await session.send("b")
    folder.remove(DIGEST_FILE)
    async with Session.resume(session.id, **common) as resumed:
        await resumed.send("c")
    for request in provider.requests:
        assert b"- one" in request.body
        assert b"- two" not in request.body


async def test_knowledge_without_a_workspace_reaches_sessions_without_one(tmp_path: Path, workspace: Path) -> None:
    db = str(tmp_path / "log.db")
    log = open_store(db)
    await store_session(log, None, FACT)
    log.close()
    location = ("--workspace", str(workspace), "--db", db)
    assert "0 sessions to harvest" in run("knowledge", "harvest", "--dry-run", *location).stdout
    done = run("knowledge", "harvest", "--no-workspace", "--db", db)
    assert "1 session harvested into $HOLDFAST_HOME/knowledge: 1 item" in done.stdout
    accept_all("--no-workspace", "--db", db)
    assert FACT in run("knowledge", "list", "--no-workspace").stdout
    assert FACT in run("knowledge", "digest", "--no-workspace").stdout
    assert FACT not in run("knowledge", "digest", "--workspace", str(workspace)).stdout
    provider = scripted_provider("Yes.", "Yes.")
    async with new_session(provider) as session:
        await session.send("hello")
    async with new_session(provider, workspace=workspace) as session:
        await session.send("hello")
    assert [FACT.encode() in request.body for request in provider.requests] == [True, False]


async def test_the_flag_wins_over_the_configuration_and_that_over_the_file(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knowledge_folder(workspace).replace(DIGEST_FILE, b"- known\n")

    async def has_digest(**options: Unpack[Options]) -> bool:
        (body,) = await send_and_capture_bodies(workspace, "hello", **options)
        return b"- known" in body

    assert await has_digest()
    assert not await has_digest(knowledge=False)
    monkeypatch.setenv("HOLDFAST_KNOWLEDGE", "off")
    assert not await has_digest()
    assert await has_digest(knowledge=True)
    monkeypatch.setenv("HOLDFAST_KNOWLEDGE", "on")
    assert not await has_digest(knowledge=False)


async def test_the_disabled_marker_keeps_knowledge_off_after_a_harvest(tmp_path: Path, workspace: Path) -> None:
    db = str(tmp_path / "log.db")
    log = open_store(db)
    await store_session(log, workspace, FACT)
    log.close()
    assert "Knowledge is off" in run("knowledge", "off", "--workspace", str(workspace)).stdout
    done = run("knowledge", "harvest", "--workspace", str(workspace), "--db", db)
    assert "turned off and was not written" in done.stdout
    accept_all("--workspace", str(workspace), "--db", db)
    folder = knowledge_folder(workspace)
    assert folder.read(DIGEST_FILE) is None
    folder.replace(DIGEST_FILE, b"- known\n")
    assert b"- known" not in (await send_and_capture_bodies(workspace, "hello"))[0]
    assert "5 items" not in run("knowledge", "on", "--workspace", str(workspace)).stdout
    assert folder.read(DISABLED_FILE) is None
    assert FACT.encode() in (await send_and_capture_bodies(workspace, "hello"))[0]


@pytest.mark.parametrize("has_workspace", [True, False])
async def test_what_one_user_says_never_reaches_the_prompt_of_another(
    tmp_path: Path, workspace: Path, has_workspace: bool
) -> None:
    db = str(tmp_path / "log.db")
    place = workspace if has_workspace else None
    log = open_store(db)
    await store_session(
        log, place, "My user ID is ann_4711. Always use my card card_4242 in checkout.py.", user_id="ann"
    )
    await store_session(log, place, "Never call me bobby_77 again, please.", user_id="")
    log.close()
    where = ("--workspace", str(workspace)) if place else ("--no-workspace",)
    harvested = run("knowledge", "harvest", "--apply", *where, "--db", db)
    assert "1 session harvested" in harvested.stdout
    accept_all("--user", "ann", *where, "--db", db)
    prompts = {}
    for user in ("ann", "bob", "", None):
        provider, options = scripted_provider("Yes."), Options()
        if user is not None:
            options["user_id"] = user
        if place is not None:
            options["workspace"] = place
        async with new_session(provider, **options) as session:
            await session.send("hello")
        prompts[user] = provider.requests[0].body
    assert b"card_4242" in prompts["ann"]
    for user in ("bob", "", None):
        assert not [secret for secret in (b"ann_4711", b"card_4242", b"bobby_77") if secret in prompts[user]]


async def test_what_the_project_shows_is_shared_with_every_user(tmp_path: Path, workspace: Path) -> None:
    def run_command(command: str) -> str:
        """Runs a command."""
        return "ok"

    db = str(tmp_path / "log.db")
    log = open_store(db)
    calls = [[tool_use("run_command", command="make test")] for _ in range(2)]
    options: Options = {
        "store": log,
        "new_id": new_ulid,
        "workspace": workspace,
        "tools": [run_command],
        "user_id": "ann",
    }
    async with new_session(scripted_provider(*calls, "Done."), **options) as session:
        await session.send("Never work in checkout.py without me.")
        await session.end()
    log.close()
    assert run("knowledge", "harvest", "--apply", "--workspace", str(workspace), "--db", db).exit_code == 0
    provider = scripted_provider("Yes.")
    async with new_session(provider, user_id="bob", workspace=workspace) as session:
        await session.send("hello")
    assert b"Run `make test`" in provider.requests[0].body
    assert b"without me" not in provider.requests[0].body
    assert (workspace / ".holdfast" / "knowledge" / "users" / ".gitignore").read_text() == "*\n"


async def test_items_are_reviewed_one_by_one_in_the_terminal(tmp_path: Path, workspace: Path) -> None:
    db = str(tmp_path / "log.db")
    log = open_store(db)
    await store_session(log, workspace, f"Good morning.\n{RULE}\nNever eat at the keyboard of it.\n{FACT}")
    log.close()
    location = ("--workspace", str(workspace))
    run("knowledge", "harvest", *location, "--db", db)
    answers = "a\nr\ne\nIt is port 6000.\n"
    review = CliRunner().invoke(command, ["knowledge", "review", *location, "--db", db], input=answers)
    assert review.exit_code == 0
    assert f"      | {RULE}" in review.stdout
    assert "      | Good morning." in review.stdout
    listed = run("knowledge", "list", *location).stdout
    assert RULE in listed
    assert "It is port 6000." in listed
    assert "keyboard" not in listed
    assert "Nothing waits" in run("knowledge", "review", *location, "--db", db).stdout
    (line,) = run("knowledge", "restore", *location).stdout.splitlines()
    assert "keyboard" in line
    restored = run("knowledge", "restore", line.split()[0], *location).stdout
    assert restored == "waits for review again: Never eat at the keyboard of it.\n"
    assert run("knowledge", "restore", *location).stdout == "Nothing was set aside.\n"
    assert "keyboard" in run("knowledge", "review", "--list", *location, "--db", db).stdout


async def test_a_folder_from_before_there_were_owners_is_the_current_users(workspace: Path) -> None:
    knowledge_folder(workspace).replace(DIGEST_FILE, b"- The harbour is shallow.\n")
    assert b"shallow" in (await send_and_capture_bodies(workspace, "hello"))[0]
    assert b"shallow" not in (await send_and_capture_bodies(workspace, "hello", user_id="ann"))[0]


async def test_the_list_names_the_user_whose_items_it_shows(tmp_path: Path, workspace: Path) -> None:
    db = str(tmp_path / "log.db")
    log = open_store(db)
    personal = "Always use my card card_4242 in checkout.py."
    await store_session(log, workspace, personal, user_id="ann")
    log.close()
    location = ("--workspace", str(workspace), "--user", "ann")
    run("knowledge", "harvest", "--workspace", str(workspace), "--db", db)
    accept_all(*location, "--db", db)
    (item,) = json.loads(run("knowledge", "list", "--json", *location).stdout)
    assert (item["user"], item["shared"], item["text"]) == ("ann", False, personal)
    assert f"{item['id']}  of ann {item['category']}: {personal}" in run("knowledge", "list", *location).stdout


def test_unknown_user_and_item_are_named_in_one_line(workspace: Path) -> None:
    for words, reason in (
        (("list", "--user", "nobody"), "there is no knowledge of a user 'nobody'"),
        (("accept", "0" * 12), "there is no waiting item"),
        (("restore", "0" * 12), "there is no item"),
    ):
        failed = CliRunner().invoke(command, ["knowledge", *words, "--workspace", str(workspace)])
        assert failed.exit_code != 0
        assert reason in str(failed.exception or failed.output)
