"""The library's face: ``Autodraft`` at the user, ``serve_target`` in the cloud."""

from autodraft.api.engine import PINGS, Autodraft
from autodraft.api.serving import serve_target

__all__ = ["PINGS", "Autodraft", "serve_target"]
