"""`holdfast db export --instructions`: moves agents' instructions to another store of the deployment."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.commands import run_in_process
from tests.support.event_examples import message_event
from tests.support.instruction_service import (
    AGENT,
    ANN,
    BEN,
    DEPLOYMENT_KEY,
    UNITS,
    InstructionService,
    entry,
    library_of,
    uri,
)
from tests.support.postgres_server import reused_database
from tests.support.served_service import serve_store

from holdfast.clock import ManualClock
from holdfast.instructions.models import Approval, UnitVersion
from holdfast.instructions.units.signatures import DeploymentKey, approval_message, unit_message
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.open import open_store

BENS = DeploymentKey(b"b" * 32)
SHARED = "instruction:local/shared/etiquette/v1"
INTENTS = ("claim a ticket", "review a pull request", "what am I not allowed to do", "announce a new version")
Lines = list[dict[str, Any]]


@contextmanager
def address_of(kind: str, folder: Path) -> Iterator[str]:
    folder.mkdir(exist_ok=True)
    if kind == "postgres":
        with reused_database() as url:
            yield url
    else:
        yield str(folder / "log.db")


@contextmanager
def served(address: str, folder: Path, **settings: Any) -> Iterator[InstructionService]:
    clock, root = ManualClock(), folder / "root"
    with closing(open_store(address)) as store:
        assert isinstance(store, DatabaseEventLog)
        library = library_of(store, clock, root, **settings)
        with serve_store(store, clock=clock, library=library) as client:
            yield InstructionService(client, clock, library, root / AGENT)


def home(folder: Path, *, deployment: str = "local", key: DeploymentKey | None = DEPLOYMENT_KEY) -> str:
    home_folder = folder / f"home-{deployment}-{key is None}"
    home_folder.mkdir(parents=True, exist_ok=True)
    (home_folder / "config.toml").write_text(f'[instructions]\ndeployment = "{deployment}"\nencoder = "wordllama"\n')
    if key is not None:
        (home_folder / "instructions.key").write_bytes(key.secret)
    return str(home_folder)


def run(folder: Path, *words: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    return run_in_process("db", *words, HOLDFAST_HOME=home(folder, **more))


def run_ok(folder: Path, *words: str, **more: Any) -> str:
    done = run(folder, *words, **more)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def refusal_message(folder: Path, *words: str, **more: Any) -> str:
    """The one-line refusal; the exit status is 1."""
    done = run(folder, *words, **more)
    assert done.returncode == 1
    assert done.stderr.startswith("holdfast: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def export_file(folder: Path, db: str, **more: Any) -> str:
    return run_ok(folder, "export", "--content", "--instructions", "--db", db, **more)


def export_lines(text: str) -> Lines:
    return [json.loads(line) for line in text.splitlines()]


def rows(lines: Lines, kind: str) -> Lines:
    return [line["row"] for line in lines if line.get("instruction_records") == kind]


def write_lines(folder: Path, lines: Sequence[object]) -> str:
    file = folder / "changed.jsonl"
    file.write_text("".join(line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines))
    return str(file)


def register(at: InstructionService) -> None:
    assert at.request("PUT", "/v1/instruction/signer", {"public_key": BENS.public_key}, key=at.ben).status == 200


def fill_store(at: InstructionService) -> None:
    """One of every kind, by two signers, and of every status."""
    register(at)
    at.agent_request("PUT", "", {"role": "Scout", "shortname": "scout", "always_rules": ["Be kind."]})
    at.request("PUT", "/v1/agents/other", {"role": "Other"})
    at.request("PUT", "/v1/instruction/units", {"fact_uri": SHARED, "content": "Say please to everyone."})
    for name in UNITS:
        if name != "release-notes":
            at.write(name)
    unit_uri = "instruction:local/agent/scout/release-notes/v1"
    text = UNITS["release-notes"][2]
    signature = BENS.sign(unit_message(unit_uri, hashlib.sha256(text.encode()).hexdigest()))
    body = {"fact_uri": unit_uri, "content": text, "authored_by": BEN, "signature": signature}
    assert at.request("PUT", "/v1/instruction/units", body).json["status"] == "active"
    listed = [
        entry("security-posture", guarantee_load=True, required_by_task_types=["issue_assigned"]),
        *(entry(name) for name in UNITS if name != "security-posture"),
        {"name": "etiquette", "description": "How to be polite.", "fact_uri": SHARED},
    ]
    pending = Approval(
        id="", agent_id=AGENT, kind="guarantee_load", unit="security-posture", authored_by=BEN, authored_at=0
    )
    approval = {"kind": "guarantee_load", "unit": "security-posture", "authored_by": BEN}
    for version in ("v1", "v2"):
        signed = {**approval, "signature": BENS.sign(approval_message(pending))}
        own = {"kind": "guarantee_load", "unit": "security-posture", "version": "v1"}
        published = at.publish(listed, version, approvals=[signed, own])
        assert published.status == 200, published.body
        at.clock.advance(1)
    at.write("code-review", "v2", "Read the whole diff of the pull request twice before you leave a review comment.")
    assert at.write("security-posture", "v2", "Print nothing at all.").json["status"] == "pending"
    assert at.write("budget-rules", "v2", "Spend all.", signature="AAAA").json["status"] == "quarantined"
    at.agent_request(
        "PUT", "/instruction-probes", {"probe_id": "p", "intent": "claim it", "required_units": ["code-review"]}
    )
    at.agent_request("POST", "/instruction-manifest/coverage")
    at.clock.advance(1)
    heartbeat = at.heartbeat(at.wake(jti="the-jti-of-a-wake-token"))
    assert heartbeat.status == 200, heartbeat.body
    recalled = at.recall("claim a ticket").json
    assert at.request(
        "POST",
        "/v1/instruction/audit",
        {"audit_token": recalled["audit_token"], "used_chunks": ["checkout-procedure"], "missed_chunks": []},
    ).status in (200, 204)


def service_answers(at: InstructionService) -> Lines:
    recalls = [at.recall(intent).json for intent in INTENTS]
    for recalled in recalls:
        del recalled["audit_token"]
    return recalls


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export with every kind of record."""
    folder = tmp_path_factory.mktemp("source")
    with address_of("sqlite", folder) as db:
        with served(db, folder) as at:
            fill_store(at)
            at.client.service.log.append([message_event(1, "s")]).result(10)
        return export_file(folder, db)


