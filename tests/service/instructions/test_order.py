"""Publishing with two faults at once: the first in the agreed order is reported, and nothing is changed."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.support.instruction_service import UNITS, InstructionService, entry


class Fault(msgspec.Struct, frozen=True):
    """Entries and other fields of the body that are refused with a code and a message that names no other fault."""

    code: str
    says: str
    entries: tuple[dict[str, object], ...] = ()
    more: dict[str, Any] = {}
    version: str = "v2"


CODE = "manifest_entry_invalid"
GUARANTEED = tuple(f"always-{number}" for number in range(6))
APPROVALS = [{"kind": "guarantee_load", "unit": name} for name in ("cosigned", *GUARANTEED)]
ALWAYS = tuple(entry(name, guarantee_load=True) for name in GUARANTEED)
LONG = tuple(entry(f"long-{number}", description="many words indeed " * 6) for number in range(90))
STRAY = (
    entry("code-review", load_triggers={"intents": ["claim a ticket"]}),
    *(entry(name) for name in UNITS if name != "code-review"),
)

ORDER = {
    "body": Fault(CODE, "unknown field", (entry("unread", guaranteed_load=True),)),
    "shape": Fault(CODE, "a description has 1 to", (entry("shapeless", description=""),)),
    "names": Fault(CODE, "is in the manifest twice", (entry("twice"), entry("twice"))),
    "pointers": Fault(CODE, "another agent", (entry("foreign", fact_uri="instruction:local/other/foreign/v1"),)),
    "paths": Fault(CODE, "path is outside", (entry("outside", fact_uri=None, path="../secret.md"),)),
    "task types": Fault("task_type_unknown", "tea_time", (entry("untimely", required_by_task_types=["tea_time"]),)),
    "approvals": Fault(
        "task_types_approval_required",
        "needs an approval",
        (entry("broad", required_by_task_types=["manual", "routine_fired", "approval_resolved"]),),
    ),
    "caps": Fault("guarantee_cap_exceeded", "units have guarantee_load", ALWAYS, {"approvals": APPROVALS}),
    "size": Fault("manifest_too_large", "tokens", LONG),
    "version": Fault("manifest_version_conflict", "does not follow", version="v1"),
    "coverage": Fault("manifest_coverage_failure", "code-review", STRAY),
}
COSIGN = Fault(
    "skip_gate_cosign_required",
    "two admins",
    (entry("cosigned", guarantee_load=True),),
    {"approvals": APPROVALS, "skip_coverage_gate": True},
)
PAIRS = {
    **{f"{first} before {then}": (ORDER[first], ORDER[then]) for first, then in pairwise(ORDER)},
    "task types before the second admin": (ORDER["task types"], COSIGN),
    "the second admin before caps": (COSIGN, ORDER["caps"]),
}
"""If two checks are swapped, at least one neighbouring pair changes its order."""


@pytest.mark.parametrize(("first", "then"), PAIRS.values(), ids=PAIRS)
def test_of_two_faults_the_first_in_the_agreed_order_is_reported(
    published_service: InstructionService, first: Fault, then: Fault
) -> None:
    # The fault that is checked second comes first in the body.
    listed = (*then.entries, *first.entries)
    version = "v1" if "v1" in (first.version, then.version) else "v2"
    response = published_service.publish(listed, version, **{**then.more, **first.more})
    assert response.code == first.code
    assert first.says in response.json["error"]["message"]
    manifest = published_service.agent_request("GET", "/instruction-manifest").json
    assert (manifest["manifest_version"], len(manifest["entries"])) == ("v1", len(UNITS))


@pytest.mark.parametrize("fault", [*ORDER.values(), COSIGN], ids=[*ORDER, "the second admin"])
def test_each_of_these_faults_is_an_error_by_itself(published_service: InstructionService, fault: Fault) -> None:
    response = published_service.publish(fault.entries or None, fault.version, **fault.more)
    assert response.code == fault.code
    assert fault.says in response.json["error"]["message"]
