"""The server's way to say no: a typed error that travels to the client."""

from autodraft.protocol.messages import ErrorCode


class Refusal(Exception):
    """A request that the server will not or cannot fulfil.

    Attributes:
        code: Kind of error, sent to the client.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
