"""One unit over HTTP from start to end: written, published, in the stub, recalled, audited, covered."""

import yaml
from tests.support.instruction_service import AGENT, UNITS, InstructionService, uri


def test_unit_is_written_published_recalled_and_audited(service: InstructionService) -> None:
    written = service.write("checkout-procedure")
    assert written.status == 201
    assert written.json["fact_uri"] == uri("checkout-procedure")
    assert len(written.json["content_sha256"]) == 64
    assert written.json["tokens"] > 5
    for name in UNITS:
        service.write(name)
    published = service.publish()
    assert published.status == 200
    assert published.json["fact_uri"] == uri("manifest")
    assert {line["unit"]: line["passed"] for line in published.json["coverage_report"]} == dict.fromkeys(UNITS, True)

    stub = service.agent_request("GET", "/boot-stub", key=service.agent_key)
    assert stub.status == 200
    assert stub.headers["content-type"].startswith("text/markdown")
    assert stub.headers["x-stub-version"] == "1"
    assert stub.headers["x-manifest-version"] == "v1"
    _, front, body = stub.body.decode().split("---\n")
    manifest = yaml.safe_load(front)
    assert manifest["agent_id"] == AGENT
    assert manifest["manifest_uri"] == uri("manifest")
    assert manifest["migration_mode"] == "stigmem"
    assert manifest["recall_tool_schema"]["input_schema"]["properties"]["token_budget"]["default"] == 2000
    assert "recall_instruction(intent)" in body

    recalled = service.recall("I need to check out an issue and start work")
    assert recalled.status == 200
    first = recalled.json["chunks"][0]
    assert first["name"] == "checkout-procedure"
    assert first["content"] == UNITS["checkout-procedure"][2]
    assert (first["source"], first["version"], first["fact_uri"]) == ("stigmem", "v1", uri("checkout-procedure"))
    token = recalled.json["audit_token"]
    assert token.startswith("audi_")

    closing = {"audit_token": token, "used_chunks": ["checkout-procedure"], "missed_chunks": []}
    closed = service.request("POST", "/v1/instruction/audit", closing, key=service.agent_key)
    assert (closed.status, closed.body) == (204, b"")
    (record,) = service.records("recall")
    assert record["id"].startswith("audevent_")
    assert record["used_chunks"] == ["checkout-procedure"]

    coverage = service.agent_request("GET", "/instruction-manifest/coverage", key=service.agent_key)
    assert coverage.status == 200
    assert {unit["name"] for unit in coverage.json["units"]} == set(UNITS)
    assert all(15 <= unit["probe_count"] <= 20 for unit in coverage.json["units"])
