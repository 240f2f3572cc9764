"""``serve_target``: a target server that runs until it is interrupted."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from autodraft.config import DEFAULT_PORT, DEFAULT_SERVER_NAME, ServerConfig
from autodraft.engine.service import TargetService
from autodraft.settings import ensure_token, token_origin


def serve_target(
    host: str = "0.0.0.0",
    port: int = DEFAULT_PORT,
    server_name: str = DEFAULT_SERVER_NAME,
    hf_token: str | None = None,
    *,
    on_ready: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Run a target server until it is interrupted.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        server_name: Name that clients must expect.
        hf_token: Hugging Face token for gated models.
        on_ready: Called once with one line that says where the server listens.
        options: Further fields of ``ServerConfig``.

    Raises:
        ConfigError: If an option has a value that is not allowed.
        ConnectError: If the address cannot be bound.
        ModelLoadError: If a model to be loaded at the start cannot be.
    """
    config = ServerConfig(
        host=host, port=port, server_name=server_name, hf_token=hf_token, **options
    )
    asyncio.run(_serve(config, on_ready))


async def _serve(config: ServerConfig, on_ready: Callable[[str], None] | None) -> None:
    token = None if config.allow_anonymous else ensure_token()
    service = TargetService(config, token)
    port = await service.start()
    if on_ready is not None:
        on_ready(_listening_line(config, port))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    try:
        await stopped.wait()
    finally:
        await service.stop()


def _listening_line(config: ServerConfig, port: int) -> str:
    door = "no token needed" if config.allow_anonymous else f"access token in {token_origin()}"
    model = config.base_model_path or "chosen by the first client"
    return (
        f"AutoDraft target server {config.server_name!r} listening on {config.host}:{port} "
        f"(model: {model}; {door})"
    )