@pytest.mark.parametrize(("here", "there"), [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite")])
def test_instructions_exported_from_one_store_are_served_by_the_other(tmp_path: Path, here: str, there: str) -> None:
    file = str(tmp_path / "out.jsonl")
    with address_of(here, tmp_path / "a") as first, address_of(there, tmp_path / "b") as second:
        with served(first, tmp_path / "a") as at:
            fill_store(at)
            run(tmp_path, "export", file, "--content", "--instructions", "--db", first)
            expected = service_answers(at)
        lines = export_lines(Path(file).read_text())
        kinds = {line["instruction_records"] for line in lines if "row" in line}
        assert kinds == {"agent", "unit", "manifest", "approval", "coverage", "probe", "audit"}
        with served(second, tmp_path / "b") as at:
            register(at)
            count = lines[-1]["instruction_records"]
            assert (
                run_ok(tmp_path, "import", file, "--db", second) == f"3 owners of instructions: {count} records added\n"
            )
            again = export_lines(export_file(tmp_path, second))
            assert again[1:] == lines[1:]
            assert service_answers(at) == expected
        second_import_line = "3 owners of instructions, 3 of them already stored: 0 records added\n"
        assert run_ok(tmp_path, "import", file, "--db", second) == second_import_line


def test_instructions_and_events_are_exported_together(tmp_path: Path, source: str) -> None:
    (tmp_path / "out.jsonl").write_text(source)
    other = str(tmp_path / "other.db")
    done = run_ok(tmp_path, "import", str(tmp_path / "out.jsonl"), "--db", other)
    assert done.splitlines()[-1] == "1 session: 1 event added, 0 already stored"
    assert run_ok(tmp_path, "export", "--content", "--db", other).splitlines()[1] == source.splitlines()[-2]


def test_an_export_without_the_flag_contains_no_instruction(tmp_path: Path, source: str) -> None:
    db = import_text(tmp_path, source)
    for words, content in (((), "false"), (("--content",), "true")):
        first, event, last = run_ok(tmp_path, "export", "--db", db, *words).splitlines()
        assert re.fullmatch(rf'{{"holdfast_export":1,"content":{content},"exported_at":[0-9.]+}}', first)
        assert '"session_id":"s"' in event
        assert last == '{"end_of_export":true,"sessions":1,"events":1}'


def test_instructions_are_content_and_exported_only_as_such(tmp_path: Path, source: str) -> None:
    db, file = import_text(tmp_path, source), tmp_path / "out"
    assert "--content --instructions" in refusal_message(tmp_path, "export", str(file), "--instructions", "--db", db)
    assert not file.exists()


def test_no_key_no_token_and_no_stub_is_in_an_export(tmp_path: Path) -> None:
    with address_of("sqlite", tmp_path) as db, served(db, tmp_path) as at:
        fill_store(at)
        assert at.agent_request("GET", "/boot-stub").status == 200
        text = export_file(tmp_path, db)
        stored = Path(db).read_bytes() + Path(f"{db}-wal").read_bytes()
        public, stub = BENS.public_key, "# Agent Boot Stub"
        digests = [row.digest for row in at.client.service.records.all_keys()]
        jti = "the-jti-of-a-wake-token"
        assert all(secret.encode() in stored for secret in (jti, public, stub, *digests))
    secrets = [at.ann, at.ben, at.agent_key, *digests, jti, public, stub, DEPLOYMENT_KEY.public_key]
    secrets += [DEPLOYMENT_KEY.secret.hex(), DEPLOYMENT_KEY.secret.decode("latin-1"), "instruction_encoder"]
    for key in (at.ann, at.ben, at.agent_key):
        secrets.append(key.split("_")[-1])
    assert [secret for secret in secrets if secret in text or json.dumps(secret)[1:-1] in text] == []


def import_text(folder: Path, text: str, **more: Any) -> str:
    """The address of a store into which the text was imported."""
    file, db = folder / "export.jsonl", folder / "imported.db"
    file.write_text(text)
    run_ok(folder, "import", str(file), "--db", str(db), **more)
    return str(db)


def test_instructions_of_another_deployment_are_refused_before_anything_is_written(tmp_path: Path, source: str) -> None:
    file, db = tmp_path / "out.jsonl", tmp_path / "other.db"
    file.write_text(source)
    line = refusal_message(tmp_path, "import", str(file), "--db", str(db), deployment="prod")
    assert "'local'" in line
    assert "'prod'" in line
    assert not db.exists()


def test_a_file_that_falsely_claims_this_deployment_is_refused_at_its_records(tmp_path: Path, source: str) -> None:
    lines = export_lines(source)
    lines[0]["deployment"] = "prod"
    line = refusal_message(
        tmp_path, "import", write_lines(tmp_path, lines), "--db", str(tmp_path / "other.db"), deployment="prod"
    )
    assert "line 2: it belongs to another deployment; this one is 'prod'" in line
    assert rows(export_lines(export_file(tmp_path, str(tmp_path / "other.db"), deployment="prod")), "unit") == []


@pytest.mark.parametrize("kept_word", ["agent", "unit"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_instructions_of_another_deployment_are_not_exported(tmp_path: Path, kind: str, kept_word: str) -> None:
    with address_of(kind, tmp_path) as db:
        with served(db, tmp_path, deployment="local-too") as at:
            body = {"fact_uri": "instruction:local-too/shared/x/v1", "content": "X."}
            done = (
                at.agent_request("PUT", "", {})
                if kept_word == "agent"
                else at.request("PUT", "/v1/instruction/units", body)
            )
            assert done.status in (200, 201)
        line = refusal_message(tmp_path, "export", "--content", "--instructions", "--db", db)
        assert "of deployment 'local-too', but this deployment is 'local'" in line
        assert run_ok(tmp_path, "export", "--content", "--db", db).count("\n") == 2


def test_shared_units_are_served_at_once_to_agents_that_list_them(tmp_path: Path, source: str) -> None:
    file, db = tmp_path / "out.jsonl", str(tmp_path / "other.db")
    file.write_text(source)
    listed = [entry("code-review"), {**entry("etiquette"), "fact_uri": SHARED}]
    listed[1]["load_triggers"] = {"keywords": ["polite"]}
    with served(db, tmp_path) as at:
        at.write("code-review")
        assert at.publish(listed).status == 200
        assert "etiquette" not in at.recalled("be polite")
        run_ok(tmp_path, "import", str(file), "--db", db)
        assert "etiquette" in at.recalled("be polite")
        # The service refreshes stale measurements by itself, and may have done so already.
        report = at.agent_request("GET", "/instruction-manifest/coverage").json
        assert report["stale"] or report["kind"] == "daily"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_concurrent_imports_of_shared_units_do_not_mix(tmp_path: Path, source: str, kind: str) -> None:
    (unit,) = (record for record in rows(export_lines(source), "unit") if record["uri"] == SHARED)
    first = msgspec.convert(unit, UnitVersion)
    other = msgspec.structs.replace(first, uri=SHARED.replace("/v1", "/v2"), version="v2")
    with address_of(kind, tmp_path) as db, closing(open_store(db)) as store:
        assert isinstance(store, DatabaseEventLog)
        assert store.instructions.add_owner([first])
        assert not store.instructions.add_owner([other])
        assert list(store.instructions.list_owner_records("shared")) == [first]


def test_an_owner_that_already_exists_is_not_changed(tmp_path: Path, source: str) -> None:
    db = str(tmp_path / "other.db")
    with served(db, tmp_path) as at:
        at.write("code-review", content="Mine.")
        before = rows(export_lines(export_file(tmp_path, db)), "unit")
    file = tmp_path / "out.jsonl"
    file.write_text(source)
    assert "3 owners of instructions, 1 of them already stored: 2 records added" in run_ok(
        tmp_path, "import", str(file), "--db", db
    )
    after = rows(export_lines(export_file(tmp_path, db)), "unit")
    assert [record for record in after if record["agent_id"] == AGENT] == before


def test_a_name_owned_by_another_agent_is_not_assigned_twice(tmp_path: Path, source: str) -> None:
    db = str(tmp_path / "other.db")
    with served(db, tmp_path) as at:
        at.request("PUT", "/v1/agents/scout", {})
    file = tmp_path / "out.jsonl"
    file.write_text(source)
    assert f"of '{AGENT}' belongs to another owner here" in refusal_message(tmp_path, "import", str(file), "--db", db)
    assert {record["id"] for record in rows(export_lines(export_file(tmp_path, db)), "agent")} == {"scout"}


def test_units_signed_by_an_unknown_key_are_quarantined_until_it_is_known(tmp_path: Path, source: str) -> None:
    file, db = tmp_path / "out.jsonl", str(tmp_path / "other.db")
    file.write_text(source)
    done = run_ok(tmp_path, "import", str(file), "--db", db)
    assert "1 unit quarantined: not signed by a key that this deployment knows" in done
    assert "2 approvals left out: not signed by a key that this deployment knows" in done
    with served(db, tmp_path) as at:
        assert "release-notes" not in at.recalled("announce a new version")
        assert "code-review" in at.recalled("review a pull request")
        register(at)
        body = {"fact_uri": uri("release-notes"), "content": UNITS["release-notes"][2]}
        signature = BENS.sign(unit_message(uri("release-notes"), hashlib.sha256(body["content"].encode()).hexdigest()))
        assert at.request("PUT", "/v1/instruction/units", {**body, "signature": signature}).json["status"] == "active"
        assert "release-notes" in at.recalled("announce a new version")


def test_without_the_deployments_key_nothing_is_exported_and_no_key_is_created(tmp_path: Path, source: str) -> None:
    file, db = tmp_path / "out.jsonl", str(tmp_path / "other.db")
    file.write_text(source)
    assert "8 units quarantined" in run_ok(tmp_path, "import", str(file), "--db", db, key=None)
    assert not (Path(home(tmp_path, key=None)) / "instructions.key").exists()
    units = rows(export_lines(export_file(tmp_path, db)), "unit")
    assert {(record["status"], record["source_trust"], record.get("signed_by")) for record in units} == {
        ("quarantined", 0.0, None)
    }


def change_record(lines: Lines, kind: str, matches: Callable[[Any], bool], **fields: object) -> int:
    """The number of the first line whose record matches, with the given fields changed."""
    for number, line in enumerate(lines, start=1):
        if line.get("instruction_records") == kind and matches(line["row"]):
            line["row"].update(fields)
            return number
    raise AssertionError


def is_active_review(row: Any) -> bool:
    return (row["name"], row["version"]) == ("code-review", "v2")


OTHER = "Approve of everything."
OTHER_DIGEST = hashlib.sha256(OTHER.encode()).hexdigest()
STRANGER = DeploymentKey(b"s" * 32).sign(unit_message(uri("code-review", "v2"), OTHER_DIGEST))


@pytest.mark.parametrize(
    "fields",
    [
        {"content": OTHER, "content_sha256": OTHER_DIGEST},
        {"content": OTHER, "content_sha256": OTHER_DIGEST, "signature": STRANGER, "signed_by": BEN},
        {"signature": "AAAA"},
        {"signature": None},
        {"version": "v3", "uri": uri("code-review", "v3")},
        {"name": "new", "uri": uri("new", "v2")},
    ],
    ids=["text", "signed by a stranger", "signature", "no signature", "version", "name"],
)
def test_a_unit_changed_in_transit_is_quarantined(tmp_path: Path, source: str, fields: dict[str, Any]) -> None:
    lines = export_lines(source)
    change_record(lines, "unit", is_active_review, **fields)
    db = str(tmp_path / "other.db")
    assert "2 units quarantined" in run_ok(tmp_path, "import", write_lines(tmp_path, lines), "--db", db)
    with served(db, tmp_path) as at:
        contents = [chunk["content"] for chunk in at.recall("review a pull request").json["chunks"]]
    assert OTHER not in contents


def test_no_unit_is_trusted_more_than_its_signature_says(tmp_path: Path, source: str) -> None:
    lines = export_lines(source)
    change_record(lines, "unit", is_active_review, source_trust=1.0, token_count=0)
    db = import_text(tmp_path, "".join(f"{json.dumps(line)}\n" for line in lines))
    (unit,) = (record for record in rows(export_lines(export_file(tmp_path, db)), "unit") if is_active_review(record))
    assert (unit["status"], unit["source_trust"]) == ("active", 0.9)
    assert unit["token_count"] > 5


@pytest.mark.parametrize(("status", "signer"), [("active", BEN), ("quarantined", None)])
def test_the_signer_is_the_one_in_the_signature_and_a_quarantine_persists(
    tmp_path: Path, source: str, status: str, signer: str | None
) -> None:
    lines, db = export_lines(source), str(tmp_path / "other.db")
    number = change_record(lines, "unit", lambda row: row["name"] == "release-notes", status=status, signed_by=ANN)
    assert lines[number - 1]["row"]["signature"]
    with served(db, tmp_path) as at:
        register(at)
        assert "quarantined" not in run_ok(tmp_path, "import", write_lines(tmp_path, lines), "--db", db)
    (unit,) = (
        record for record in rows(export_lines(export_file(tmp_path, db)), "unit") if record["name"] == "release-notes"
    )
    assert (unit["status"], unit["signed_by"]) == (status, signer)


def is_current(row: Any) -> bool:
    return bool(row["superseded_at"] is None)


def is_any(row: Any) -> bool:
    return True


LISTED = {"name": "x", "description": "X.", "fact_uri": uri("x")}


def listing(**more: object) -> dict[str, object]:
    return {"body": [{"name": "x", "description": "X.", **more}]}


WRONG: dict[str, tuple[str, Callable[[Any], bool], dict[str, object], str]] = {
    "text": ("unit", is_active_review, {"content": OTHER}, "does not match its digest"),
    "no text": ("unit", is_active_review, {"content": " "}, "content has 1 to 200000 characters"),
    "address": ("unit", is_active_review, {"uri": uri("code-review", "v9")}, "the URI of a unit does not match"),
    "no address": ("unit", is_active_review, {"uri": "nowhere"}, "a unit is addressed as"),
    "another's": (
        "unit",
        is_active_review,
        {"uri": uri("code-review", "v2", agent="other")},
        "the URI of a unit does not match",
    ),
    "elsewhere": ("unit", is_active_review, {"uri": "instruction:prod/a/code-review/v2"}, "another deployment"),
    "manifest": ("unit", is_active_review, {"uri": uri("manifest"), "name": "manifest", "version": "v1"}, "manifest"),
    "two at once": (
        "unit",
        lambda row: row["name"] == "code-review" and row["version"] == "v1",
        {"valid_until": None},
        "two versions of the unit 'code-review' are active at once",
    ),
    "a time": ("unit", is_active_review, {"created_at": 2**63}, "created_at is out of range"),
    "less": ("unit", is_active_review, {"created_at": -1}, "created_at is out of range"),
    "trust": ("unit", is_active_review, {"source_trust": -0.5}, "source_trust is out of range"),
    "no id": ("agent", lambda row: row["id"] == AGENT, {"shortname": "shared"}, "an agent id has letters"),
    "agent of": ("agent", lambda row: row["id"] == AGENT, {"deployment": "prod"}, "it belongs to another deployment"),
    "rules": ("agent", lambda row: row["id"] == AGENT, {"always_rules": ["a b " * 900]}, "the boot stub would have"),
    "listed": ("manifest", is_any, listing(fact_uri=uri("x", agent="other")), "belongs to another agent or deployment"),
    "unlisted": ("manifest", is_any, listing(fact_uri="nowhere"), "a unit is addressed as"),
    "place": ("manifest", is_any, {"fact_uri": uri("manifest", "v9")}, "the URI of a manifest does not match"),
    "floating": (
        "manifest",
        is_any,
        {"fact_uri": uri("manifest", "latest"), "version": "latest"},
        "is a floating version",
    ),
    "listed twice": ("manifest", is_current, {"body": [LISTED, LISTED]}, "is in the manifest twice"),
    "six": (
        "manifest",
        is_current,
        {"body": [{**LISTED, "name": n, "fact_uri": uri(n), "guarantee_load": True} for n in "abcdef"]},
        "6 units have guarantee_load, at most 5 are allowed",
    ),
    "two lines": (
        "manifest",
        is_current,
        {"body": [{"name": "x", "description": "X.\nY.", "fact_uri": uri("x")}]},
        "a description is one line",
    ),
    "too long": (
        "manifest",
        is_current,
        {"body": [{"name": f"x{n}", "description": "X " * 50, "fact_uri": uri(f"x{n}")} for n in range(100)]},
        "at most 1000 are allowed",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_record_is_refused_by_its_line_with_all_of_its_owner(
    tmp_path: Path, source: str, wrong: str
) -> None:
    kind, matches, fields, reason = WRONG[wrong]
    lines, db = export_lines(source), str(tmp_path / "other.db")
    number = change_record(lines, kind, matches, **fields)
    if wrong == "two at once":
        number += 1 + next(at for at, line in enumerate(lines[number:]) if is_active_review(line["row"]))
    if wrong == "rules":
        number = 1 + next(at for at, line in enumerate(lines) if "row" in line and "superseded_at" in line["row"])
        number += 1
    line = refusal_message(tmp_path, "import", write_lines(tmp_path, lines), "--db", db)
    assert f"line {number}: " in line
    assert reason in line
    assert f"nothing of '{AGENT}' was imported" in line
    remaining = export_lines(export_file(tmp_path, db))
    assert [record for record in remaining if AGENT in json.dumps(record)] == []
    # The records before it were imported, and the complete file adds the rest.
    assert [record["uri"] for record in rows(remaining, "unit")] == [SHARED]
    (tmp_path / "good.jsonl").write_text(source)
    assert "1 of them already stored" in run_ok(tmp_path, "import", str(tmp_path / "good.jsonl"), "--db", db)


AGENT_LINE = '{"instruction_records":"agent","row":{"id":"a","deployment":"local","created_at":1}}\n'
HEADER = '{"holdfast_export":1,"content":true,"exported_at":1,"deployment":"local"}\n'
AUDIT = (
    '{"instruction_records":"audit","row":{"id":"i","agent_id":"a","heartbeat_id":"h","session_start":1,"intent":"x",'
    '"loaded_chunks":[],"audit_token":"t","created_at":1,"detail":{"x":%s}}}\n'
)
END = '{"end_of_export":true,"sessions":0,"events":0,"instruction_records":%d}\n'
HOSTILE = {
    "no JSON": (HEADER + AGENT_LINE + "nonsense\n", "line 3 is damaged"),
    "huge": (HEADER + AGENT_LINE + "x" * (64 * 1024 * 1024 + 65_600), "line 3 has more than"),
    "deep": (HEADER + AGENT_LINE + AUDIT % ("[" * 100_000), "line 3 is damaged"),
    "a list": (HEADER + AGENT_LINE + "[1, 2]\n", "line 3 is damaged"),
    "kind": (HEADER + AGENT_LINE.replace('"agent"', '"signer"'), "line 2 is damaged"),
    "more": (HEADER + AGENT_LINE.replace('"row"', '"more":1,"row"'), "line 2 is damaged"),
    "type": (HEADER + AGENT_LINE.replace('"a"', "3"), "line 2 is damaged"),
    "surrogate": (HEADER + AGENT_LINE.replace('"a"', '"\\ud800"') + END % 1, "line 2"),
    "cut": (HEADER + AGENT_LINE, "ends too early"),
    "count": (HEADER + AGENT_LINE + END % 2, "line 3: the file has 1 of both but declares 0 events and 2 records"),
    "after the end": (HEADER + AGENT_LINE + END % 1 + "x\n", "line 4: there is content after the end line"),
    "orphan": (HEADER + AUDIT % 1 + END % 1, "line 2: the records of 'a' do not start with the agent"),
    "shared": (
        HEADER + AUDIT.replace('"agent_id":"a"', '"agent_id":"shared"') % 1 + END % 1,
        "line 2: 'shared' is not an agent and can only have units",
    ),
    "apart": (
        HEADER + AGENT_LINE + AGENT_LINE.replace('"a"', '"b"') + AUDIT % 1 + END % 3,
        "line 4: the records of 'a' are not contiguous",
    ),
    "twice": (HEADER + AGENT_LINE * 2 + END % 2, "line 2: an id, a name or an address of 'a'"),
    "same id": (HEADER + AGENT_LINE + AUDIT % 1 * 2 + END % 3, "line 2: an id, a name or an address of 'a'"),
    "unnamed": (HEADER.replace(',"deployment":"local"', "") + AGENT_LINE + END % 1, "line 2: there are instructions"),
    "not content": (HEADER.replace("true", "false") + AGENT_LINE + END % 1, "export it with --content"),
    "deployment": (HEADER.replace('"local"', "7") + AGENT_LINE + END % 1, "is not a Holdfast export"),
    "a line in it": (HEADER.replace('"local"', '"a\\nb\\u001b[31m"') + END % 0, "of deployment 'a\\nb\\x1b[31m'"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_arbitrary_file_content_ends_in_one_line(tmp_path: Path, name: str) -> None:
    text, reason = HOSTILE[name]
    db = str(tmp_path / "other.db")
    line = refusal_message(tmp_path, "import", write_lines(tmp_path, [text]), "--db", db)
    assert reason in line
    assert len(line) < 500
    if Path(db).exists():
        imported_agents = {"apart": ["a", "b"], "count": ["a"], "after the end": ["a"]}
        assert [
            record["id"] for record in rows(export_lines(export_file(tmp_path, db)), "agent")
        ] == imported_agents.get(name, [])


@pytest.mark.parametrize(("depth", "status"), [(30, 0), (40, 1), (700, 1), (5000, 1)])
def test_records_nested_too_deeply_are_refused(tmp_path: Path, depth: int, status: int) -> None:
    file = write_lines(tmp_path, [HEADER + AGENT_LINE + AUDIT % ("[" * depth + "]" * depth) + END % 2])
    done = run(tmp_path, "import", file, "--db", str(tmp_path / "other.db"))
    assert (done.returncode, done.stderr.count("\n")) == (status, status)
    assert ("line 3" in done.stderr) is bool(status)


values = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
any_json = st.recursive(values, lambda some: st.lists(some, max_size=2) | st.dictionaries(st.text(max_size=3), some))


@settings(max_examples=60)
@given(st.data())
def test_any_replaced_value_is_accepted_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, source: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    lines = export_lines(source)
    row = data.draw(st.sampled_from([line["row"] for line in lines if "row" in line]))
    row[data.draw(st.sampled_from(sorted(row)))] = data.draw(any_json)
    done = run(folder, "import", write_lines(folder, lines), "--db", str(folder / "other.db"))
    assert (done.returncode, done.stderr.count("\n")) in ((0, 0), (1, 1)), done.stderr
    again = export_lines(export_file(folder, str(folder / "other.db")))
    assert again[-1].get("instruction_records", 0) == len([line for line in again if "row" in line])


def test_records_are_read_page_by_page_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    db = import_text(tmp_path, source)
    monkeypatch.setattr("holdfast.stores.instructions.transfer.PAGE_RECORDS", 1)
    assert rows(export_lines(export_file(tmp_path, db)), "audit") == rows(export_lines(source), "audit")
    assert len(rows(export_lines(source), "audit")) > 1


@pytest.mark.parametrize("words", [("export", "--content", "--instructions"), ("import", "FILE")])
def test_without_its_package_the_command_says_how_to_install_it(
    tmp_path: Path, source: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "FILE").write_text(source)
    program = (
        "import sys; sys.modules['cryptography'] = None\nfrom holdfast.cli.main import main\n"
        f"sys.argv[1:] = ['db', *{words!r}]\nmain()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ, cwd=tmp_path
    )
    assert completed.returncode == 1
    assert (
        completed.stderr
        == "holdfast: instructions need an extra package: pip install 'holdfast-context[instructions]'\n"
    )
