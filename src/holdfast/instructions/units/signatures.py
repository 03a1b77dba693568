"""Ed25519 signatures of units and approvals, in base64url."""

import base64
import binascii
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from holdfast.errors import UserError
from holdfast.instructions.models import Approval, Signer

KEY_BYTES = 32


class DeploymentKey(msgspec.Struct, frozen=True):
    """The key that signs units submitted without a signature."""

    secret: bytes

    @property
    def public_key(self) -> str:
        return encode_base64url(Ed25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw())

    def sign(self, message: str) -> str:
        return encode_base64url(Ed25519PrivateKey.from_private_bytes(self.secret).sign(message.encode()))


def load_deployment_key(path: Path) -> DeploymentKey:
    """Read the key file, or create one that only its owner may read. Raises UserError."""
    try:
        secret = path.read_bytes() if path.exists() else _create_key(path)
    except OSError as error:
        raise UserError(f"the key {path} can be neither read nor created: {error.strerror}") from error
    if len(secret) != KEY_BYTES:
        raise UserError(f"{path} is not a deployment key: restore it, or remove it to create a new one")
    return DeploymentKey(secret)


def _create_key(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # O_EXCL: of two processes that start at once, one creates the key and the other reads it.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    secret = os.urandom(KEY_BYTES)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
    return secret


def unit_message(uri: str, content_sha256: str) -> str:
    return f"{uri}\n{content_sha256}"


def approval_message(approval: Approval) -> str:
    parts = (approval.agent_id, approval.kind, approval.unit or "", approval.version or "", approval.authored_by)
    return "\n".join(("approval", *parts))


def find_signer(message: str, signature: str, signers: Iterable[Signer]) -> str | None:
    """The entity whose key made the signature; None if no known key did."""
    raw = decode_base64url(signature)
    for signer in signers:
        key = decode_base64url(signer.public_key)
        if raw is not None and key is not None and is_valid_signature(key, raw, message.encode()):
            return signer.entity
    return None


def find_unit_signer(uris: Iterable[str], content_sha256: str, signature: str, signers: Iterable[Signer]) -> str | None:
    """Who signed the text under any of these equivalent URIs."""
    known_signers = tuple(signers)
    entities = (find_signer(unit_message(uri, content_sha256), signature, known_signers) for uri in uris)
    return next((entity for entity in entities if entity is not None), None)


def is_signed_by_author(approval: Approval, signers: Iterable[Signer]) -> bool:
    own = [signer for signer in signers if signer.entity == approval.authored_by]
    signature = approval.signature
    return signature is not None and find_signer(approval_message(approval), signature, own) is not None


def is_valid_signature(public_key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def encode_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_base64url(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
