"""Migration cuts a file by its own structure, whatever the agent is called, and proposes situations as triggers."""

from holdfast.instructions.manifest.check import lint_manifest
from holdfast.instructions.migration.proposal import MigrationProposal, MigrationTarget, propose_migration
from holdfast.instructions.migration.sections import SourceFile
from holdfast.instructions.models import LoadTriggers, ManifestEntry

TOPICS = ("Invoices", "Penguins", "Elevators", "Passwords", "Volcanoes", "Trains", "Bread", "Chess", "Glass", "Rivers")


def long_file() -> str:
    """Thirty sections on ten topics, more than entries with whole addresses would leave room for."""
    sections = []
    for topic in TOPICS:
        sections.append(f"## {topic}\n")
        for part in ("Buying", "Storing", "Selling"):
            word = topic.lower()
            sections.append(
                f"### {part} {word}\n\nBefore you order {word}, ask the {word} desk for its {part.lower()} list. "
                f"Never leave {word} outside, and count the {word} twice.\n"
            )
    return "# Warehouse\n\n" + "\n".join(sections)


def propose(text: str, agent: str = "main") -> MigrationProposal:
    return propose_migration([SourceFile("AGENTS.md", text)], MigrationTarget(agent_id=agent))


def test_cut_does_not_depend_on_the_length_of_the_agents_id() -> None:
    short, long = propose(long_file(), "a"), propose(long_file(), "8e0ed057-bcd8-4f8f-92ee-c046c55b64e9" * 3)
    assert [unit.spans for unit in short.units] == [unit.spans for unit in long.units]
    assert [unit.entry.load_triggers for unit in short.units] == [unit.entry.load_triggers for unit in long.units]
    assert long.units[0].entry.fact_uri is not None
    assert long.units[0].entry.fact_uri.startswith("instruction:local/8e0ed057")


def test_sections_beside_one_another_are_never_joined() -> None:
    for unit in propose(long_file()).units:
        assert sum(topic.lower() in unit.content.lower() for topic in TOPICS) == 1, unit.content
    for text in ("## Tea\n\nHot.\n\n## Coffee\n\nBlack.\n", "# A\n\n## Tea\n\nHot.\n\n## Coffee\n\nBlack.\n"):
        names = [unit.name for unit in propose(text).units]
        assert (len(names), "coffee" in names) == (2, True)


def test_triggers_are_situations_from_the_text_and_no_restated_headings() -> None:
    text = (
        "## Review policy\n\nBefore you open a pull request, run the linter.\n\n"
        "## Elevators\n\nWhen an elevator is stuck, call the porter.\n"
    )
    intents = {unit.name: unit.entry.load_triggers.intents for unit in propose(text).units}
    assert "before opening a pull request" in intents["review-policy"]
    assert "when an elevator is stuck" in intents["elevators"]
    assert not any(intent.startswith(("work on", "follow the")) for found in intents.values() for intent in found[:1])


def test_rules_that_always_apply_are_proposed_for_the_stub_with_their_cost() -> None:
    rules = "".join(
        f"- Rule {number}: keep the {topic} dry and clean at all times.\n" for number, topic in enumerate(TOPICS * 3)
    )
    proposal = propose(f"## Policies & Mandatory Rules\n\n{rules}\n## Tea\n\nBoil the water first.\n")
    (warning,) = [line for line in proposal.warnings if "apply to every task" in line]
    assert "'Policies & Mandatory Rules'" in warning
    assert "tokens in the boot stub, which has 250 left" in warning
    short = propose("## Mandatory rules\n\n- Never push to main.\n\n## Tea\n\nBoil the water first.\n")
    assert [rule.tokens > 0 for rule in short.rules] == [True]


def test_lint_names_joined_topics_headless_units_and_weak_triggers() -> None:
    texts = {
        "tea": "## Tea\n\nHot.\n\n## Coffee\n\nBlack.\n",
        "milk": "- Keep it cold.\n- Count the bottles.\n",
        "bread": "## Bread\n\nSlice it.\n\n### Crumbs\n\nSweep them.\n",
    }
    intents = {"tea": "brew a pot", "milk": "work on milk", "bread": "cut a loaf"}
    entries = [
        ManifestEntry(name, f"About {name}.", load_triggers=LoadTriggers((intents[name],)), path=f"{name}.md")
        for name in texts
    ]
    rules = {(flaw.unit, flaw.rule) for flaw in lint_manifest(entries, texts)}
    assert {("tea", "joined-topics"), ("milk", "headless"), ("milk", "weak-trigger")} <= rules
    assert not any(unit == "bread" for unit, _ in rules)
