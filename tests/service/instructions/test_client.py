"""The Python client against a service on a real port."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry

from holdfast import InstructionClient, StoreError, UserError
from holdfast.runtime.instructions.client import ServiceError


def client_of(service: InstructionService, *, key: str | None = None) -> InstructionClient:
    return InstructionClient(service.client.url, key=key or service.agent_key, agent=AGENT)


def test_client_gets_the_instructions_of_the_service(published_service: InstructionService) -> None:
    client = client_of(published_service)
    assert client.stub() == published_service.agent_request("GET", "/boot-stub").body.decode()
    assert [unit.name for unit in client.manifest().entries] == list(UNITS)
    recalled = client.recall("review a pull request", max_chunks=1, manifest_hint=["nothing"])
    assert recalled.chunks[0].content == UNITS["code-review"][2]
    assert recalled.missed_hints == ("nothing",)


def test_heartbeat_has_its_preloads_and_submits_usage_at_the_end(service: InstructionService) -> None:
    service.publish_all([entry("code-review", required_by_task_types=["issue_assigned"]), entry("checkout-procedure")])
    with client_of(service).heartbeat(service.wake()) as beat:
        assert [preload.name for preload in beat.preloads] == ["code-review"]
        beat.recall("claim a ticket")
        beat.report_used("code-review", "checkout-procedure")
        beat.report_missed("budget-rules")
    preload, recall = service.records("preload")[0], service.records("recall")[0]
    assert preload["used_chunks"] == ["code-review"]
    assert recall["heartbeat_id"] == preload["heartbeat_id"]
    assert (recall["used_chunks"], recall["missed_chunks"]) == (
        [name for name in recall["loaded_chunks"] if name in ("code-review", "checkout-procedure")],
        ["budget-rules"],
    )


def test_successful_run_does_not_fail_when_its_record_cannot_be_closed(published_service: InstructionService) -> None:
    with client_of(published_service).heartbeat() as beat:
        beat.recall("claim a ticket")
        published_service.clock.advance(2 * 86_400)
    assert published_service.records("recall")[0]["audit_closed"] is None


def test_client_error_has_the_code_of_the_service(published_service: InstructionService) -> None:
    stranger = client_of(published_service, key=published_service.client.key("agent:other"))
    with pytest.raises(ServiceError) as refused:
        stranger.recall("claim a ticket")
    assert (refused.value.code, refused.value.status) == ("instruction_scope_denied", 403)


def test_key_is_not_sent_after_a_redirect() -> None:
    requested_paths: list[str] = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested_paths.append(self.path)
            self.send_response(302)
            self.send_header("location", "/stolen")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        client = InstructionClient(f"http://127.0.0.1:{server.server_port}", key="hf_secret", agent="main")
        with pytest.raises(ServiceError) as refused:
            client.stub()
        server.shutdown()
    assert refused.value.status == 302
    assert requested_paths == ["/v1/agents/main/boot-stub?profile=generic"]


def test_unreachable_service_is_reported_without_the_key() -> None:
    client = InstructionClient("http://127.0.0.1:1", key="hf_secret", agent="main")
    with pytest.raises(StoreError, match="cannot be reached") as failed:
        client.stub()
    assert "hf_secret" not in str(failed.value)
    with pytest.raises(UserError, match="begins with http"):
        InstructionClient("file:///etc/passwd", key="k", agent="main")
