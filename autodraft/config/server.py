"""The settings of a target server; the one place for its defaults.

Knows no sockets and no models: names and limits only.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from autodraft.config.base import Strict
from autodraft.config.setup import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_SERVER_NAME


class ServerConfig(Strict):
    """What a target server runs and allows.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        server_name: What clients must call it.
        base_model_path: Its target model; None leaves the choice to the first client.
        quantization: Quantisation of the target, unless the client names one.
        dtype: Floating-point type of the target, unless the client names one.
        draft_model_path: Draft model of the co-located methods (``chain@server``); None leaves the
            choice to the client.
        draft_quantization: Quantisation of that draft, unless the client names one.
        draft_dtype: Floating-point type of that draft, unless the client names one.
        device_map: Device of the models, as in transformers.
        lazy_load: Load when a client asks, and whatever model it asks for.
        allow_pickle: Whether pickled weights may be loaded.
        allow_anonymous: Whether clients without the access token are let in.
        hf_token: Hugging Face token for gated models.
        compile: Whether to compile the forwards of the target and of that draft, once per shape.
        max_context: Most tokens of prompt and answer together; None takes the model's.
        max_nodes: Most nodes a round may send.
        max_depth: Deepest tree a round may send.
        auto_target_profile: Whether to time the target's forwards when it is loaded, and to tell
            clients; else each client times them over its link.
        profile_dir: Folder where that profile is kept; None keeps none.
    """

    host: str = DEFAULT_HOST
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535)
    server_name: str = Field(default=DEFAULT_SERVER_NAME, min_length=1, max_length=128)
    base_model_path: str | None = None
    quantization: Literal["none", "4bit", "8bit"] = "none"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    draft_model_path: str | None = None
    draft_quantization: Literal["none", "4bit", "8bit"] = "none"
    draft_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device_map: str = "auto"
    lazy_load: bool = True
    allow_pickle: bool = False
    allow_anonymous: bool = False
    hf_token: str | None = Field(default=None, repr=False)
    compile: bool = False
    max_context: int | None = Field(default=None, ge=2)
    max_nodes: int = Field(default=1024, ge=0, le=65_535)
    max_depth: int = Field(default=128, ge=0, le=1024)
    auto_target_profile: bool = False
    profile_dir: Path | None = None

    @model_validator(mode="after")
    def _eager_needs_a_model(self) -> "ServerConfig":
        if not self.lazy_load and self.base_model_path is None:
            raise ValueError(
                "An eager server needs a model: name --base-model-path, or load when a client asks "
                "with --lazy-load."
            )
        return self
