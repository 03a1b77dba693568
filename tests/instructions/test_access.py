"""Which caller may see the instructions of which agent: the rules, without HTTP and without a store."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InstructionError
from holdfast.instructions.access import (
    InstructionCaller,
    check_instruction_access,
    check_owner_access,
    check_recall_access,
)
from holdfast.instructions.models import Agent

NAMES = st.text("ab:/ A", min_size=1, max_size=4)

NEAR: tuple[Callable[[str], str], ...] = (
    lambda name: name,
    lambda name: name[:-1],
    lambda name: name[1:],
    lambda name: f"{name}x",
    lambda name: f"x{name}",
    lambda name: f"x:{name}",
    lambda name: f" {name} ",
    str.swapcase,
)
"""Names that equal a given one, contain it, or are part of it."""

CHECKS = {"owner": check_owner_access, "recall": check_recall_access, "any agent": check_instruction_access}


def is_allowed(check: Callable[..., None], *arguments: Any) -> bool:
    refusal = None
    try:
        check(*arguments)
    except InstructionError as error:
        refusal = error.code, str(error)
    denied = "instruction_scope_denied", "this key may not see or change the instructions of that agent"
    assert refusal in (None, denied)
    return refusal is None


def agent_of(name: str, shortname: str | None = None, supervisors: tuple[str, ...] = ()) -> Agent:
    return Agent(name, "local", 0, shortname=shortname, supervisors=supervisors)


@given(st.data(), NAMES, NAMES, st.none() | NAMES, st.lists(NAMES, max_size=2), st.booleans())
def test_agent_is_matched_by_exact_names_and_a_supervisor_can_only_recall(
    data: st.DataObject, requested: str, agent_id: str, shortname: str | None, supervisors: list[str], exists: bool
) -> None:
    agent = agent_of(agent_id, shortname, tuple(supervisors)) if exists else None
    own_names = {requested, agent_id, shortname} if exists else {requested}
    related = sorted({requested, agent_id, shortname or requested, *supervisors})
    find = {requested: agent}.get
    for near in NEAR:
        name = near(data.draw(st.sampled_from(related)))
        caller = InstructionCaller(f"agent:{name}", "key")
        owns = bool(name) and name in own_names
        supervises = bool(name) and exists and name in supervisors
        assert is_allowed(check_owner_access, caller, requested, agent, find) == owns
        assert is_allowed(check_recall_access, caller, requested, agent, find) == (owns or supervises)
        assert is_allowed(check_instruction_access, caller, requested, agent, find) == bool(name)


def test_admin_sees_every_agent() -> None:
    for check in CHECKS.values():
        assert is_allowed(check, InstructionCaller("admin", "key"), "a1", agent_of("a1"), lambda name: None)
        assert is_allowed(check, InstructionCaller("admin", "key"), "unknown", None, lambda name: None)


@pytest.mark.parametrize("kind", CHECKS)
def test_keys_without_instruction_scope_see_none(kind: str) -> None:
    for scope in ("read", "gateway", "agent", "agent:", "", "Admin", "admin:a1"):
        assert not is_allowed(CHECKS[kind], InstructionCaller(scope, "key"), "a1", agent_of("a1"), lambda name: None)


def test_supervisor_is_matched_by_id_and_current_shortname() -> None:
    supervisor = agent_of("boss-id", "chief")
    registered = {"boss-id": supervisor, "chief": supervisor}.get
    # By declared name: who may recall before and after the supervisor is registered.
    for declared, unregistered in (("boss-id", {"boss-id"}), ("chief", {"chief"})):
        agent = agent_of("a1", supervisors=(declared,))
        for name in ("boss-id", "chief", "bos", "bossy", "x:boss-id", "chief-2", "CHIEF"):
            caller = InstructionCaller(f"agent:{name}", "key")
            assert is_allowed(check_recall_access, caller, "a1", agent, lambda _: None) == (name in unregistered), name
            known = name in ("boss-id", "chief")
            assert is_allowed(check_recall_access, caller, "a1", agent, registered) == known, name
            assert not is_allowed(check_owner_access, caller, "a1", agent, registered), name


def test_same_error_for_existing_and_unknown_agents() -> None:
    peer = InstructionCaller("agent:other", "key")
    for check in (check_owner_access, check_recall_access):
        assert not is_allowed(check, peer, "a1", agent_of("a1"), lambda name: None)
        assert not is_allowed(check, peer, "a1", None, lambda name: None)
