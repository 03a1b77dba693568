"""Each of the four memory dimensions changes its own bytes and no others, on the wire of each provider."""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import pytest
from click.testing import CliRunner, Result
from tests.support.all_providers import MODELS, answering_provider, inserted_bytes
from tests.support.knowledge_folders import (
    FACT,
    commit_step,
    harvest_all,
    knowledge_folder,
    text_session,
    tool_session,
)

from holdfast.cli.main import command
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.reducer import fold_events
from holdfast.engine.request_draft import build_sent_view
from holdfast.knowledge.folder import DIGEST_FILE
from holdfast.knowledge.rag_index import update_rag_index
from holdfast.layers.assemble import assemble_prompt
from holdfast.runtime.context_report import encode_prompt, stable_prefix_length
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.runtime.volatile_context import curation_folder, rag_folder
from holdfast.stores.memory import MemoryStore
from holdfast.types.request_buffer import common_prefix_length

PYTHON = """\
import os


class Reader:
    def parse(self, text):
        if not text:
            return None

        return text.split()

    def close(self):
        pass


def main():
    return Reader()
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "app.py").write_text(PYTHON)
    (folder / "src" / "tides.md").write_text("The harbour gate opens twice a day, with the tide.\n")
    memory_folder = curation_folder(folder)
    memory_folder.replace("reader.toml", b'files = [{path = "src/app.py", symbol = "Reader"}]')
    memory_folder.replace("main.toml", b'files = ["src/tides.md", {path = "src/app.py", lines = "15-16"}]')
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


class TwoTurns:
    """Two turns of a session, and an action between them."""

    def __init__(self, folder: Path, model: str = MODELS[0], /, **options: Unpack[Options]) -> None:
        self.provider = answering_provider(model)
        self.store = MemoryStore()
        self.model = model
        defaults: Options = {"model": model, "workspace": folder, "system_prompt": "Be brief.", "padding": "never"}
        dependencies: Options = {
            "store": self.store,
            "transport": self.provider,
            "clock": ManualClock(),
            "new_id": CountingIds(),
        }
        self.options: Options = defaults | dependencies | {"allow_uncached": True} | options

    async def second_request(
        self, between: Callable[[], object] = lambda: None, *, questions: tuple[str, str] = ("a", "b")
    ) -> bytes:
        """The cacheable bytes of the second request, which extend those of the first."""
        async with Session.create(**self.options) as session:
            await session.send(questions[0])
            first = self.cacheable()
            between()
            await session.send(questions[1])
        second = self.cacheable()
        assert second.startswith(first), "the prefix changed"
        return second

    def cacheable(self) -> bytes:
        (row,) = self.store.sessions()
        state = fold_events(self.store.read(row.id), row.id)
        return encode_prompt(assemble_prompt(build_sent_view(state)), model=self.model).cacheable


@pytest.mark.parametrize("model", MODELS)
async def test_choosing_another_preset_adds_its_files_after_the_history(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    same = await TwoTurns(workspace, model).second_request()
    assert same.count(b"class Reader") == 1
    other = await TwoTurns(workspace, model).second_request(
        lambda: run("curation", "use", "main", "--workspace", str(workspace))
    )
    added = inserted_bytes(same, other)
    assert b"Files chosen for this work (main)" in added
    assert b"harbour gate" in added
    assert b"return Reader()" in added
    assert b"def parse" not in added


@pytest.mark.parametrize("model", MODELS)
async def test_editing_a_chosen_file_adds_it_once_more_and_changes_no_prefix(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    same = await TwoTurns(workspace, model).second_request()
    file = workspace / "src" / "app.py"
    edited = await TwoTurns(workspace, model).second_request(
        lambda: file.write_text(PYTHON.replace("split()", "splitlines()"))
    )
    assert b"text.splitlines()" in inserted_bytes(same, edited)


@pytest.mark.parametrize("model", MODELS)
async def test_editing_any_other_file_changes_no_byte(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    same = await TwoTurns(workspace, model).second_request()
    edited = await TwoTurns(workspace, model).second_request(
        lambda: (workspace / "src" / "tides.md").write_text("Low.\n")
    )
    assert edited == same


@pytest.mark.parametrize("model", MODELS)
async def test_a_note_on_a_chosen_file_is_sent_and_on_another_file_is_not(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    same = await TwoTurns(workspace, model).second_request()
    memory_folder = knowledge_folder(workspace)

    def harvest(path: str) -> None:
        arguments = f'{{"path": "{path}", "content": "x"}}'
        harvest_all(
            memory_folder, [tool_session(path, "Go.", ("write_file", arguments, "ok"), commit_step("Fix the reader"))]
        )

    memory_folder.replace("disabled", b"")
    assert await TwoTurns(workspace, model).second_request(lambda: harvest("src/other.py")) == same
    noted = await TwoTurns(workspace, model).second_request(lambda: harvest("src/app.py"))
    assert b"Changed for: Fix the reader" in inserted_bytes(same, noted)


@pytest.mark.parametrize("model", MODELS)
async def test_a_new_item_changes_no_byte_of_a_running_session(workspace: Path, model: str) -> None:
    memory_folder = knowledge_folder(workspace)
    harvest_all(memory_folder, [text_session("s1", FACT, "Ok.")])
    same = await TwoTurns(workspace, model).second_request()
    more = text_session("s2", "Never touch src/app.py on Fridays.", "Ok.")
    assert await TwoTurns(workspace, model).second_request(lambda: harvest_all(memory_folder, [more])) == same
    fresh = await TwoTurns(workspace, model).second_request()
    assert b"on Fridays" in inserted_bytes(same, fresh)
    assert (memory_folder.read(DIGEST_FILE) or b"").count(b"- ") == 2


@pytest.mark.parametrize("model", MODELS)
async def test_a_question_adds_the_matching_passages_with_their_locations(workspace: Path, model: str) -> None:
    questions = ("hello", "When does the harbour gate open?")
    without = await TwoTurns(workspace, model).second_request(questions=questions)
    update_rag_index(rag_folder(workspace), workspace)
    added = inserted_bytes(without, await TwoTurns(workspace, model).second_request(questions=questions))
    assert added.count(b"rag-context") == 1
    assert b"## src/tides.md lines 1-1 (sha256 " in added
    assert b"opens twice a day" in added
    assert await TwoTurns(workspace, model, rag=False).second_request(questions=questions) == without
    (workspace / ".holdfast" / "rag" / "index.jsonl").unlink()
    assert await TwoTurns(workspace, model).second_request(questions=questions) == without
    assert await TwoTurns(workspace, model, rag=True).second_request(questions=questions) == without


async def run_with_seed_profile(folder: Path, model: str, between: Callable[[], object]) -> list[tuple[bytes, bytes]]:
    """The stable and the volatile bytes of two requests under the seed profile; the second asks about the harbour."""
    two_turns = TwoTurns(folder, model, profile="seed", skills=False)
    parts = []
    async with Session.create(**two_turns.options) as session:
        for question in ("hello", "When does the harbour gate open?"):
            await session.send(question)
            prompt = assemble_prompt(build_sent_view(fold_events(two_turns.store.read(session.id), session.id)))
            cacheable, end = encode_prompt(prompt, model=model).cacheable, stable_prefix_length(prompt, model=model)
            parts.append((cacheable[:end], cacheable[end:]))
            between()
    return parts


@pytest.mark.parametrize("model", MODELS)
async def test_the_seeds_curation_and_retrieval_come_after_the_stable_prefix(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    update_rag_index(rag_folder(workspace), workspace)
    file = workspace / "src" / "app.py"
    memory_folder = knowledge_folder(workspace)
    memory_folder.replace("disabled", b"")

    def change_file_and_harvest() -> None:
        file.write_text(PYTHON.replace("split()", "splitlines()"))
        arguments = '{"path": "src/app.py", "content": "x"}'
        harvest_all(
            memory_folder, [tool_session("s", "Go.", ("write_file", arguments, "ok"), commit_step("Fix the reader"))]
        )

    (first, volatile), (second, volatile_after) = await run_with_seed_profile(workspace, model, change_file_and_harvest)
    assert first == second
    # The edited file, its notes and the passages that match the question are sent with the turn that asks.
    for text in (b"text.splitlines()", b"Changed for: Fix the reader", b"opens twice a day"):
        assert (text in first, text in volatile, text in volatile_after) == (False, False, True)
    (same, _), (again, switched) = await run_with_seed_profile(
        workspace, model, lambda: run("curation", "use", "main", "--workspace", str(workspace))
    )
    assert same == again == first
    assert b"Files chosen for this work (main)" in switched


@pytest.mark.parametrize("model", MODELS)
async def test_the_seeds_digest_is_in_the_stable_prefix_and_is_refreshed_with_the_next_turn(
    workspace: Path, model: str
) -> None:
    memory_folder = knowledge_folder(workspace)
    harvest_all(memory_folder, [text_session("s1", FACT, "Ok.")])
    more = text_session("s2", "Never touch src/app.py on Fridays.", "Ok.")
    (first, _), (second, rest) = await run_with_seed_profile(
        workspace, model, lambda: harvest_all(memory_folder, [more])
    )
    assert (b"on Fridays" in first, b"on Fridays" in second, b"on Fridays" in rest) == (False, True, False)
    shared_length = common_prefix_length(first, second)
    assert FACT.encode() not in first[:shared_length]
    assert b"# Knowledge from earlier work" in first[:shared_length]


async def test_retrieval_follows_flag_configuration_and_presence_in_this_order(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update_rag_index(rag_folder(workspace), workspace)

    async def has_passages(**options: Unpack[Options]) -> bool:
        return b"rag-context" in await TwoTurns(workspace, **options).second_request(
            questions=("The harbour gate?", "And?")
        )

    assert await has_passages()
    monkeypatch.setenv("HOLDFAST_RAG", "off")
    assert not await has_passages()
    assert await has_passages(rag=True)


async def test_a_preset_is_chosen_by_flag_configuration_and_file_in_this_order(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def second_request(**options: Unpack[Options]) -> bytes:
        return await TwoTurns(workspace, **options).second_request()

    assert b"Files chosen" not in await second_request()
    run("curation", "use", "reader", "--workspace", str(workspace))
    assert b"(reader)" in await second_request()
    monkeypatch.setenv("HOLDFAST_CURATION", "main")
    assert b"(main)" in await second_request()
    assert b"(reader)" in await second_request(curation="reader")
    assert b"Files chosen" not in await second_request(curation="")


async def test_an_emptied_selection_of_files_is_sent_as_empty(workspace: Path) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    second_request = await TwoTurns(workspace).second_request(
        lambda: run("curation", "off", "--workspace", str(workspace))
    )
    assert b"<context layer='active_files' empty/>" in second_request


async def test_a_missing_preset_does_not_stop_a_session(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert b"Files chosen" not in await TwoTurns(workspace, curation="gone").second_request()
    assert "there is no file preset 'gone'; known: main, reader" in caplog.text


def test_presets_are_listed_shown_and_chosen(workspace: Path) -> None:
    where = ("--workspace", str(workspace))
    assert run("curation", "list", *where).stdout == "  main\n  reader\n"
    run("curation", "use", "main", *where)
    assert run("curation", "list", *where).stdout == "* main\n  reader\n"
    shown = run("curation", "show", "reader", *where).stdout
    assert "## src/app.py lines 4-12 of 16 (sha256 " in shown
    assert shown.rstrip().endswith("pass")
    assert "No preset is active." in run("curation", "off", *where).stdout
