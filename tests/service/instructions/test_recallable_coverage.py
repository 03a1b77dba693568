"""The coverage gate asks what a recall would return, and check compares triggers with the text they should find."""

from pathlib import Path

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry, uri

from holdfast import Library
from holdfast.instructions.manifest.check import DraftCheck, check_draft
from holdfast.instructions.manifest.validate import ManifestDraft
from holdfast.instructions.migration.files import write_instruction_folder
from holdfast.instructions.migration.situations import find_situations
from holdfast.instructions.models import Agent, LoadTriggers, ManifestEntry, Probe
from holdfast.instructions.settings import InstructionSettings


def test_manifest_with_a_missing_unit_is_refused_and_says_why(service: InstructionService) -> None:
    for name in UNITS:
        if name != "release-notes":
            service.write(name)
    refused = service.publish()
    assert (refused.status, refused.code) == (400, "manifest_coverage_failure")
    (failing,) = refused.json["error"]["details"]["units"]
    assert (failing["unit"], failing["coverage_pct"]) == ("release-notes", 0.0)
    assert "missing, quarantined" in failing["obstacle"]
    assert service.agent_request("GET", "/instruction-manifest").code == "manifest_not_found"
    service.write("release-notes")
    assert service.publish().status == 200


def test_quarantined_unit_is_not_certified(service: InstructionService) -> None:
    for name in UNITS:
        if name != "code-review":
            service.write(name)
    service.library.key = None
    assert service.write("code-review").json["status"] == "quarantined"
    refused = service.publish()
    assert (refused.code, refused.json["error"]["details"]["units"][0]["unit"]) == (
        "manifest_coverage_failure",
        "code-review",
    )


def test_skipping_the_gate_publishes_a_missing_unit_with_a_warning(service: InstructionService) -> None:
    service.write("code-review")
    published = service.publish([entry("code-review"), entry("release-notes")], skip_coverage_gate=True)
    assert published.status == 200
    assert any("release-notes: unit_unavailable" in line for line in published.json["warnings"])
    by_unit = {row["unit"]: row for row in published.json["coverage_report"]}
    assert by_unit["release-notes"]["coverage_pct"] == 0.0


def make_entry(name: str, *intents: str) -> ManifestEntry:
    return ManifestEntry(name, f"About {name}.", load_triggers=LoadTriggers(intents), fact_uri=uri(name))


TEXTS = {
    "crosswalk": "Before you push a branch, run the linter. Never force-push to main.",
    "billing": "When an invoice is overdue, send a reminder. Refund a customer only after an approval.",
}


def check_crosswalk(*intents: str, probes: tuple[Probe, ...] = (), encoder: str | None = "wordllama") -> DraftCheck:
    entries = (make_entry("crosswalk", *intents), make_entry("billing", "refund a customer"))
    agent = Agent(AGENT, "local", 0)
    settings = InstructionSettings(encoder=encoder)
    return check_draft(ManifestDraft("v1", entries), TEXTS, agent, settings=settings, probes=probes)


def test_nonsense_trigger_is_named_although_it_finds_its_unit() -> None:
    checked = check_crosswalk("zebra stripe paint", "push a branch")
    assert checked.passed
    nonsense = [flaw for flaw in checked.flaws if flaw.rule == "nonsense-trigger"]
    assert [(flaw.unit, "zebra stripe paint" in flaw.message) for flaw in nonsense] == [("crosswalk", True)]


def test_trigger_without_a_shared_word_cannot_be_judged_without_an_encoder() -> None:
    """A synonym shares no word either: only an encoder can say which of the two is nonsense."""
    checked = check_crosswalk("zebra stripe paint", "upload commits", "push a branch", encoder=None)
    flaws = [flaw for flaw in checked.flaws if flaw.rule in ("nonsense-trigger", "unjudged-trigger")]
    assert [(flaw.rule, flaw.is_certain) for flaw in flaws] == [("unjudged-trigger", False)] * 2
    assert all("cannot be judged" in flaw.message for flaw in flaws)


def test_probe_of_a_person_that_misses_its_unit_is_a_warning_and_no_failure() -> None:
    probe = Probe("p1", AGENT, "a customer wants the money back for an invoice", ("crosswalk",))
    checked = check_crosswalk("push a branch", probes=(probe,))
    assert checked.passed
    (missed,) = [situation for situation in checked.situations if situation.source == "probe"]
    assert missed.is_weak
    assert missed.missed[0].first_units == ("billing",)


def test_situations_of_a_text_are_what_it_orders_and_when() -> None:
    assert find_situations("Before you open a pull request, run the linter.\n- Never push to main.\n") == (
        "before opening a pull request",
        "run the linter",
        "push to main",
    )
    assert find_situations("```\nRun this first\n```\nSee [the guide](x).\n") == ()


def test_check_counts_the_situations_of_the_content_that_find_the_unit() -> None:
    checked = check_crosswalk("push a branch")
    asked = {situation.unit: situation for situation in checked.situations}
    assert asked["crosswalk"].asked >= 2
    assert not asked["crosswalk"].is_weak


@pytest.mark.parametrize("shared", [True, False])
def test_check_of_a_folder_knows_the_stored_texts_of_entries_without_a_file(tmp_path: Path, shared: bool) -> None:
    source = tmp_path / "AGENTS.md"
    source.write_text("# Tests\n\nRun the tests before each commit.\n\n# Notes\n\nWrite release notes for users.\n")
    with Library(tmp_path / "agent.db") as library:
        proposal = library.migrate(source)
        folder = tmp_path / "folder"
        write_instruction_folder(proposal, folder)
        first = proposal.units[0].name
        if shared:
            library.write(proposal)
        (folder / f"{first}.md").unlink()
        checked = library.check(folder)
    assert checked.passed is shared


def test_recall_leaves_out_units_that_only_fill_the_room(published_service: InstructionService) -> None:
    response = published_service.recall("announce the spending limit", explain=True).json
    assert [chunk["name"] for chunk in response["chunks"]] == ["budget-rules"]
    assert ("release-notes", "weak") in {(unit["name"], unit["reason"]) for unit in response["dropped"]}
    assert len(published_service.recalled("announce the spending limit", floor=False)) == 3
