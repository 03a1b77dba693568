"""The account that pays for a call."""

import msgspec

from holdfast.ledger.money import NAME_CHARACTERS_MAX


class Payer(msgspec.Struct, frozen=True):
    """The account of a call: a gateway key, a user, a team; empty where there is none."""

    key_id: str = ""
    user_id: str = ""
    team_id: str = ""


NO_PAYER = Payer()


def build_payer(*, key_id: str | None = None, user_id: str | None = None, team_id: str | None = None) -> Payer:
    return Payer(*((name or "")[:NAME_CHARACTERS_MAX] for name in (key_id, user_id, team_id)))
