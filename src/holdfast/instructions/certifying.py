"""When coverage is measured again: daily, after a skipped gate, and before another encoder is used."""

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
OWED_MS = 6 * DAY_MS
NO_ENCODER = "none"


def run_coverage(
    library: Library,
    agent: Agent,
    manifest: Manifest,
    *,
    kind: Literal["daily", "recert"],
) -> CoverageRun:
    """Measured on the texts there are, by the encoder in use; what is owed after a skipped gate stays owed."""
    last = library.records.coverage(agent.id)
    started = library.now()
    shelf = library.shelves.made(agent, manifest)
    settings = library.settings
    units = measure_all(shelf, scaled_is_binding=settings.scaled_is_binding, use_floor=settings.use_floor)
    return CoverageRun(
        id=library.new_id("coverage"),
        agent_id=agent.id,
        manifest_version=manifest.version,
        model_id=shelf.index.embedding_model_version,
        kind=kind,
        started_at=started,
        finished_at=library.now(),
        recert_due=last.recert_due if last is not None and last.manifest_version == manifest.version else None,
        units=units,
    )


def run_due(library: Library, *, rest: Rest = no_rest) -> tuple[str, ...]:
    """Measure each agent whose last run is a day old or stale, or whose skipped gate is to be made up for."""
    ran = []
    now = library.now()
    for agent_id in library.records.agents_to_measure(finished_before=now - DAY_MS, recert_before=now + OWED_MS):
        agent, manifest = library.records.agent(agent_id), library.records.manifest(agent_id)
        last = library.records.coverage(agent_id)
        if agent is None or manifest is None:
            continue
        is_old = last is None or last.stale or now - last.finished_at >= DAY_MS
        is_owed = last is not None and last.recert_due is not None and last.recert_due - OWED_MS <= now
        if is_old or is_owed:
            library.records.add_coverage(
                certified(library, agent, manifest) if is_owed else run_coverage(library, agent, manifest, kind="daily")
            )
            ran.append(agent.id)
            if not rest():
                break
    return tuple(ran)


def certified(library: Library, agent: Agent, manifest: Manifest) -> CoverageRun:
    """The gate once more, after it was skipped; what fails is put on record."""
    run = msgspec.structs.replace(run_coverage(library, agent, manifest, kind="recert"), recert_due=None)
    put_on_record(
        library,
        AuditRecord(
            id=library.new_id("audevent"),
            agent_id=agent.id,
            heartbeat_id=run.id,
            session_start=run.started_at,
            intent=f"recert:{manifest.version}",
            loaded_chunks=(),
            audit_token=library.new_id("audi"),
            created_at=run.started_at,
            event_type="recert",
            detail={
                "units": [{"unit": one.unit, "coverage_pct": one.coverage_pct} for one in run.units if not one.passed]
            },
        ),
    )
    return run


class Refusal(msgspec.Struct, frozen=True):
    """An encoder, the manifests with which it was tried, and the agents whose manifests failed."""

    encoder: str
    manifests: str
    failed: tuple[str, ...]


def activate_encoder(library: Library) -> tuple[str, ...]:
    """Choose an encoder and load it, so that nobody who asks has to wait for it."""
    failed = choose_encoder(library, again=True)
    library.shelves.load_encoder()
    return failed


def choose_encoder(library: Library, *, accept: bool = False, again: bool = False) -> tuple[str, ...]:
    """Use the configured encoder if all manifests pass with it, or else the one before; the agents that did not.

    With `accept` it is used all the same. What failed with the same manifests is measured once more only `again`.
    Raises UserError where neither can be used.
    """
    wanted = library.settings.encoder
    name = certified_name(wanted) if wanted else NO_ENCODER
    before = library.records.encoder()
    if before is None or same_encoder(before, name):
        if before != name:
            library.records.set_encoder(name)
        return ()
    manifests = _listed(library)
    if again and manifests:
        told = "which finds other things in this release" if is_revised(before, name) else "which is new here"
        library.warn(f"measuring all manifests ({len(manifests)}) by the encoder {wanted or NO_ENCODER}, {told}")
    known = None if again or accept else _refused(library, name, manifests)
    failed, runs = (known.failed, ()) if known else _measured(library, wanted, manifests)
    if failed and is_revised(before, name):
        # What it said before cannot be had any more, and without an encoder nothing would be found at all.
        library.warn(
            f"since this release the encoder {wanted} finds other things, and manifests fail with it, such as that of "
            f"{failed[0]}: `holdfast instructions coverage` shows what is not found"
        )
        failed = ()
    if failed and not accept:
        if known is None:
            refusal = Refusal(name, _told(manifests), failed)
            library.records.set_refused_encoder(msgspec.json.encode(refusal).decode())
        _keep(library, before, failed)
        return failed
    for run in runs:
        library.records.add_coverage(run)
    library.records.set_encoder(name)
    return failed


def _listed(library: Library) -> tuple[tuple[Agent, Manifest], ...]:
    both = ((agent, library.records.manifest(agent.id)) for agent in library.records.agents())
    return tuple((agent, manifest) for agent, manifest in both if manifest is not None)


def _measured(
    library: Library, encoder: str | None, manifests: Sequence[tuple[Agent, Manifest]]
) -> tuple[tuple[str, ...], tuple[CoverageRun, ...]]:
    """Whose manifests fail with it, and all that was measured; it is in use from now on."""
    library.shelves.encoder = encoder
    runs = tuple(run_coverage(library, agent, manifest, kind="recert") for agent, manifest in manifests)
    return tuple(run.agent_id for run in runs if not all(one.passed for one in run.units)), runs


def _keep(library: Library, before: str, failed: Sequence[str]) -> None:
    kept = encoder_certified(before)
    if kept is None and before != NO_ENCODER:
        raise UserError(
            f"the encoder {configured_name(before)!r} was in use and cannot be had as it was, and with the configured "
            f"one manifests fail, such as that of {failed[0]}: bring it back, or use the other with "
            "`holdfast instructions encoder --accept`"
        )
    library.shelves.encoder = kept
    library.shelves.forget()


def _refused(library: Library, name: str, manifests: Sequence[tuple[Agent, Manifest]]) -> Refusal | None:
    told = library.records.refused_encoder()
    last = msgspec.json.decode(told, type=Refusal) if told else None
    return last if last is not None and (last.encoder, last.manifests) == (name, _told(manifests)) else None


def _told(manifests: Sequence[tuple[Agent, Manifest]]) -> str:
    return hashlib.sha256(" ".join(sorted(manifest.id for _, manifest in manifests)).encode()).hexdigest()
