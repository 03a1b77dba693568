"""Why something about instructions is refused: a code of the contract, one line, and what programs may want to know."""

from collections.abc import Mapping

from holdfast.errors import UserError


class InstructionError(UserError):
    def __init__(self, code: str, message: str, *, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
