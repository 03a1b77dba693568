"""Properties of the hook in any settings file: no other byte changes, and the hook can be removed again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.library_projects import is_insertion

from holdfast.errors import UserError
from holdfast.runtime.instructions.hook import add_hook, remove_hook
from holdfast.sources.settings_file import append_part, find_container, find_root, remove_part
from holdfast.types.blocks import Json

COMMAND = "holdfast instructions hook --agent 'ann \"ü\"'"
WORDS = st.sampled_from(["hooks", "SessionStart", "Stop", "matcher", "command", "", 'ü"\\,{}[]:'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)
GROUPS = st.lists(VALUES | st.fixed_dictionaries({"hooks": st.lists(VALUES, max_size=3)}), min_size=1, max_size=3)
HOOKS = st.fixed_dictionaries({"Stop": VALUES}, optional={"SessionStart": GROUPS})
SETTINGS = st.fixed_dictionaries({"a": VALUES}, optional={"hooks": HOOKS, "b": VALUES})
INDENTS = st.sampled_from([None, 0, 1, 2, "\t"])
LINE_ENDINGS = st.sampled_from(["\n", "\r\n"])


def encode_settings(value: object, indent: int | str | None, end: str) -> str:
    return json.dumps(value, indent=indent).replace("\n", end)


@given(SETTINGS, INDENTS, LINE_ENDINGS)
def test_a_hook_is_added_without_other_changes_and_removed_again(
    settings: dict[str, object], indent: int | None, end: str
) -> None:
    text = encode_settings(settings, indent, end)
    with_hook = add_hook(text, COMMAND)
    assert is_insertion(text, with_hook)
    group = json.loads(with_hook)["hooks"]["SessionStart"][-1]
    assert group["hooks"][0]["command"] == COMMAND
    assert add_hook(with_hook, COMMAND) == with_hook
    assert remove_hook(with_hook) == text
    assert remove_hook(text) == text
    assert remove_hook(add_hook(with_hook, "holdfast instructions hook")) == text


@given(st.text(st.sampled_from('{}[]",: \\u\n1ea') | st.characters(), max_size=30))
def test_any_text_becomes_valid_settings_or_is_refused(text: str) -> None:
    try:
        with_hook = add_hook(text, COMMAND)
    except UserError:
        return
    assert json.loads(with_hook)["hooks"]["SessionStart"][-1]["hooks"][0]["command"] == COMMAND


@given(st.lists(VALUES, max_size=4) | st.dictionaries(WORDS, VALUES, max_size=4), VALUES, INDENTS, LINE_ENDINGS)
def test_an_appended_part_is_last_and_any_part_can_be_removed(
    value: list[object] | dict[str, object], added: Json, indent: int | None, end: str
) -> None:
    text = encode_settings(value, indent, end)
    root = find_root(text)
    assert root is not None
    parts = list(value.items()) if isinstance(value, dict) else [(None, one) for one in value]
    assert [part.name for part in root.parts] == [name for name, _ in parts]
    assert [json.loads(text[part.value_start : part.end]) for part in root.parts] == [one for _, one in parts]
    more = json.loads(append_part(text, root, "new" if isinstance(value, dict) else None, added))
    assert more == ({**value, "new": added} if isinstance(value, dict) else [*value, added])
    for index in range(len(parts)):
        remaining = parts[:index] + parts[index + 1 :]
        less = json.loads(remove_part(text, root, index))
        assert less == (dict(remaining) if isinstance(value, dict) else [one for _, one in remaining])


@pytest.mark.parametrize("text", ["1", '"{"', " null"])
def test_a_scalar_has_no_parts(text: str) -> None:
    assert find_root(text) is None
    assert find_container('{"a": 1}', 6) is None
