"""The exceptions AutoDraft raises, one tree.

Every message says what went wrong, where, what is allowed and what to do next.

    AutodraftError
    ├── ConfigError             a configuration file or option is wrong
    ├── DataError               a benchmark file is missing or malformed
    ├── StoreError              results cannot be written or read
    ├── ProfileError            a latency profile is missing, damaged or cannot be measured
    ├── ModelLoadError          a model cannot be found, loaded or used
    │   └── TokenizerMismatch   draft and target do not share a tokenizer
    ├── ContextLengthError      a prompt does not fit the model's context
    └── LinkError               anything between client and target server
        ├── ConnectError        the server cannot be reached
        ├── AuthError           the access token is missing or wrong
        ├── LinkTimeout         the server did not answer in time
        ├── LinkClosed          the connection ended in the middle of something
        ├── ProtocolError       a message is malformed, too large or out of order
        └── RemoteError         the server refused or failed; carries its error code

This module knows nothing else of AutoDraft.
"""


class AutodraftError(Exception):
    """Base of every error that AutoDraft raises on purpose."""


class ConfigError(AutodraftError):
    """A configuration file or option is wrong."""


class DataError(AutodraftError):
    """A benchmark file is missing or one of its rows is malformed."""


class StoreError(AutodraftError):
    """A result folder cannot be written or read."""


class ProfileError(AutodraftError):
    """A latency profile is missing, damaged or cannot be measured."""


class ModelLoadError(AutodraftError):
    """A model cannot be found, loaded or used."""


class TokenizerMismatch(ModelLoadError):
    """Draft and target give one token id different meanings."""


class ContextLengthError(AutodraftError):
    """A prompt does not fit the context of the model."""


class LinkError(AutodraftError):
    """Something between the client and the target server failed."""


class ConnectError(LinkError):
    """The target server cannot be reached."""


class AuthError(LinkError):
    """The access token is missing or wrong."""


class LinkTimeout(LinkError):
    """The target server did not answer in time."""


class LinkClosed(LinkError):
    """The connection to the target server ended unexpectedly."""


class ProtocolError(LinkError):
    """A message is malformed, too large or out of order."""


class RemoteError(LinkError):
    """The target server refused a request or failed on it.

    Attributes:
        code: One of the error codes in ``autodraft.protocol.messages.ErrorCode``.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
