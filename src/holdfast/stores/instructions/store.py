"""Agents, units, manifests, audit and coverage in a database, independent of the engine."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from holdfast.errors import StoreError
from holdfast.instructions.models import (
    Agent,
    Approval,
    AuditRecord,
    BootStub,
    CoverageRun,
    DetectedUnit,
    Manifest,
    Probe,
    Signer,
    UnitVersion,
)
from holdfast.stores.instructions import tables
from holdfast.stores.instructions.transfer import OwnerTransfer
from holdfast.stores.sql.connection import ChangeRunner
from holdfast.stores.sql.dialect import PARAMETERS_MAX, repeat_params
from holdfast.stores.sql.events import FetchRows
from holdfast.stores.sql.records import SET_SETTING, SETTING
from holdfast.stores.write.queue import GroupCommit, SqlStep

AUDIT_LOCK_SECONDS_MAX = 1.0
"""An agent waits for its recall, so its audit record is given up sooner than other changes of a locked store."""
ENCODINGS_LOCK_SECONDS_MAX = 1.0
"""Encoding what another process keeps takes about as long as waiting for it."""
ENCODINGS_MAX = 100_000
"""About 200 MB with the packaged encoder. What was not kept for longest is forgotten first."""
_ENCODINGS = "holdfast.instruction_encodings"


class InstructionStore(OwnerTransfer):
    def __init__(self, fetch: FetchRows, changes: ChangeRunner) -> None:
        super().__init__(fetch, changes)
        self._group_commit = GroupCommit(
            partial(changes.run_steps, synced=False, lock_seconds_max=AUDIT_LOCK_SECONDS_MAX)
        )

    def agent(self, name: str) -> Agent | None:
        matches = self._rows(tables.AGENTS, "WHERE id = ? OR shortname = ?", name, name)
        return next((agent for agent in matches if agent.id == name), matches[0] if matches else None)

    def agents(self) -> tuple[Agent, ...]:
        return self._rows(tables.AGENTS, "ORDER BY id")

    def put_agent(self, agent: Agent) -> bool:
        table = tables.AGENTS
        # Ids and shortnames share one namespace: no agent may be named like another one's id.
        taken = "WHERE id <> ? AND (id = ? OR shortname = ? OR shortname = ?)"
        if self._rows(table, taken, agent.id, agent.shortname or "", agent.shortname, agent.id):
            return False
        upsert = table.upsert_step(agent, ("id",), kept=("created_at", "revision"))
        return self._changes.run_steps([upsert, tables.bump_revision(agent.id), tables.forget_stubs(agent.id)])

    def unit(self, uri: str) -> UnitVersion | None:
        return self._first(tables.UNITS, "WHERE uri = ?", uri)

    def list_unit_versions(self, owner: str, name: str) -> tuple[UnitVersion, ...]:
        return self._rows(tables.UNITS, "WHERE agent_id = ? AND name = ? ORDER BY created_at, uri", owner, name)

    def units_at(self, owners: Sequence[str], at: int | None) -> tuple[UnitVersion, ...]:
        if not owners:
            return ()
        in_force, times = "valid_until IS NULL", () if at is None else (at, at)
        if times:
            in_force = "created_at <= ? AND (valid_until IS NULL OR valid_until > ?)"
        placeholders = ", ".join("?" * len(owners))
        where = f"WHERE agent_id IN ({placeholders}) AND status = 'active' AND {in_force} ORDER BY uri"
        return self._rows(tables.UNITS, where, *owners, *times)

    def add_unit(
        self, unit: UnitVersion, agent: Agent | None, *, replaces_uri: str | None, manifest_ids: Sequence[str] = ()
    ) -> bool:
        steps = [tables.register_agent(agent)] if agent else []
        if unit.status == "active":
            steps += tables.check_unchanged(unit, replaces_uri, manifest_ids)
        steps.append(tables.UNITS.insert_step(unit))
        if unit.status == "active":
            steps += tables.replace_active(unit, unit.created_at)
        return self._changes.run_steps(steps)

    def release_unit(self, unit: UnitVersion, *, replaces_uri: str | None, manifest_ids: Sequence[str] = ()) -> bool:
        columns = ("status", "created_at", "source_trust", "derived_from", "signature", "signed_by")
        release = SqlStep(
            f"UPDATE {tables.UNITS.name} SET {', '.join(f'{name} = ?' for name in columns)} "
            "WHERE uri = ? AND status = 'quarantined'",
            (*(getattr(unit, name) for name in columns), unit.uri),
            rows_min=1,
        )
        if unit.status != "active":
            return self._changes.run_steps([release])
        checks = tables.check_unchanged(unit, replaces_uri, manifest_ids)
        return self._changes.run_steps([*checks, release, *tables.replace_active(unit, unit.created_at)])

    def activate_unit(
        self, unit: UnitVersion, *, replaces_uri: str | None, at: int, manifest_ids: Sequence[str]
    ) -> bool:
        return self._changes.run_steps(tables.activate_unit(unit, replaces_uri, manifest_ids, at=at))

    def quarantine_unit(self, unit: UnitVersion) -> bool:
        withdraw = SqlStep(
            f"UPDATE {tables.UNITS.name} SET status = 'quarantined' WHERE uri = ? AND status <> 'quarantined'",
            (unit.uri,),
            rows_min=1,
        )
        stale = tables.mark_stale(unit.agent_id, unit.name)
        return self._changes.run_steps([tables.take_lock(), withdraw, stale, tables.bump_revision(unit.agent_id)])

    def manifest(self, agent_id: str) -> Manifest | None:
        return self._first(tables.MANIFESTS, "WHERE agent_id = ? AND superseded_at IS NULL", agent_id)

    def manifest_at(self, agent_id: str, at: int) -> Manifest | None:
        in_force = "created_at <= ? AND (superseded_at IS NULL OR superseded_at > ?)"
        newest = f"WHERE agent_id = ? AND {in_force} ORDER BY created_at DESC LIMIT 1"
        return self._first(tables.MANIFESTS, newest, agent_id, at, at)

    def find_manifest_version(self, agent_id: str, version: str) -> Manifest | None:
        return self._first(tables.MANIFESTS, "WHERE agent_id = ? AND version = ?", agent_id, version)

    def manifests_listing(self, owner: str, name: str) -> tuple[Manifest, ...]:
        where = f"WHERE superseded_at IS NULL AND {tables.LISTS_UNIT} ORDER BY agent_id"
        return self._rows(tables.MANIFESTS, where, tables.unit_path(owner, name))

    def manifest_versions(self, agent_id: str) -> tuple[str, ...]:
        return self._ids(f"SELECT version FROM {tables.MANIFESTS.name} WHERE agent_id = ?", agent_id)

    def guaranteed_count(self) -> int:
        current = self._rows(tables.MANIFESTS, "WHERE superseded_at IS NULL")
        return sum(entry.guarantee_load for manifest in current for entry in manifest.body)

    def publish(
        self,
        manifest: Manifest,
        *,
        replaces_id: str | None,
        agent: Agent | None,
        run: CoverageRun,
        approvals: Sequence[Approval],
        events: Sequence[AuditRecord],
        activates: Sequence[tuple[UnitVersion, str | None, Sequence[str]]] = (),
        pinned_uris: Sequence[str] = (),
    ) -> bool:
        steps = [tables.register_agent(agent)] if agent else []
        # Taking the lock row first means that concurrent changes queue here and cannot deadlock later.
        steps += [tables.take_lock()] if activates or pinned_uris else []
        if replaces_id is not None:
            supersede = f"UPDATE {tables.MANIFESTS.name} SET superseded_at = ? WHERE id = ? AND superseded_at IS NULL"
            steps.append(SqlStep(supersede, (manifest.created_at, replaces_id), rows_min=1))
        steps.append(tables.MANIFESTS.insert_step(manifest))
        for uri in pinned_uris:
            is_active = "uri = ? AND status = 'active' AND valid_until IS NULL"
            confirm = f"UPDATE {tables.UNITS.name} SET status = 'active' WHERE {is_active}"
            steps.append(SqlStep(confirm, (uri,), rows_min=1))
        for unit, replaced, judged in activates:
            steps += tables.activate_unit(unit, replaced, (*judged, manifest.id), at=manifest.created_at)
        steps.append(tables.COVERAGE.insert_step(run))
        steps += [*map(tables.APPROVALS.insert_step, approvals), *map(tables.AUDIT.insert_step, events)]
        steps += [tables.bump_revision(manifest.agent_id), tables.forget_stubs(manifest.agent_id)]
        return self._changes.run_steps(steps)

    def stub(self, agent_id: str, profile: str) -> BootStub | None:
        return self._first(tables.STUBS, "WHERE agent_id = ? AND adapter_profile = ?", agent_id, profile)

    def save_stub(self, stub: BootStub) -> None:
        is_other = f" WHERE {tables.STUBS.name}.cache_key <> excluded.cache_key"
        self._run(tables.STUBS.upsert_step(stub, ("agent_id", "adapter_profile"), where=is_other))

    def add_audit(self, record: AuditRecord) -> None:
        if not self._group_commit.commit_step(tables.AUDIT.insert_step(record)):
            raise StoreError("the audit record contains text that no database can store")

    def add_audits(self, records: Sequence[AuditRecord]) -> tuple[StoreError | None, ...]:
        if len(records) == 1:
            # Other threads may be adding theirs.
            return (self._try_add_audit(records[0]),)
        steps = tables.AUDIT.insert_steps(records)
        if self._changes.run_steps(steps, synced=False, lock_seconds_max=AUDIT_LOCK_SECONDS_MAX):
            return (None,) * len(records)
        # One row was rejected: add them one by one, so that it does not affect the others.
        return tuple(map(self._try_add_audit, records))

    def _try_add_audit(self, record: AuditRecord) -> StoreError | None:
        try:
            self.add_audit(record)
        except StoreError as error:
            return error
        return None

    def audit(self, token: str) -> AuditRecord | None:
        return self._first(tables.AUDIT, "WHERE audit_token = ?", token)

    def close_audit(self, token: str, *, used: Sequence[str], missed: Sequence[str], at: int) -> bool:
        values = "used_chunks = ?, missed_chunks = ?, audit_closed = ?"
        update = f"UPDATE {tables.AUDIT.name} SET {values} WHERE audit_token = ? AND audit_closed IS NULL"
        cells = (msgspec.json.encode(used).decode(), msgspec.json.encode(missed).decode(), at, token)
        return self._changes.run_steps([SqlStep(update, cells, rows_min=1)])

    def save_detected_usage(self, token: str, detected: Sequence[DetectedUnit], *, at: int) -> bool:
        values = "detected = ?, detected_at = ?"
        update = f"UPDATE {tables.AUDIT.name} SET {values} WHERE audit_token = ? AND detected_at IS NULL"
        cells = (msgspec.json.encode(detected).decode(), at, token)
        return self._changes.run_steps([SqlStep(update, cells, rows_min=1)])

    def audits(self, agent_id: str, *, since: int) -> tuple[AuditRecord, ...]:
        where = "WHERE agent_id = ? AND created_at >= ? ORDER BY created_at, id"
        return self._rows(tables.AUDIT, where, agent_id, since)

    def list_run_audits(self, agent_id: str, heartbeat_id: str) -> tuple[AuditRecord, ...]:
        where = "WHERE agent_id = ? AND heartbeat_id = ? ORDER BY created_at, id"
        return self._rows(tables.AUDIT, where, agent_id, heartbeat_id)

    def heartbeat(self, agent_id: str, heartbeat_id: str) -> AuditRecord | None:
        preloads = "WHERE agent_id = ? AND heartbeat_id = ? AND event_type = 'preload'"
        return self._first(tables.AUDIT, f"{preloads} ORDER BY created_at DESC LIMIT 1", agent_id, heartbeat_id)

    def add_approval(self, approval: Approval, *, agent: Agent) -> None:
        self._run_all([tables.register_agent(agent), tables.APPROVALS.insert_step(approval)])

    def approvals(self, agent_id: str) -> tuple[Approval, ...]:
        return self._rows(tables.APPROVALS, "WHERE agent_id = ? ORDER BY id", agent_id)

    def coverage(self, agent_id: str) -> CoverageRun | None:
        current = f"(SELECT version FROM {tables.MANIFESTS.name} WHERE agent_id = ? AND superseded_at IS NULL)"
        newest = f"WHERE agent_id = ? AND manifest_version = {current} ORDER BY finished_at DESC, id DESC LIMIT 1"
        return self._first(tables.COVERAGE, newest, agent_id, agent_id)

    def add_coverage(self, run: CoverageRun) -> None:
        self._run_all([tables.COVERAGE.insert_step(run), tables.bump_revision(run.agent_id)])

    def probes(self, agent_id: str) -> tuple[Probe, ...]:
        return self._rows(tables.PROBES, "WHERE agent_id = ? ORDER BY probe_id", agent_id)

    def put_probe(self, probe: Probe) -> None:
        self._run(_upsert_probe(probe))

    def save_sampled_probes(self, probes: Sequence[Probe], *, lease: str, until: int, at: int) -> bool:
        return self._changes.run_steps([*self._lease(lease, until, at), *map(_upsert_probe, probes)])

    def agents_to_sample(self, lease_prefix: str, *, since: int, at: int) -> tuple[str, ...]:
        return self._ids(
            f"SELECT m.agent_id FROM {tables.MANIFESTS.name} m WHERE m.superseded_at IS NULL "
            f"AND NOT EXISTS (SELECT 1 FROM holdfast.instruction_wakes w "
            "WHERE w.jti = ? || m.agent_id AND w.expires_at >= ?) "
            f"AND EXISTS (SELECT 1 FROM {tables.AUDIT.name} a WHERE a.agent_id = m.agent_id "
            "AND a.created_at >= ? AND a.audit_closed IS NOT NULL AND a.event_type = 'recall') ORDER BY m.agent_id",
            _lease_name(lease_prefix),
            at,
            since,
        )

    def agents_to_measure(self, *, finished_before: int, recert_before: int) -> tuple[str, ...]:
        of_manifest = "c.agent_id = m.agent_id AND c.manifest_version = m.version"
        run = f"SELECT 1 FROM {tables.COVERAGE.name} c WHERE {of_manifest}"
        later_run = (
            "d.agent_id = c.agent_id AND d.manifest_version = c.manifest_version AND d.finished_at > c.finished_at"
        )
        certified = f"SELECT 1 FROM {tables.COVERAGE.name} d WHERE {later_run} AND d.recert_due IS NULL"
        return self._ids(
            f"SELECT m.agent_id FROM {tables.MANIFESTS.name} m WHERE m.superseded_at IS NULL "
            f"AND (NOT EXISTS ({run} AND c.finished_at > ? AND c.stale = 0) "
            f"OR EXISTS ({run} AND c.recert_due <= ? AND NOT EXISTS ({certified}))) ORDER BY m.agent_id",
            finished_before,
            recert_before,
        )

    def signers(self, *, at: int | None) -> tuple[Signer, ...]:
        table, order = tables.SIGNERS, "ORDER BY entity, public_key"
        if at is None:
            return self._rows(table, order)
        usable = "k.scope = 'admin' AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?)"
        keys = f"SELECT 1 FROM holdfast.api_keys k WHERE k.entity = {table.name}.entity AND {usable}"
        return self._rows(table, f"WHERE EXISTS ({keys}) {order}", at / 1000)

    def add_signer(self, signer: Signer) -> None:
        self._run(tables.SIGNERS.insert_step(signer, " ON CONFLICT (entity, public_key) DO NOTHING"))

    def remove_signers(self, signers: Sequence[Signer]) -> None:
        delete = f"DELETE FROM {tables.SIGNERS.name} WHERE entity = ? AND public_key = ?"
        self._run_all([SqlStep(delete, (signer.entity, signer.public_key)) for signer in signers])

    def consume_wake_token(self, jti: str, *, expires_at: int, at: int) -> bool:
        return self._changes.run_steps(self._wake(jti, expires_at, at))

    def encodings(self, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, int]]:
        kept: dict[bytes, tuple[bytes, int]] = {}
        for start in range(0, len(keys), PARAMETERS_MAX):
            page = keys[start : start + PARAMETERS_MAX]
            query = f"SELECT key, vectors, kept_at FROM {_ENCODINGS} WHERE key IN ({repeat_params(len(page))})"
            for key, vectors, kept_at in self._fetch(query, page):
                # Another program may have written anything: what is not an encoding is encoded again.
                if isinstance(key, bytes) and isinstance(vectors, bytes) and isinstance(kept_at, int):
                    kept[key] = vectors, kept_at
        return kept

    def keep_encodings(
        self, encodings: Mapping[bytes, bytes], *, at: int, kept_since: int, count_max: int = ENCODINGS_MAX
    ) -> None:
        forget = [
            SqlStep(f"DELETE FROM {_ENCODINGS} WHERE kept_at < ?", (kept_since,)),
            SqlStep(
                f"DELETE FROM {_ENCODINGS} WHERE kept_at < "
                f"(SELECT kept_at FROM {_ENCODINGS} ORDER BY kept_at DESC LIMIT 1 OFFSET ?)",
                (count_max,),
            ),
        ]
        # In the order of keys, so that two processes that keep the same ones never wait for each other in a circle.
        insert = (
            f"INSERT INTO {_ENCODINGS} (key, vectors, kept_at) VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET vectors = excluded.vectors, kept_at = excluded.kept_at"
        )
        keep = [SqlStep(insert, (key, vectors, at)) for key, vectors in sorted(encodings.items())]
        self._changes.run_steps([*keep, *forget], synced=False, lock_seconds_max=ENCODINGS_LOCK_SECONDS_MAX)

    def encoder(self) -> str | None:
        return self._setting("instruction_encoder")

    def set_encoder(self, encoder: str) -> None:
        self._set("instruction_encoder", encoder)

    def refused_encoder(self) -> str | None:
        return self._setting("instruction_encoder_refused")

    def set_refused_encoder(self, encoder: str) -> None:
        self._set("instruction_encoder_refused", encoder)

    def _setting(self, name: str) -> str | None:
        return next((str(value) for (value,) in self._fetch(SETTING, (name,))), None)

    def _set(self, name: str, value: str) -> None:
        self._changes.run_statement(SET_SETTING, (name, value))

    def _lease(self, name: str, until: int, at: int) -> list[SqlStep]:
        # A lease is stored like a used wake token: a name that is taken until it expires.
        return self._wake(_lease_name(name), until, at)

    def _wake(self, jti: str, expires_at: int, at: int) -> list[SqlStep]:
        table = "holdfast.instruction_wakes"
        return [
            SqlStep(f"DELETE FROM {table} WHERE expires_at < ?", (at,)),
            SqlStep(f"INSERT INTO {table} (jti, expires_at) VALUES (?, ?)", (jti, expires_at)),
        ]

    def _run(self, step: SqlStep) -> None:
        self._changes.run_statement(step.statement, step.cells)

    def _run_all(self, steps: Sequence[SqlStep]) -> None:
        """These steps conflict with nothing, so a refusal is an error."""
        if not self._changes.run_steps(steps):
            raise StoreError("the database refused the change")


def _upsert_probe(probe: Probe) -> SqlStep:
    return tables.PROBES.upsert_step(probe, ("agent_id", "probe_id"))


def _lease_name(name: str) -> str:
    return f"lease:{name}"
