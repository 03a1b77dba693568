"""Detection of used units in a trace: what is evidence, what is not, and properties for any text."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.instructions.usage.detect import detect_usage
from holdfast.instructions.usage.fingerprints import UnitText
from holdfast.instructions.usage.trace import AgentTextStep, ObservationStep, ToolCallStep, TraceStep

SECURITY = """# Security

- SEC-12: never print credentials, not even in the logs of a test.
- **R3** Escalate every incident to the owner of the service within the hour.
- See also OPS-4, and UTF-8 (RFC-2119).

Scan with `trivy fs --severity HIGH` and close with `close_incident(id)`. Never run `drop_all` or `make nuke now`.
"""
RELEASE = """# Releasing

OPS-4: list what changed for users of the new version, newest first, and name the issue.

```console
$ make release VERSION=1.2
$ git status
```

````python
import changelog_writer
print("one two three four five six seven eight")
```
make twice over
```
````

~~~
make once more
~~~

Afterwards:

    make party --loud
    make tidy all && make quiet again

1 2 3 4 5 6 7 8 9 and no and no and no and no and no

Never do this:

    make havoc now

- nested
    make noise now

Call `publish_release`, then `TodoWrite`, then run `./scripts/announce.sh`. Ask `search` if in doubt.
It is got by `pip install -e '.[x]'`. A title is `type(scope): text` or `: `, not more.
"""
UNITS = (
    UnitText("security", ("instruction:local/main/security/v2",), SECURITY),
    UnitText(
        "code-review",
        ("instruction:local/main/code-review/v1",),
        "Read the diff twice before you comment on it at all.",
    ),
    UnitText("how-we-release", ("instruction:local/shared/how-we-release/v1",), RELEASE),
)
ALL = frozenset(unit.name for unit in UNITS)


def detect(
    *trace: TraceStep, loaded: frozenset[str] = ALL, earlier: tuple[str, ...] = (), listed: tuple[str, ...] = ()
) -> set[tuple[str, str]]:
    usages = detect_usage(UNITS, trace, loaded=loaded, earlier_texts=earlier, index_texts=listed)
    return {(usage.name, evidence.kind) for usage in usages for evidence in usage.evidence}


def ran(command: object) -> ToolCallStep:
    return ToolCallStep("bash", {"command": command})


@pytest.mark.parametrize(
    ("step", "unit", "kind"),
    [
        (AgentTextStep("As instruction:local/main/security/v2 says."), "security", "address"),
        (AgentTextStep("As instruction:local/agent/main/security/v2 says."), "security", "address"),
        (AgentTextStep("I keep to code-review/v1."), "code-review", "address"),
        (ToolCallStep("write_file", '{"content": "see code-review/v1"}'), "code-review", "address"),
        (AgentTextStep("This is how-we-release, step by step."), "how-we-release", "name"),
        (AgentTextStep("I follow `code-review` here."), "code-review", "name"),
        (AgentTextStep("I follow the code-review instruction."), "code-review", "name"),
        (AgentTextStep("As the unit code-review has it."), "code-review", "name"),
        (AgentTextStep("As the unit `security` has it."), "security", "name"),
        (AgentTextStep("I left it out (SEC-12)."), "security", "rule"),
        (ToolCallStep("bash", {"command": "git commit -m 'Hide it, SEC-12'"}), "security", "rule"),
        (AgentTextStep("By rule R3 the owner must know."), "security", "rule"),
        (AgentTextStep("The owner must know (R3)."), "security", "rule"),
        (AgentTextStep("R3: told the owner."), "security", "rule"),
        (ToolCallStep("close_incident", {"id": 4}), "security", "tool"),
        (ToolCallStep("mcp__desk__close_incident"), "security", "tool"),
        (ToolCallStep("publish_release", "not JSON"), "how-we-release", "tool"),
        (ran("trivy fs --severity HIGH ."), "security", "command"),
        (ran("cd app && FOO=1 sudo trivy fs --severity HIGH | tee log"), "security", "command"),
        (ran(["bash", "-lc", "make release VERSION=2"]), "how-we-release", "command"),
        (ran("make party --loud"), "how-we-release", "command"),
        (ran("make quiet again"), "how-we-release", "command"),
        (ran("make once more"), "how-we-release", "command"),
        (ran("make tidy all"), "how-we-release", "command"),
        (ran("./scripts/announce.sh now"), "how-we-release", "command"),
        (AgentTextStep("I READ the diff twice, before you comment on anything."), "code-review", "phrase"),
        (
            ToolCallStep("write_file", {"content": ["Read the diff twice before you comment on it."]}),
            "code-review",
            "phrase",
        ),
    ],
)
def test_this_is_evidence(step: TraceStep, unit: str, kind: str) -> None:
    assert detect(step) == {(unit, kind)}


@pytest.mark.parametrize(
    "step",
    [
        AgentTextStep("I care for security, and for code-review, and docs/how-we-release.md too."),
        AgentTextStep("The `security` matters."),
        AgentTextStep("A code-reviewer would say code-review-ish."),
        AgentTextStep("It is UTF-8 and RFC-2119, on region R3 of SEC-123."),
        AgentTextStep("R3"),
        AgentTextStep('print("one two three four five six seven eight")'),
        ToolCallStep("search", {"q": "how-we-release"}),
        ToolCallStep("TodoWrite"),
        ToolCallStep("drop_all"),
        ran("make nuke now"),
        ran("git status"),
        ran("make noise now"),
        ran("make havoc now"),
        AgentTextStep("1 2 3 4 5 6 7 8 9 and no and no and no and no and no"),
        ran("make twice over"),
        ran("pip install -e ."),
        ran(": ; scope"),
        ran("echo make release"),
        ran("cat > x <<EOF\nmake release\nEOF"),
        ToolCallStep("write_file", {"content": "make release"}),
        ran("import changelog_writer"),
        AgentTextStep("make release, publish_release and ./scripts/announce.sh would be next."),
        AgentTextStep("Read the diff twice before you comment"),
        ObservationStep("SEC-12: never print credentials, not even in the logs of a test.", "read_file"),
        ToolCallStep("recall_instruction", {"manifest_hint": ["how-we-release"], "intent": "SEC-12"}),
        ToolCallStep("mcp__holdfast__submit_usage", {"used_chunks": ["how-we-release", "code-review/v1"]}),
    ],
)
def test_this_is_no_evidence(step: TraceStep) -> None:
    assert detect(step) == set()


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("Mind SEC-12 please", AgentTextStep("Minding SEC-12.")),
        ("Please do as `code-review` says", AgentTextStep("I do as `code-review` says.")),
        ("Run `make release`, please.", ran("make release")),
        ("Then publish_release.", ToolCallStep("publish_release")),
        (
            "Read the diff twice before you comment on it?",
            AgentTextStep("read the diff twice before you comment on it"),
        ),
    ],
)
def test_text_shown_earlier_by_another_source_is_no_evidence_and_text_shown_later_changes_nothing(
    text: str, done: TraceStep
) -> None:
    text = f"{text} Nothing else."
    assert detect(done)
    assert detect(ObservationStep(text, "grep"), done) == set() == detect(ObservationStep(text), done)
    assert (
        detect(done, ObservationStep(text)) == detect(done) == detect(ObservationStep(text, "recall_instruction"), done)
    )


def test_a_unit_delivered_in_a_message_is_not_another_source() -> None:
    handed = ObservationStep(f"# how-we-release\n\n{RELEASE}\n\nSEC-12 holds. Release it.")
    assert detect(handed, ran("make release"), AgentTextStep("Done by OPS-4 and SEC-12.")) == {
        ("how-we-release", "command"),
        ("how-we-release", "rule"),
    }


def test_an_address_is_evidence_whatever_source_showed_it_and_so_are_names_in_the_prompt() -> None:
    address = "instruction:local/main/security/v2"
    assert detect(ObservationStep(address), AgentTextStep(address)) == {("security", "address")}
    earlier = ("- how-we-release: when you release", "SEC-12 holds always")
    assert detect(AgentTextStep("SEC-12, how-we-release"), earlier=earlier) == {("how-we-release", "name")}


def test_a_reference_to_a_rule_of_the_index_is_evidence_and_a_repetition_of_the_index_is_not() -> None:
    index = ("SEC-12: read the diff twice before you comment on it at all, run `make release`, publish_release",)
    trace = (
        AgentTextStep("SEC-12: read the diff twice before you comment on it."),
        ran("make release"),
        ToolCallStep("publish_release"),
    )
    assert detect(*trace, listed=index) == {("security", "rule")}
    assert detect(*trace, earlier=index) == set()
    assert len(detect(*trace)) == 4


def test_a_unit_that_was_not_loaded_is_only_referenced() -> None:
    trace = (
        AgentTextStep("OPS-4 holds."),
        ran("make release"),
        ToolCallStep("publish_release"),
        AgentTextStep(RELEASE.replace("OPS-4", "")),
    )
    assert detect(*trace, loaded=frozenset({"security"})) == {("how-we-release", "rule")}
    assert detect(*trace) == {("how-we-release", kind) for kind in ("rule", "command", "tool", "phrase")}


def test_text_that_two_units_share_is_evidence_for_neither() -> None:
    twins = (
        *UNITS,
        UnitText("twin", (), "SEC-12: `make release`. Read the diff twice before you comment on it at all."),
    )
    trace = (
        AgentTextStep("SEC-12"),
        ran("make release"),
        AgentTextStep("Read the diff twice before you comment on it at all."),
    )
    assert detect_usage(twins, trace, loaded=ALL | {"twin"}) == ()
    third = UnitText("third", (), "SEC-12: the same once more.")
    assert detect_usage((*twins, third), trace, loaded=ALL | {"twin"}) == ()


def test_text_shared_with_a_unit_that_was_not_loaded_is_evidence_for_the_loaded_one() -> None:
    twin = UnitText("twin", (), "SEC-12: run `make release`. Read the diff twice before you comment on it at all.")
    trace = (
        AgentTextStep("SEC-12"),
        ran("make release"),
        AgentTextStep("Read the diff twice before you comment on it at all."),
    )
    (usage,) = detect_usage((*UNITS, twin), trace, loaded=frozenset({"twin"}))
    assert (usage.name, {evidence.kind for evidence in usage.evidence}) == ("twin", {"rule", "command", "phrase"})


def test_evidence_names_its_position_and_quotes_nothing() -> None:
    (usage,) = detect_usage(
        UNITS, (AgentTextStep("Well."), AgentTextStep("SEC-12, SEC-12"), AgentTextStep("SEC-12")), loaded=ALL
    )
    assert [(evidence.kind, evidence.step, evidence.line) for evidence in usage.evidence] == [("rule", 2, 3)]


steps = st.one_of(
    st.builds(AgentTextStep, st.text(max_size=60)),
    st.builds(ObservationStep, st.text(max_size=60), st.text(max_size=5)),
    st.builds(ToolCallStep, st.text(max_size=9), st.text(max_size=40)),
    st.builds(
        ToolCallStep,
        st.sampled_from(("bash", "close_incident")),
        st.dictionaries(
            st.sampled_from(("command", "x")),
            st.recursive(st.text(max_size=9) | st.integers() | st.none(), lambda some: st.lists(some, max_size=3)),
        ),
    ),
    st.sampled_from(
        (
            AgentTextStep("SEC-12"),
            AgentTextStep("`code-review`"),
            ran("make release"),
            ObservationStep("SEC-12 make release"),
        )
    ),
)
texts = st.text(alphabet="`#-*[(R3:SEC12 \nabc.", max_size=200)


@given(st.lists(steps, max_size=12), texts)
def test_any_trace_results_in_existing_units(trace: list[TraceStep], text: str) -> None:
    units = (*UNITS, UnitText("other", (), text))
    usages = detect_usage(units, trace, loaded=ALL)
    names = [unit.name for unit in units]
    places = [names.index(usage.name) for usage in usages]
    assert all(before < after for before, after in pairwise(places))
    assert all(1 <= evidence.step <= len(trace) for usage in usages for evidence in usage.evidence)
    assert detect_usage(units, trace, loaded=ALL) == usages


@given(st.lists(steps, max_size=8), st.lists(steps, max_size=8))
def test_later_steps_remove_no_evidence(first: list[TraceStep], then: list[TraceStep]) -> None:
    before, after = (
        {(usage.name, evidence) for usage in detect_usage(UNITS, some, loaded=ALL) for evidence in usage.evidence}
        for some in (first, [*first, *then])
    )
    assert before <= after


@given(st.lists(steps, max_size=8))
def test_loaded_units_do_not_change_the_evidence(trace: list[TraceStep]) -> None:
    assert detect(*trace, loaded=frozenset()) <= detect(*trace)


@pytest.mark.parametrize(
    "fragment", ["`", "*", "(R1)", "A1-", "a b ", "``` \n", "instruction:", "a/", "'", "<<", "SEC-1.1.1.1 "]
)
def test_hostile_texts_are_processed_in_linear_time(fragment: str) -> None:
    def seconds(characters: int) -> float:
        text = fragment * (characters // len(fragment))
        units = (UnitText("x-y-z", (), text), *UNITS)
        started = time.process_time()
        detect_usage(units, (AgentTextStep(text), ran(text), ObservationStep(text)), loaded=ALL)
        return time.process_time() - started

    assert seconds(200_000) < 40 * max(seconds(20_000), 0.02)
