"""Page files and the sign-in cookie, tested without a browser."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.served_service import Client, serve_store

from holdfast.service.dashboard.static_files import load_page_files
from holdfast.stores.memory import MemoryStore

PAGE_BYTES_MAX = 150_000
"""Of all files together, as a browser gets them."""
STATIC = Path(__file__).parents[2] / "src/holdfast/service/dashboard/static"
BANNED = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "http://",
    "https://",
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve_store(MemoryStore()) as served:
        yield served


def cookie_of(set_cookie: str) -> str:
    return set_cookie.partition(";")[0]


def test_page_loads_nothing_from_other_origins(client: Client) -> None:
    response = client.request("GET", "/")
    assert (response.status, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(rule.strip().partition(" ")[::2] for rule in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'", "'none'", "'none'")
    assert policy["require-trusted-types-for"] == "'script'"
    assert response.headers["x-content-type-options"] == "nosniff"


def test_every_file_is_sent_with_its_content_type_and_cached_by_etag() -> None:
    with serve_store(MemoryStore()) as client:
        for name, file in load_page_files().items():
            response = client.request("GET", f"/dashboard/{name}")
            assert (response.body, response.headers["content-type"]) == (file.body, file.content_type)
            again = client.request("GET", f"/dashboard/{name}", headers={"if-none-match": response.headers["etag"]})
            assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip, deflate, br, zstd", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("br", False),
        ("x-gzip", False),
        ("identity", False),
    ],
)
def test_files_are_packed_for_clients_that_accept_it(client: Client, accepted: str, is_packed: bool) -> None:
    response = client.request("GET", "/dashboard/app.js", headers={"accept-encoding": accepted})
    file = load_page_files()["app.js"]
    assert response.headers.get("content-encoding") == ("gzip" if is_packed else None)
    assert (gzip.decompress(response.body) if is_packed else response.body) == file.body
    assert response.headers["vary"] == "accept-encoding"
    etag = response.headers["etag"]
    plain = client.request("GET", "/dashboard/app.js", headers={"if-none-match": etag})
    assert (plain.status == 304) == (not is_packed), "two forms of a file have two tags"


@pytest.mark.parametrize("name", ["none.js", "../files.py", "%2e%2e/files.py", "views", "", "/etc/passwd"])
def test_files_outside_the_page_are_not_sent(client: Client, name: str) -> None:
    assert client.request("GET", f"/dashboard/{name}").status == 404


def test_all_page_files_are_packaged_and_small() -> None:
    there = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}
    assert load_page_files().keys() == there | {"verdicts.md"}
    assert sum(len(file.packed) for file in load_page_files().values()) < PAGE_BYTES_MAX


def test_no_script_inserts_markup_or_names_another_origin() -> None:
    for name, file in load_page_files().items():
        if name.endswith(".svg"):
            continue
        text = file.body.decode().replace('"http://www.w3.org/2000/svg"', "")
        assert [word for word in BANNED if word in text] == [], name
        assert len(text.splitlines()) <= 400, name


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` as defined by WCAG."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_has_enough_contrast_in_both_themes() -> None:
    style = load_page_files()["style.css"].body.decode()
    themes = [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", part)) for part in style.split("  color-scheme: ")[1:]]
    assert len(themes) == 3
    assert themes[1] == themes[2], "dark by the system, and dark by choice"
    for theme in themes:
        for text in ("ink", "soft", "accent", "good", "bad"):
            for ground in ("ground", "panel", "hover"):
                darker, lighter = sorted((luminance(theme[text]), luminance(theme[ground])))
                assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, ground)


def test_link_from_another_site_opens_the_page_and_nothing_else(client: Client) -> None:
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.request("GET", "/", headers=followed).status == 200
    assert client.request("GET", "/api/cache", headers=followed).code == "cross_origin"
    framed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.request("GET", "/", headers=framed).code == "cross_origin"
    assert client.request("GET", "/", headers={**followed, "origin": "http://evil.example"}).code == "cross_origin"


def test_key_is_stored_in_an_http_only_same_site_cookie() -> None:
    with serve_store(MemoryStore()) as client:
        key = client.key("admin")
        signed = client.request("POST", "/api/sign_in", key=key)
        caller = {"scope": "admin", "signed_in": True, "key_id": key.split("_")[1]}
        assert signed.json == {**caller, "sample": "off", "is_simulating": False}
        set_cookie = signed.headers["set-cookie"]
        assert set_cookie == f"holdfast_key={key}; Path=/; HttpOnly; SameSite=Strict"
        cookie_headers = {"cookie": cookie_of(set_cookie)}
        assert client.get("/api/visitor", headers=cookie_headers)["scope"] == "admin"
        assert client.request("PUT", "/api/cache/settings", {"ttl": "5m"}, headers=cookie_headers).status == 200
        assert client.request("GET", "/api/cache").code == "key_required"
        foreign_headers = {**cookie_headers, "origin": "http://evil.example"}
        assert client.request("PUT", "/api/cache/settings", {}, headers=foreign_headers).code == "cross_origin"
        left = client.request("POST", "/api/sign_out", headers=cookie_headers)
        assert (cookie_of(left.headers["set-cookie"]), "Max-Age=0" in left.headers["set-cookie"]) == (
            "holdfast_key=",
            True,
        )


def test_cookie_has_the_access_of_its_key() -> None:
    with serve_store(MemoryStore()) as client:
        reading = {"cookie": f"holdfast_key={client.key('read')}"}
        assert client.get("/api/visitor", headers=reading)["scope"] == "read"
        assert client.request("PUT", "/api/cache/settings", {}, headers=reading).code == "not_allowed"
        admin = client.key("admin")
        assert client.get("/api/visitor", headers=reading, key=admin)["scope"] == "admin", "a header comes first"
        client.service.records.revoke_key(admin.split("_")[1], at=1.0)
        assert client.request("GET", "/api/visitor", headers={"cookie": f"holdfast_key={admin}"}).code == "invalid_key"
        assert client.request("GET", "/api/visitor", headers={"cookie": "holdfast_key=x"}).code == "invalid_key"


def test_no_cookie_is_set_where_no_key_is_required(client: Client) -> None:
    signed = client.request("POST", "/api/sign_in")
    assert (signed.json["signed_in"], "set-cookie" in signed.headers) == (False, False)
