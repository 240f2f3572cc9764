"""The typed, strict, immutable settings: of an experiment and of a target server.

One class for each block, and the one place for every default. The package knows no files (those
are ``autodraft.config_io``'s), models or sockets.
"""

from autodraft.config.base import Block
from autodraft.config.experiment import (
    AVAILABLE_METHODS,
    BLOCKS,
    CHAIN_D_WHEN_AUTO,
    DEFAULT_METHOD,
    SWITCHES,
    ExperimentConfig,
    MethodSpec,
)
from autodraft.config.methods import (
    ABLATION_MODES,
    DEFAULT_MAX_NEW_TOKENS,
    METHOD_IDS,
    METHOD_NAMES,
    AlgorithmsConfig,
    RunConfig,
    SamplingConfig,
    TreeConfig,
)
from autodraft.config.server import ServerConfig
from autodraft.config.setup import (
    BENCHES,
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEFAULT_SERVER_NAME,
    DTYPES,
    OBJECTIVES,
    QUANTIZATIONS,
    DatasetConfig,
    ModelsConfig,
    NetworkConfig,
    NetworkSetting,
    ObjectiveConfig,
    RuntimeConfig,
    SloConfig,
)

__all__ = [
    "ABLATION_MODES",
    "AVAILABLE_METHODS",
    "BENCHES",
    "BLOCKS",
    "CHAIN_D_WHEN_AUTO",
    "DEFAULT_HOST",
    "DEFAULT_MAX_NEW_TOKENS",
    "DEFAULT_METHOD",
    "DEFAULT_PORT",
    "DEFAULT_SERVER_NAME",
    "DTYPES",
    "METHOD_IDS",
    "METHOD_NAMES",
    "OBJECTIVES",
    "QUANTIZATIONS",
    "AlgorithmsConfig",
    "Block",
    "DatasetConfig",
    "ExperimentConfig",
    "MethodSpec",
    "ModelsConfig",
    "NetworkConfig",
    "NetworkSetting",
    "ObjectiveConfig",
    "RunConfig",
    "RuntimeConfig",
    "SWITCHES",
    "SamplingConfig",
    "ServerConfig",
    "SloConfig",
    "TreeConfig",
]
