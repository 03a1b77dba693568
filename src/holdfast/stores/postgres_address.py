"""Parses PostgreSQL addresses, names them in messages without secrets, and explains connection errors."""

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import StoreError, UserError
from holdfast.stores.shown import is_plain, shown

_REASON_CHARACTERS_MAX = 200


class Address(msgspec.Struct, frozen=True):
    """`url` may contain a password; `name` never does."""

    url: str
    name: str
    password: str

    def __repr__(self) -> str:
        return f"Address({self.name!r})"


def read_address(url: str) -> Address:
    """Raises UserError, quoting nothing of the address, unless it can be parsed unambiguously."""
    if not is_plain(url):
        raise _invalid_address()
    try:
        parts = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError) as error:
        raise _invalid_address() from error
    return Address(url, shown(url), str(parts.get("password") or ""))


def _invalid_address() -> UserError:
    return UserError(
        "this PostgreSQL address cannot be parsed: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
        "with / : @ ? # and % in a name or password as %2F %3A %40 %3F %23 and %25"
    )


def unreachable(error: psycopg.Error | UnicodeError, address: Address) -> StoreError:
    """Why the connection failed, in the server's words unless they contain the password."""
    # A UnicodeError for an invalid host name quotes it, and with it possibly the password.
    first_line = "" if isinstance(error, UnicodeError) else str(error).strip().partition("\n")[0]
    message = first_line.rpartition(" failed: ")[2]
    reason = "".join(character if character.isprintable() else " " for character in message)[:_REASON_CHARACTERS_MAX]
    if not reason or (address.password and address.password in first_line):
        reason = "the reason is withheld: it could contain the password"
    return StoreError(
        f"{address.name} cannot be reached ({reason}): check that the server runs, and user, password and database"
    )


def explain(error: psycopg.Error, name: str) -> StoreError:
    """One line that says what to do. PostgreSQL's own message is left out: it can quote a row."""
    match error.sqlstate:
        case "53100":
            return StoreError(f"the disk of {name} is full: free some space, then open the store again")
        case "42501":
            return StoreError(f"no permission to use {name}: have its owner grant what is missing on schema holdfast")
        case "25006":
            return StoreError(f"{name} is read-only: use the address of the primary server")
        case "55P03" | "57014" | "40P01" | "40001":
            return StoreError(f"{name} is locked by another program, or too slow: try again later")
        case "XX001" | "XX002":
            return StoreError(f"{name} is damaged: restore the database from a backup")
        case "42P01" | "42703" | "3F000":
            return StoreError(
                f"{name} is missing tables that Holdfast created there: restore the database from a backup"
            )
        case None | "57P01" | "57P02" | "57P03" | "08000" | "08003" | "08006" | "25P03":
            return StoreError(f"the connection to {name} was lost: check the server, then open the store again")
        case code:
            return StoreError(f"{name} cannot be used (PostgreSQL error {code}): check the server's log")
