"""Shows the address of a store without its secrets. It imports no store, so that `holdfast config` starts quickly."""

import re

_URL = re.compile(r"(?P<scheme>postgres(?:ql)?)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_PLAIN = re.compile(r"(?:[^/?@]*@)?(?P<hosts>[^/?@]*)(?P<database>/[^?@]*)?(?:\?.*)?", re.DOTALL)
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?", re.DOTALL)


def redact_address(address: str) -> str:
    """The address without user, password and options; only the scheme if it is ambiguous."""
    url = _URL.match(address)
    if url is None:
        return address
    return f"{url['scheme'].lower()}://{_host_and_database(url['rest']) or '...'}"


def is_unambiguous_address(address: str) -> bool:
    """Whether a PostgreSQL address is unambiguous: an unescaped / or @ in a password could end it early."""
    url = _URL.match(address)
    return url is not None and _host_and_database(url["rest"]) is not None


def _host_and_database(rest: str) -> str | None:
    match = _PLAIN.fullmatch(rest)
    if match is None or not all(map(_HOST.fullmatch, match["hosts"].split(","))):
        return None
    location = match["hosts"] + (match["database"] or "")
    return "".join(character if character.isprintable() else "?" for character in location)
