"""Serves the dashboard's static files, read on demand, with security headers: the page at `/`, all else below it."""

import functools
import gzip
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

PREFIX = "/dashboard/"
PAGE = "index.html"

_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "md": "text/markdown; charset=utf-8",
}

VERDICTS = "verdicts.md"
"""The page of the docs that the dashboard shows. A wheel has it among the static files, a checkout in its docs."""

# The policy allows same-origin resources only, so that injected markup could neither load nor send anything.
PAGE_HEADERS: Mapping[str, str] = {
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
    """`packed` is the body for clients that accept gzip: a third of its size."""

    body: bytes
    packed: bytes
    content_type: str
    etag: str


@functools.cache
def load_page_files() -> Mapping[str, PageFile]:
    """All files by relative path, such as `views/cost.js`."""
    found = dict(_read(files(__package__) / "static", ""))
    checkout = Path(__file__).parents[4] / "docs" / VERDICTS
    if VERDICTS not in found and checkout.is_file():
        found[VERDICTS] = _make_file(VERDICTS, checkout.read_bytes())
    return found


def _make_file(name: str, body: bytes) -> PageFile:
    content_type = _CONTENT_TYPES[name.rpartition(".")[2]]
    # Without a time of packing, so that every replica sends the same bytes.
    return PageFile(body, gzip.compress(body, mtime=0), content_type, hashlib.sha256(body).hexdigest()[:32])


def _read(folder: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    entries: list[tuple[str, PageFile]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            entries += _read(entry, f"{name}/")
        elif entry.name.rpartition(".")[2] in _CONTENT_TYPES:
            entries.append((name, _make_file(name, entry.read_bytes())))
    return entries


def make_page_routes() -> list[HttpRoute]:
    """Accessible without a key: the files contain nothing that is not in the package."""

    async def send(request: Request) -> Response:
        file = (await run_in_threadpool(load_page_files)).get(request.path_params.get("name", PAGE))
        if file is None:
            return Response("no such file\n", status_code=404, media_type="text/plain", headers=PAGE_HEADERS)
        headers = {**PAGE_HEADERS, "content-type": file.content_type, "vary": "accept-encoding"}
        body, headers["etag"] = file.body, f'"{file.etag}"'
        if _accepts_gzip(request.headers.get("accept-encoding", "")):
            body, headers["etag"], headers["content-encoding"] = file.packed, f'"{file.etag}-gzip"', "gzip"
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return [HttpRoute("/", send, methods=["GET"]), HttpRoute(PREFIX + "{name:path}", send, methods=["GET"])]


def _accepts_gzip(accepted: str) -> bool:
    for coding in accepted.lower().split(","):
        name, _, quality = coding.replace(" ", "").partition(";q=")
        if name == "gzip":
            return not quality or quality.strip("0.") != ""
    return False
