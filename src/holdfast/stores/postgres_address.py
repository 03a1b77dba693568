"""Which database an address means, what it may be called in a message, and why it cannot be used."""

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import StoreError, UserError
from holdfast.stores.shown import is_plain, shown

_REASON_CHARACTERS_MAX = 200


class Address(msgspec.Struct, frozen=True):
    """`url` can hold a password; `name` cannot."""

    url: str
    name: str
    password: str

    def __repr__(self) -> str:
        return f"Address({self.name!r})"


def read_address(url: str) -> Address:
    """Raises UserError, without a word of the address, when it cannot be understood for certain."""
    if not is_plain(url):
        raise _not_understood()
    try:
        parts = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError) as error:
        raise _not_understood() from error
    return Address(url, shown(url), str(parts.get("password") or ""))


def _not_understood() -> UserError:
    return UserError(
        "this PostgreSQL address is not understood: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
        "with / : @ ? # and % in a name or password as %2F %3A %40 %3F %23 and %25"
    )


def unreachable(error: psycopg.Error | UnicodeError, address: Address) -> StoreError:
    """Why no connection could be made: the server's own words, unless they hold the password."""
    # What is said of a host's name that is none quotes it, letter by letter.
    first = "" if isinstance(error, UnicodeError) else str(error).strip().partition("\n")[0]
    said = first.rpartition(" failed: ")[2]
    reason = "".join(character if character.isprintable() else " " for character in said)[:_REASON_CHARACTERS_MAX]
    if not reason or (address.password and address.password in first):
        reason = "no reason that could be shown"
    return StoreError(
        f"{address.name} cannot be reached ({reason}): check that the server runs, and user, password and database"
    )


def explain(error: psycopg.Error, name: str) -> StoreError:
    """One line that says what to do. PostgreSQL's own words are left out: they can quote a row."""
    match error.sqlstate:
        case "53100":
            return StoreError(f"no room on the disk of {name}: free some space there, then open the store again")
        case "42501":
            return StoreError(f"no permission to use {name}: have its owner grant what is missing on schema holdfast")
        case "25006":
            return StoreError(f"{name} can only be read: give the address of the server that takes writes")
        case "55P03" | "57014" | "40P01" | "40001":
            return StoreError(f"{name} is locked by another program, or too slow: try again once it has settled")
        case "XX001" | "XX002":
            return StoreError(f"{name} is damaged: restore the database from a copy")
        case "42P01" | "42703" | "3F000":
            return StoreError(f"{name} has not the tables that Holdfast made there: restore the database from a copy")
        case None | "57P01" | "57P02" | "57P03" | "08000" | "08003" | "08006" | "25P03":
            return StoreError(f"the connection to {name} was lost: check the server, then open the store again")
        case code:
            return StoreError(f"{name} cannot be used (PostgreSQL error {code}): check the server's log")
