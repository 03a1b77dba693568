"""The `[instructions]` table of the home configuration file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.models import WAKE_REASONS
from holdfast.instructions.recall.wake_token import WakeIssuer
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.units.signatures import KEY_BYTES, decode_base64url
from holdfast.instructions.uri import SEGMENT_PATTERN
from holdfast.retrieval.encoders.registry import check_encoder_name, default_encoder
from holdfast.runtime.config import read_config_text
from holdfast.sources.files import holdfast_home, parse_toml

WAKE_SECRET_VARIABLE = "HOLDFAST_WAKE_SECRET"
WAKE_SECRET_BYTES_MIN = 32  # HS256 needs a key of at least the hash's 256 bits (RFC 7518, section 3.2).
KEY_FILE = "instructions.key"


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[instructions]` as written in the file. Secrets are read from the environment instead."""

    enabled: bool = False
    deployment: str = "local"
    root: str | None = None
    wake_issuer: str | None = None
    wake_audience: str = "holdfast"
    wake_public_key: str | None = None
    also_wake_reasons: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=200)], ...] = ()
    encoder: str | None = None
    floor: bool = True
    audit_required: bool = False
    coverage_k: Literal["specified", "scaled"] = "specified"


class _File(msgspec.Struct, frozen=True):
    instructions: _Table = _Table()


class InstructionConfig(msgspec.Struct, frozen=True):
    enabled: bool
    settings: InstructionSettings
    key_path: Path


def load_instruction_config(environ: Mapping[str, str]) -> InstructionConfig:
    """Raises UserError for invalid settings."""
    home = holdfast_home(environ)
    table = _read(home / "config.toml")
    if not SEGMENT_PATTERN.fullmatch(table.deployment):
        raise UserError(f"instructions.deployment must be letters, digits and . _ @ + -, not {table.deployment[:80]!r}")
    encoder: str | None = None
    if table.encoder is None:
        encoder = default_encoder()
    elif table.encoder != "none":
        encoder = check_encoder_name(table.encoder)
    settings = InstructionSettings(
        deployment=table.deployment,
        root=Path(table.root).expanduser() if table.root else home / "instructions",
        wake=_wake_trust(table, environ.get(WAKE_SECRET_VARIABLE)),
        wake_reasons=(*WAKE_REASONS, *table.also_wake_reasons),
        encoder=encoder,
        use_floor=table.floor,
        audit_required=table.audit_required,
        scaled_is_binding=table.coverage_k == "scaled",
    )
    return InstructionConfig(table.enabled, settings, home / KEY_FILE)


def describe_instruction_settings(environ: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    """Each setting of `[instructions]`: the value in use, and where it was set. Raises UserError for invalid ones."""
    file = holdfast_home(environ) / "config.toml"
    table, config = _read(file), load_instruction_config(environ)
    written = _written_names(file)
    values = msgspec.structs.asdict(table) | {
        "root": str(config.settings.root),
        "encoder": config.settings.encoder or "none",
        "wake_secret": "set" if environ.get(WAKE_SECRET_VARIABLE) else None,
    }
    origins = dict.fromkeys(written, str(file)) | {"wake_secret": WAKE_SECRET_VARIABLE}
    return {name: (value, origins.get(name, "default")) for name, value in values.items()}


def _written_names(file: Path) -> frozenset[str]:
    try:
        return frozenset(parse_toml(read_config_text(file)).get("instructions", {}))
    except FileNotFoundError:
        return frozenset()


def _wake_trust(table: _Table, secret: str | None) -> WakeIssuer | None:
    """Whose wake tokens are accepted; None if no key is configured, so that none are."""
    if secret and len(secret.encode()) < WAKE_SECRET_BYTES_MIN:
        limit = f"at least {WAKE_SECRET_BYTES_MIN} bytes; a shorter one can be guessed"
        raise UserError(f"{WAKE_SECRET_VARIABLE} must have {limit}")
    raw = decode_base64url(table.wake_public_key) if table.wake_public_key else None
    if table.wake_public_key and (raw is None or len(raw) != KEY_BYTES):
        raise UserError("instructions.wake_public_key must be a raw Ed25519 key in base64url")
    if not (secret or table.wake_public_key):
        return None
    if not table.wake_issuer:
        raise UserError("wake tokens need instructions.wake_issuer, the issuer to accept them from")
    return WakeIssuer(table.wake_issuer, table.wake_audience, secret or None, table.wake_public_key)


def _read(file: Path) -> _Table:
    try:
        content = parse_toml(read_config_text(file))
        return msgspec.convert(content, _File).instructions
    except FileNotFoundError:
        return _Table()
    except (OSError, ValueError) as error:
        reason = str(error) if isinstance(error, msgspec.ValidationError) else "it cannot be read"
        raise UserError(f"{file}: {reason}") from error
