"""Schedule coverage runs: daily, after a skipped gate, and before a new encoder is activated."""

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.asking import put_on_record
from holdfast.instructions.coverage import measure_all
from holdfast.instructions.library import Library
from holdfast.instructions.resting import Rest, no_rest
from holdfast.instructions.values import Agent, AuditRecord, CoverageRun, Manifest
from holdfast.retrieval.meaning import certified_name, configured_name, encoder_certified, is_revised, same_encoder

DAY_MS = 86_400_000
# A skipped gate must be made up for within 7 days; the run is due from one day after the publication.
OWED_MS = 6 * DAY_MS
NO_ENCODER = "none"


def run_coverage(
    context: Library,
    agent: Agent,
    manifest: Manifest,
    *,
    kind: Literal["daily", "recert"],
) -> CoverageRun:
    """Measure the active texts with the encoder in use; a re-certification owed after a skipped gate stays owed."""
    last = context.records.coverage(agent.id)
    started = context.now()
    instruction_set = context.shelves.made(agent, manifest)
    settings = context.settings
    units = measure_all(instruction_set, scaled_is_binding=settings.scaled_is_binding, use_floor=settings.use_floor)
    return CoverageRun(
        id=context.new_id("coverage"),
        agent_id=agent.id,
        manifest_version=manifest.version,
        model_id=instruction_set.index.embedding_model_version,
        kind=kind,
        started_at=started,
        finished_at=context.now(),
        recert_due=last.recert_due if last is not None and last.manifest_version == manifest.version else None,
        units=units,
    )


def run_due(context: Library, *, rest: Rest = no_rest) -> tuple[str, ...]:
    """Measure each agent whose last run is a day old or stale, or whose re-certification is due."""
    measured = []
    now = context.now()
    for agent_id in context.records.agents_to_measure(finished_before=now - DAY_MS, recert_before=now + OWED_MS):
        agent, manifest = context.records.agent(agent_id), context.records.manifest(agent_id)
        last = context.records.coverage(agent_id)
        if agent is None or manifest is None:
            continue
        is_old = last is None or last.stale or now - last.finished_at >= DAY_MS
        # The daily run keeps recert_due, so that a passing daily measurement does not replace the re-certification.
        is_recert_due = last is not None and last.recert_due is not None and last.recert_due - OWED_MS <= now
        if is_old or is_recert_due:
            context.records.add_coverage(
                certified(context, agent, manifest)
                if is_recert_due
                else run_coverage(context, agent, manifest, kind="daily")
            )
            measured.append(agent.id)
            if not rest():
                break
    return tuple(measured)


def certified(context: Library, agent: Agent, manifest: Manifest) -> CoverageRun:
    """Run the gate that was skipped, and record the failing units in the audit log."""
    run = msgspec.structs.replace(run_coverage(context, agent, manifest, kind="recert"), recert_due=None)
    put_on_record(
        context,
        AuditRecord(
            id=context.new_id("audevent"),
            agent_id=agent.id,
            heartbeat_id=run.id,
            session_start=run.started_at,
            intent=f"recert:{manifest.version}",
            loaded_chunks=(),
            audit_token=context.new_id("audi"),
            created_at=run.started_at,
            event_type="recert",
            detail={
                "units": [
                    {"unit": unit.unit, "coverage_pct": unit.coverage_pct} for unit in run.units if not unit.passed
                ]
            },
        ),
    )
    return run


class Refusal(msgspec.Struct, frozen=True):
    """An encoder, a digest of the manifests it was tried with, and the agents whose manifests failed."""

    encoder: str
    manifests: str
    failed: tuple[str, ...]


def activate_encoder(context: Library) -> tuple[str, ...]:
    """Choose an encoder and load it, so that the first recall does not wait for it."""
    failed = choose_encoder(context, again=True)
    context.shelves.load_encoder()
    return failed


def choose_encoder(context: Library, *, accept: bool = False, again: bool = False) -> tuple[str, ...]:
    """Activate the configured encoder if all manifests pass with it, or else keep the previous one.

    Returns the agents whose manifests failed. With `accept` the encoder is activated anyway. A refusal with the same
    manifests is remembered and measured again only with `again`. Raises UserError if neither encoder can be used.
    """
    configured = context.settings.encoder
    name = certified_name(configured) if configured else NO_ENCODER
    previous = context.records.encoder()
    if previous is None or same_encoder(previous, name):
        if previous != name:
            context.records.set_encoder(name)
        return ()
    manifests = _current_manifests(context)
    if again and manifests:
        why = "whose results changed in this release" if is_revised(previous, name) else "which is new here"
        context.warn(f"measuring all manifests ({len(manifests)}) with the encoder {configured or NO_ENCODER}, {why}")
    refusal = None if again or accept else _known_refusal(context, name, manifests)
    failed, runs = (refusal.failed, ()) if refusal else _measure_with(context, configured, manifests)
    if failed and is_revised(previous, name):
        # The earlier revision no longer exists, and without any encoder recall would not work at all.
        context.warn(
            f"the encoder {configured} gives different results in this release, and manifests fail with it, such as "
            f"that of {failed[0]}: `holdfast instructions coverage` shows what is not found"
        )
        failed = ()
    # A new encoder must not be activated while manifests fail with it: recalls would silently miss units.
    if failed and not accept:
        if refusal is None:
            refusal = Refusal(name, _manifests_digest(manifests), failed)
            context.records.set_refused_encoder(msgspec.json.encode(refusal).decode())
        _keep_previous(context, previous, failed)
        return failed
    for run in runs:
        context.records.add_coverage(run)
    context.records.set_encoder(name)
    return failed


def _current_manifests(context: Library) -> tuple[tuple[Agent, Manifest], ...]:
    pairs = ((agent, context.records.manifest(agent.id)) for agent in context.records.agents())
    return tuple((agent, manifest) for agent, manifest in pairs if manifest is not None)


def _measure_with(
    context: Library, encoder: str | None, manifests: Sequence[tuple[Agent, Manifest]]
) -> tuple[tuple[str, ...], tuple[CoverageRun, ...]]:
    """Switch to the encoder and measure: the agents whose manifests fail with it, and all runs."""
    context.shelves.encoder = encoder
    runs = tuple(run_coverage(context, agent, manifest, kind="recert") for agent, manifest in manifests)
    return tuple(run.agent_id for run in runs if not all(unit.passed for unit in run.units)), runs


def _keep_previous(context: Library, previous: str, failed: Sequence[str]) -> None:
    encoder = encoder_certified(previous)
    if encoder is None and previous != NO_ENCODER:
        raise UserError(
            f"the encoder {configured_name(previous)!r} was in use but is no longer available in that revision, and "
            f"manifests fail with the configured one, such as that of {failed[0]}: restore it, or activate the "
            "configured one with `holdfast instructions encoder --accept`"
        )
    context.shelves.encoder = encoder
    context.shelves.forget()


def _known_refusal(context: Library, name: str, manifests: Sequence[tuple[Agent, Manifest]]) -> Refusal | None:
    stored = context.records.refused_encoder()
    last = msgspec.json.decode(stored, type=Refusal) if stored else None
    return last if last is not None and (last.encoder, last.manifests) == (name, _manifests_digest(manifests)) else None


def _manifests_digest(manifests: Sequence[tuple[Agent, Manifest]]) -> str:
    return hashlib.sha256(" ".join(sorted(manifest.id for _, manifest in manifests)).encode()).hexdigest()
