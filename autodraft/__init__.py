"""AutoDraft: user-cloud distributed speculative decoding that tunes itself.

The public names, loaded when first used so that ``import autodraft`` stays light: torch is
imported only when an engine or a server is made.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from autodraft.settings import wait_briefly as _wait_briefly

if TYPE_CHECKING:
    from autodraft.api import Autodraft, serve_target
    from autodraft.config import ExperimentConfig, MethodSpec, ServerConfig
    from autodraft.decoding.sampling import Sampling
    from autodraft.errors import AutodraftError
    from autodraft.records import GenerationResult, RequestRecord, RoundRecord, TokenScore

__version__: Final = "0.1.0"

# Here, because every import of AutoDraft passes here first, and torch reads it when it is imported.
_wait_briefly()

_HOMES: Final = {
    "Autodraft": "autodraft.api",
    "serve_target": "autodraft.api",
    "ExperimentConfig": "autodraft.config",
    "MethodSpec": "autodraft.config",
    "ServerConfig": "autodraft.config",
    "AutodraftError": "autodraft.errors",
    "GenerationResult": "autodraft.records",
    "RequestRecord": "autodraft.records",
    "RoundRecord": "autodraft.records",
    "Sampling": "autodraft.decoding.sampling",
    "TokenScore": "autodraft.records",
}

__all__ = [
    "Autodraft",
    "AutodraftError",
    "ExperimentConfig",
    "GenerationResult",
    "MethodSpec",
    "RequestRecord",
    "RoundRecord",
    "Sampling",
    "ServerConfig",
    "TokenScore",
    "__version__",
    "serve_target",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'autodraft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
