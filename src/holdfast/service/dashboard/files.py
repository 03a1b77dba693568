"""The files of the page: read once, sent under rules that let nothing in from outside, and nothing out."""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

PREFIX = "/dashboard/"
PAGE = "index.html"

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

HEADERS: Mapping[str, str] = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class PageFile(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str
    etag: str


def page_files() -> Mapping[str, PageFile]:
    """All files by their path below the folder, such as `views/cost.js`."""
    return dict(_read(files(__package__) / "static", ""))


def _read(folder: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    found: list[tuple[str, PageFile]] = []
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _read(entry, f"{name}/")
        elif kind := _KINDS.get(entry.name.rpartition(".")[2]):
            body = entry.read_bytes()
            found.append((name, PageFile(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')))
    return found
