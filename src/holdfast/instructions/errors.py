"""The error of every refused instruction operation: an error code of the API, a one-line message, optional details."""

from collections.abc import Mapping

from holdfast.errors import UserError


class InstructionError(UserError):
    def __init__(self, code: str, message: str, *, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
