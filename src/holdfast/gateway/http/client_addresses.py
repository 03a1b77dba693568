"""Clients by address: who sends a request behind proxies, how many connections an address has, and how many wrong keys.

Addresses are texts in the form of `group_address`.
"""

import hashlib
import ipaddress
import os
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache

from holdfast.gateway.http.headers import Headers

MINUTE_SECONDS = 60.0
FAILED_KEYS_A_MINUTE_MAX = 20
ADDRESSES_MAX = 10_000
VALID_KEYS_MAX = 10_000
CONNECTIONS_PER_ADDRESS_MAX = 1_000
FORWARDED_BYTES_MAX = 2_000


@lru_cache(maxsize=ADDRESSES_MAX)
def group_address(text: str) -> str:
    """The address that limits count by: an IPv6 host has a whole /64, so all of that is one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return text


class TrustedProxies:
    """Proxies whose `X-Forwarded-For` is believed; any client can send that header."""

    def __init__(self, networks: Collection[str] = ()) -> None:
        self._networks = tuple(ipaddress.ip_network(text, strict=False) for text in networks)

    def is_trusted(self, peer: str) -> bool:
        return bool(self._networks) and (address := _parse(peer)) is not None and self._contains(address)

    def find_address(self, peer: str, headers: Headers) -> str:
        """The peer's address; behind trusted proxies the last forwarded one that is not a trusted proxy's.

        Each proxy appends the address that it was called from, so what stands before that one may be invented.
        """
        if not self.is_trusted(peer):
            return group_address(peer)
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        for part in reversed(forwarded[-FORWARDED_BYTES_MAX:].decode("latin-1").split(",")):
            address = _parse(part.strip())
            if address is None:
                break
            if not self._contains(address):
                return group_address(str(address))
        return group_address(peer)

    def _contains(self, address: "ipaddress.IPv4Address | ipaddress.IPv6Address") -> bool:
        return any(address in network for network in self._networks)


def _parse(text: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
    """Some proxies append the port, with brackets around an IPv6 address."""
    for form in (text, text.rpartition(":")[0], text.partition("]")[0].removeprefix("[")):
        with suppress(ValueError):
            address = ipaddress.ip_address(form)
            return getattr(address, "ipv4_mapped", None) or address
    return None


class ClientConnections:
    """Counts the connections of each address from its first request; those of a proxy count for the client that it
    names, while they serve a request."""

    def __init__(
        self, proxies: TrustedProxies | None = None, *, per_address_max: int = CONNECTIONS_PER_ADDRESS_MAX
    ) -> None:
        self.proxies = proxies or TrustedProxies()
        self.per_address_max = per_address_max
        self.counts: dict[str, int] = {}
        self.open_count = 0
        self.refused_count = 0

    def add(self, address: str) -> None:
        self.counts[address] = self.counts.get(address, 0) + 1

    def remove(self, address: str) -> None:
        remaining = self.counts.get(address, 0) - 1
        if remaining > 0:
            self.counts[address] = remaining
        else:
            self.counts.pop(address, None)

    def has_too_many(self, address: str) -> bool:
        return self.counts.get(address, 0) > self.per_address_max


class FailedKeys:
    """Slows down who guesses keys: after FAILED_KEYS_A_MINUTE_MAX wrong ones, an address has to wait.

    Keys that were valid before are not slowed down: many clients may share the address of a proxy. They are known by
    a digest with a salt of this process.
    """

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._valid: OrderedDict[bytes, None] = OrderedDict()
        self._salt = os.urandom(16)
        self.failed_count = 0
        self.refused_count = 0

    def add(self, address: str, now: float) -> None:
        address = group_address(address)
        self.failed_count += 1
        since, count = self._by_address.pop(address, (now, 0))
        self._by_address[address] = (since, count + 1) if now - since < MINUTE_SECONDS else (now, 1)
        while len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)

    def add_valid(self, key: bytes) -> None:
        digest = self._digest(key)
        self._valid[digest] = None
        self._valid.move_to_end(digest)
        while len(self._valid) > VALID_KEYS_MAX:
            self._valid.popitem(last=False)

    def find_wait_seconds(self, address: str, key: bytes | None, now: float) -> int:
        """How long the address has to wait before its key is looked at; 0 if it need not."""
        since, count = self._by_address.get(group_address(address), (now, 0))
        wait = since + MINUTE_SECONDS - now
        if count < FAILED_KEYS_A_MINUTE_MAX or wait <= 0 or (key is not None and self._digest(key) in self._valid):
            return 0
        self.refused_count += 1
        return int(wait) + 1

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=16).digest()
