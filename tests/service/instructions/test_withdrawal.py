"""A unit that is withdrawn, replaced or taken off the manifest is gone at once, whatever heartbeat a recall names."""

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry, uri

REVIEW = "review a pull request"


@pytest.fixture
def run(published_service: InstructionService) -> str:
    """A heartbeat that began while every unit was active."""
    heartbeat_id: str = published_service.heartbeat(published_service.wake("manual")).json["heartbeat_id"]
    published_service.clock.advance(60)
    return heartbeat_id


def recall_everywhere(service: InstructionService, run: str) -> list[list[str]]:
    """Names that a recall returns within the heartbeat, without one, and by hint."""
    return [
        service.recalled(REVIEW, heartbeat_id=run),
        service.recalled(REVIEW),
        service.recalled(REVIEW, heartbeat_id=run, manifest_hint=["code-review"]),
    ]


def withdraw(service: InstructionService, name: str, version: str = "v1", *, key: str | None = None) -> tuple[int, str]:
    response = service.request("POST", "/v1/instruction/units/withdraw", {"fact_uri": uri(name, version)}, key=key)
    return response.status, response.json.get("status") or response.code


def test_withdrawn_unit_is_gone_for_a_running_heartbeat(published_service: InstructionService, run: str) -> None:
    assert recall_everywhere(published_service, run) == [["code-review"]] * 3
    assert withdraw(published_service, "code-review") == (200, "quarantined")
    assert recall_everywhere(published_service, run) == [[]] * 3
    assert published_service.recall(REVIEW, heartbeat_id=run).json["unavailable"] == ["code-review"]


def test_unit_off_the_manifest_is_gone_for_a_running_heartbeat(published_service: InstructionService, run: str) -> None:
    rest = [entry(name) for name in UNITS if name != "code-review"]
    assert published_service.publish(rest, "v2").status == 200
    assert not any("code-review" in names for names in recall_everywhere(published_service, run))


def test_replaced_text_is_gone_for_a_running_heartbeat(published_service: InstructionService, run: str) -> None:
    assert published_service.write("code-review", "v2", "Newer words on a pull request.").json["status"] == "active"
    (chunk,) = published_service.recall(REVIEW, heartbeat_id=run).json["chunks"]
    assert (chunk["version"], chunk["content"]) == ("v2", "Newer words on a pull request.")


def test_preload_does_not_return_a_withdrawn_unit(published_service: InstructionService) -> None:
    listed = [entry(name, required_by_task_types=["manual"]) for name in UNITS]
    assert published_service.publish(listed, "v2").status == 200
    assert withdraw(published_service, "code-review") == (200, "quarantined")
    heartbeat = published_service.heartbeat(published_service.wake("manual")).json
    assert "code-review" not in [preload["name"] for preload in heartbeat["preloads"]]
    assert [warning["unit"] for warning in heartbeat["warnings"] if warning["unit"]] == ["code-review"]


def test_only_an_admin_may_withdraw_and_only_what_exists(published_service: InstructionService) -> None:
    assert withdraw(published_service, "code-review", key=published_service.agent_key) == (
        403,
        "instruction_scope_denied",
    )
    assert withdraw(published_service, "code-review", "v9") == (404, "unit_not_found")
    assert published_service.recalled(REVIEW) == ["code-review"]


def test_withdrawn_version_written_again_is_judged_again(published_service: InstructionService) -> None:
    withdraw(published_service, "code-review")
    published_service.clock.advance(1)
    assert published_service.write("code-review").json["status"] == "active"
    assert published_service.recalled(REVIEW) == ["code-review"]


def test_heartbeat_older_than_a_day_adds_nothing_to_a_recall(published_service: InstructionService) -> None:
    triggers = {"intents": list(UNITS["code-review"][1]), "task_types": ["manual"]}
    listed = [entry(name, **({"load_triggers": triggers} if name == "code-review" else {})) for name in UNITS]
    assert published_service.publish(listed, "v2").status == 200
    run = published_service.heartbeat(published_service.wake("manual")).json["heartbeat_id"]

    def fits() -> list[bool]:
        chunks = published_service.recall(REVIEW, heartbeat_id=run, explain=True).json["chunks"]
        return ["fits_task_type" in chunk["why"] for chunk in chunks]

    assert fits() == [True]
    published_service.clock.advance(24 * 3600 + 1)
    assert fits() == [False]
    assert published_service.records("recall")[-1]["agent_id"] == AGENT
