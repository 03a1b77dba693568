"""Schedule coverage runs: daily, after a skipped gate, and before a new encoder is activated.

Also turns a weekly sample of real intents into probes, with personal text removed. Work yields between two agents.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.coverage.measure import measure_all_units
from holdfast.instructions.coverage.metrics import METRICS_WINDOW_MS
from holdfast.instructions.models import Agent, AuditRecord, CoverageRun, Manifest, Probe
from holdfast.instructions.recall.answer import write_audit_record
from holdfast.instructions.recall.selection import InstructionSet
from holdfast.redaction import redact_secrets
from holdfast.retrieval.bm25 import extract_terms
from holdfast.retrieval.encoders.registry import (
    configured_name,
    find_certified_encoder,
    is_revised,
    is_same_encoder,
    make_certified_name,
)

DAY_MS = 86_400_000

# A skipped gate must be made up for within 7 days; the run is due from one day after the publication.
RECERT_LEAD_MS = 6 * DAY_MS
NO_ENCODER = "none"

# Seed 003, section 21.5.5: one in ten of a week's recalls.
SAMPLE_ONE_IN = 10
SAMPLES_MAX = 100
PROBE_TERMS_MIN = 2
PROBE_CHARACTERS_MAX = 400
INTENT_CHARACTERS_READ = 2_000
SAMPLED_PROBE_PREFIX = "real-"
CALIBRATION_LEASE_PREFIX = "calibrate:"

_PERSONAL = (
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "[email]"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+|\bwww\.\S+", re.I), "[link]"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{12,}\b", re.I), "[id]"),
    (re.compile(r"(?<!\w)@[\w.-]+"), "[name]"),
    (re.compile(r"(?<!\w)(?:~|[A-Za-z]:\\|/)[^\s,;]*[/\\][^\s,;]*"), "[path]"),
    (re.compile(r"\b(?:[A-Z]{2}\d{2}(?: ?\w{4}){3,7})\b"), "[number]"),
    (re.compile(r"(?<!\w)[+#]?\d[\d\s().:/-]{2,}\d\b|\b\d{3,}\b"), "[number]"),
    (re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof)\.? [A-Z][\w'-]+"), "[name]"),
    # Two capitalised words in a row are usually a person's name; losing a product name does no harm.
    (re.compile(r"(?<=[a-z,] )[A-Z][a-z'-]+(?: [A-Z][\w'-]+)+"), "[name]"),
    (re.compile(r"\b(for|from|with|to|by|of) [A-Z][a-z'-]+\b"), r"\1 [name]"),
    (re.compile(r"\"[^\"\n]{1,400}\"|“[^”\n]{1,400}”"), "[quote]"),
)

YieldControl = Callable[[], bool]
"""Called between two units of work; False means stop."""


class EncoderRefusal(msgspec.Struct, frozen=True):
    """An encoder, a digest of the manifests it was tried with, and the agents whose manifests failed."""

    encoder: str
    manifests_digest: str
    failed_agents: tuple[str, ...]


class TimeSharing:
    """Leave half of the time to foreground requests. `pause` sleeps for some seconds and returns whether to stop."""

    def __init__(self, pause: Callable[[float], bool], clock: Callable[[], float]) -> None:
        self._pause = pause
        self._clock = clock
        self._started = clock()

    def yield_control(self) -> bool:
        # Resting exactly as long as the work took leaves half of the time to requests.
        is_stopped = self._pause(self._clock() - self._started)
        self._started = self._clock()
        return not is_stopped


def never_yield() -> bool:
    return True


def run_due_coverage(context: InstructionContext, *, rest: YieldControl = never_yield) -> tuple[str, ...]:
    """Measure each agent whose last run is a day old or stale, or whose re-certification is due."""
    measured = []
    now = context.now()
    for agent_id in context.records.agents_to_measure(finished_before=now - DAY_MS, recert_before=now + RECERT_LEAD_MS):
        agent, manifest = context.records.agent(agent_id), context.records.manifest(agent_id)
        last = context.records.coverage(agent_id)
        if agent is None or manifest is None:
            continue
        is_old = last is None or last.stale or now - last.finished_at >= DAY_MS
        # The daily run keeps recert_due, so that a passing daily measurement does not replace the re-certification.
        is_recert_due = last is not None and last.recert_due is not None and last.recert_due - RECERT_LEAD_MS <= now
        if is_old or is_recert_due:
            if is_recert_due:
                run = recertify(context, agent, manifest)
            else:
                run = measure_coverage(context, agent, manifest, kind="daily")
            context.records.add_coverage(run)
            measured.append(agent.id)
            if not rest():
                break
    return tuple(measured)


def measure_coverage(
    context: InstructionContext, agent: Agent, manifest: Manifest, *, kind: Literal["daily", "recert"]
) -> CoverageRun:
    """Measure the active texts with the encoder in use; a re-certification owed after a skipped gate stays owed."""
    last = context.records.coverage(agent.id)
    run = run_coverage(context, context.instruction_sets.build(agent, manifest), kind=kind)
    owed = last.recert_due if last is not None and last.manifest_version == manifest.version else None
    return msgspec.structs.replace(run, recert_due=owed)


def run_coverage(
    context: InstructionContext, instruction_set: InstructionSet, *, kind: Literal["gate", "daily", "recert"]
) -> CoverageRun:
    started = context.now()
    units = measure_all_units(instruction_set, context.settings)
    return CoverageRun(
        id=context.new_id("coverage"),
        agent_id=instruction_set.manifest.agent_id,
        manifest_version=instruction_set.manifest.version,
        model_id=instruction_set.index.embedding_model_version,
        kind=kind,
        started_at=started,
        finished_at=context.now(),
        units=units,
    )


def recertify(context: InstructionContext, agent: Agent, manifest: Manifest) -> CoverageRun:
    """Run the gate that was skipped, and record the failing units in the audit log."""
    run = msgspec.structs.replace(measure_coverage(context, agent, manifest, kind="recert"), recert_due=None)
    failing = [{"unit": unit.unit, "coverage_pct": unit.coverage_pct} for unit in run.units if not unit.passed]
    write_audit_record(
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
            detail={"units": failing},
        ),
    )
    return run


def activate_encoder(context: InstructionContext) -> tuple[str, ...]:
    """Choose an encoder and load it, so that the first recall does not wait for it."""
    failed = choose_encoder(context, again=True)
    context.instruction_sets.load_encoder()
    return failed


def choose_encoder(context: InstructionContext, *, accept: bool = False, again: bool = False) -> tuple[str, ...]:
    """Activate the configured encoder if all manifests pass with it, or else keep the previous one.

    Returns the agents whose manifests failed. With `accept` the encoder is activated anyway. A refusal with the same
    manifests is remembered and measured again only with `again`. Raises UserError if neither encoder can be used.
    """
    configured = context.settings.encoder
    name = make_certified_name(configured) if configured else NO_ENCODER
    previous = context.records.encoder()
    if previous is None or is_same_encoder(previous, name):
        if previous != name:
            context.records.set_encoder(name)
        return ()
    manifests = _current_manifests(context)
    if again and manifests:
        why = "whose results changed in this release" if is_revised(previous, name) else "which is new here"
        context.warn(f"measuring all manifests ({len(manifests)}) with the encoder {configured or NO_ENCODER}, {why}")
    refusal = None if again or accept else _known_refusal(context, name, manifests)
    failed, runs = (refusal.failed_agents, ()) if refusal else _measure_with(context, configured, manifests)
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
            refusal = EncoderRefusal(name, _manifests_digest(manifests), failed)
            context.records.set_refused_encoder(msgspec.json.encode(refusal).decode())
        _keep_previous(context, previous, failed)
        return failed
    for run in runs:
        context.records.add_coverage(run)
    context.records.set_encoder(name)
    return failed


def use_recorded_encoder(context: InstructionContext) -> None:
    """Use the encoder that recalls use at present, if it is still available; nothing is measured or stored."""
    recorded = context.records.encoder()
    if recorded is not None and (recorded == NO_ENCODER or find_certified_encoder(recorded) is not None):
        _keep_previous(context, recorded, ())


def _current_manifests(context: InstructionContext) -> tuple[tuple[Agent, Manifest], ...]:
    pairs = ((agent, context.records.manifest(agent.id)) for agent in context.records.agents())
    return tuple((agent, manifest) for agent, manifest in pairs if manifest is not None)


def _measure_with(
    context: InstructionContext, encoder: str | None, manifests: Sequence[tuple[Agent, Manifest]]
) -> tuple[tuple[str, ...], tuple[CoverageRun, ...]]:
    """Switch to the encoder and measure: the agents whose manifests fail with it, and all runs."""
    context.instruction_sets.encoder = encoder
    runs = tuple(measure_coverage(context, agent, manifest, kind="recert") for agent, manifest in manifests)
    return tuple(run.agent_id for run in runs if not all(unit.passed for unit in run.units)), runs


def _keep_previous(context: InstructionContext, previous: str, failed: Sequence[str]) -> None:
    encoder = find_certified_encoder(previous)
    if encoder is None and previous != NO_ENCODER:
        raise UserError(
            f"the encoder {configured_name(previous)!r} was in use but is no longer available in that revision, and "
            f"manifests fail with the configured one, such as that of {failed[0]}: restore it, or activate the "
            "configured one with `holdfast instructions encoder --accept`"
        )
    context.instruction_sets.encoder = encoder
    context.instruction_sets.clear()


def _known_refusal(
    context: InstructionContext, name: str, manifests: Sequence[tuple[Agent, Manifest]]
) -> EncoderRefusal | None:
    stored = context.records.refused_encoder()
    last = msgspec.json.decode(stored, type=EncoderRefusal) if stored else None
    is_same = last is not None and (last.encoder, last.manifests_digest) == (name, _manifests_digest(manifests))
    return last if is_same else None


def _manifests_digest(manifests: Sequence[tuple[Agent, Manifest]]) -> str:
    return hashlib.sha256(" ".join(sorted(manifest.id for _, manifest in manifests)).encode()).hexdigest()


def redact_personal_text(intent: str) -> str:
    """The intent with placeholders for addresses, numbers, names, links, paths and credentials."""
    text = " ".join(intent.split())
    if len(text) > INTENT_CHARACTERS_READ:
        # Cut at a word: half an address or key might no longer match its pattern.
        text = text[:INTENT_CHARACTERS_READ].rpartition(" ")[0]
    text = redact_secrets(text)
    for pattern, placeholder in _PERSONAL:
        text = pattern.sub(placeholder, text)
    return text[:PROBE_CHARACTERS_MAX]


def calibrate_due_agents(context: InstructionContext, *, rest: YieldControl = never_yield) -> tuple[str, ...]:
    """Sample each agent once in seven days, on one replica; return the ids of the sampled agents."""
    now = context.now()
    sampled = []
    for agent_id in context.records.agents_to_sample(CALIBRATION_LEASE_PREFIX, since=now - METRICS_WINDOW_MS, at=now):
        manifest = context.records.manifest(agent_id)
        probes = sample_probes(context, manifest) if manifest else ()
        if context.records.save_sampled_probes(
            probes, lease=f"{CALIBRATION_LEASE_PREFIX}{agent_id}", until=now + METRICS_WINDOW_MS, at=now
        ):
            sampled.append(agent_id)
        if not rest():
            break
    return tuple(sampled)


def sample_probes(context: InstructionContext, manifest: Manifest) -> tuple[Probe, ...]:
    """One in ten of a week's recalls that report what was used (seed 003, 21.5.5); deterministic in the records."""
    listed = {entry.name for entry in manifest.body}
    probes: dict[str, Probe] = {}
    for record in context.records.audits(manifest.agent_id, since=context.now() - METRICS_WINDOW_MS):
        used = tuple(name for name in record.used_chunks if name in listed)
        intent = redact_personal_text(record.intent)
        words = re.sub(r"\[\w+\]", " ", intent)
        if not (_is_sampled(record) and used) or len(extract_terms(words)) < PROBE_TERMS_MIN:
            continue
        probe_id = SAMPLED_PROBE_PREFIX + hashlib.sha256(intent.lower().encode("utf-8", "replace")).hexdigest()[:16]
        probes.setdefault(probe_id, Probe(probe_id, manifest.agent_id, intent, used))
    return tuple(probes.values())[:SAMPLES_MAX]


def _is_sampled(record: AuditRecord) -> bool:
    if record.event_type != "recall" or record.audit_closed is None:
        return False
    # By digest of the id and not at random, so that every replica samples the same records.
    return int.from_bytes(hashlib.sha256(record.id.encode()).digest()[:4]) % SAMPLE_ONE_IN == 0
