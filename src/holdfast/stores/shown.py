"""What of a store's address may be shown: never a password."""

import re

_URL = re.compile(r"(?P<scheme>postgres(?:ql)?)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_PLAIN = re.compile(r"(?:[^/?@]*@)?(?P<hosts>[^/?@]*)(?P<database>/[^?@]*)?(?:\?.*)?", re.DOTALL)
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?", re.DOTALL)


def shown(address: str) -> str:
    """The address without user, password and options; of one that can be read in two ways the scheme alone."""
    url = _URL.match(address)
    if url is None:
        return address
    return f"{url['scheme'].lower()}://{_place(url['rest']) or '...'}"


def is_plain(address: str) -> bool:
    """Whether a PostgreSQL address can be read in one way only: a / or @ in a password could end it."""
    url = _URL.match(address)
    return url is not None and _place(url["rest"]) is not None


def _place(rest: str) -> str | None:
    plain = _PLAIN.fullmatch(rest)
    if plain is None or not all(map(_HOST.fullmatch, plain["hosts"].split(","))):
        return None
    place = plain["hosts"] + (plain["database"] or "")
    return "".join(character if character.isprintable() else "?" for character in place)
