"""Turn a weekly sample of real intents into probes, with personal and identifying text removed."""

import hashlib
import re

from holdfast.canonical.redaction import redacted
from holdfast.instructions.library import Library
from holdfast.instructions.measures import WINDOW_MS
from holdfast.instructions.resting import Rest, no_rest
from holdfast.instructions.values import AuditRecord, Manifest, Probe
from holdfast.retrieval.words import terms

SAMPLED_OF = 10
SAMPLES_MAX = 100
TERMS_MIN = 2
CHARACTERS_MAX = 400
CHARACTERS_READ = 2_000
PREFIX = "real-"
LEASES = "calibrate:"

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


def without_personal(intent: str) -> str:
    """The intent with placeholders for addresses, numbers, names, links, paths and credentials."""
    text = " ".join(intent.split())
    if len(text) > CHARACTERS_READ:
        # Cut at a word: half an address or key might no longer match its pattern.
        text = text[:CHARACTERS_READ].rpartition(" ")[0]
    text = redacted(text)
    for pattern, placeholder in _PERSONAL:
        text = pattern.sub(placeholder, text)
    return text[:CHARACTERS_MAX]


def calibrate_due(context: Library, *, rest: Rest = no_rest) -> tuple[str, ...]:
    """Sample each agent once in seven days, on one replica; return the ids of the sampled agents."""
    now = context.now()
    sampled = []
    for agent_id in context.records.agents_to_sample(LEASES, since=now - WINDOW_MS, at=now):
        manifest = context.records.manifest(agent_id)
        probes = sampled_probes(context, manifest) if manifest else ()
        if context.records.put_sample(probes, lease=f"{LEASES}{agent_id}", until=now + WINDOW_MS, at=now):
            sampled.append(agent_id)
        if not rest():
            break
    return tuple(sampled)


def sampled_probes(context: Library, manifest: Manifest) -> tuple[Probe, ...]:
    """One in ten of a week's recalls that report what was used (seed 003, 21.5.5); deterministic in the records."""
    listed = {entry.name for entry in manifest.body}
    probes: dict[str, Probe] = {}
    for record in context.records.audits(manifest.agent_id, since=context.now() - WINDOW_MS):
        used = tuple(name for name in record.used_chunks if name in listed)
        intent = without_personal(record.intent)
        words = re.sub(r"\[\w+\]", " ", intent)
        if not (_is_sampled(record) and used) or len(terms(words)) < TERMS_MIN:
            continue
        probe_id = PREFIX + hashlib.sha256(intent.lower().encode("utf-8", "replace")).hexdigest()[:16]
        probes.setdefault(probe_id, Probe(probe_id, manifest.agent_id, intent, used))
    return tuple(probes.values())[:SAMPLES_MAX]


def _is_sampled(record: AuditRecord) -> bool:
    if record.event_type != "recall" or record.audit_closed is None:
        return False
    # By digest of the id and not at random, so that every replica samples the same records.
    return int.from_bytes(hashlib.sha256(record.id.encode()).digest()[:4]) % SAMPLED_OF == 0
