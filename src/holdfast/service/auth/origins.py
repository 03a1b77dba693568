"""Host and Origin checks against DNS rebinding and cross-site requests."""

import ipaddress
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from holdfast.service.http.routes import ApiError

HOSTS_CACHED_MAX = 256
_SCHEMES = ("http", "https")


def check_origin(
    host: str | None, origin: str | None, fetch_site: str | None, *, allowed_hosts: Collection[str]
) -> None:
    """Raises ApiError for an unknown Host, and for requests sent by a page of another origin.

    DNS rebinding needs a name, so every IP address is accepted; names must be listed.
    """
    name = parse_host_name(host or "")
    if name is None or not (name in allowed_hosts or name == "localhost" or is_address(name)):
        raise ApiError(421, "unknown_host", "unknown host name; allow it with --allow-host")
    if origin is not None and not _is_same(origin, host or ""):
        raise ApiError(403, "cross_origin", "cross-origin requests are not allowed")
    # Browsers send no Origin with cross-site GETs of images and scripts, but they do send Sec-Fetch-Site.
    if origin is None and fetch_site is not None and fetch_site not in ("same-origin", "none"):
        raise ApiError(403, "cross_origin", "cross-origin requests are not allowed")


@lru_cache(HOSTS_CACHED_MAX)
def parse_host_name(host: str) -> str | None:
    """The host without port, in lower case; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        port_is_number = parts.port is None or parts.port >= 0
    except ValueError:
        return None
    is_plain = parts.netloc == host and "@" not in host and not (parts.path or parts.query or parts.fragment)
    return parts.hostname if is_plain and port_is_number else None


@lru_cache(HOSTS_CACHED_MAX)
def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on that host."""
    if host == "localhost":
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_same(origin: str, host: str) -> bool:
    scheme, separator, rest = origin.partition("://")
    return bool(separator) and scheme in _SCHEMES and rest.lower() == host.lower()
