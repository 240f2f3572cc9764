"""The typed, strict, immutable settings: of an experiment and of a target server.

One class for each block, and the one place for every default. The package knows no files (those
are ``autodraft.config_io``'s), models or sockets.
"""

from autodraft.config.base import Block
from autodraft.config.experiment import (
    BLOCKS,
    DEFAULT_METHOD,
    SWITCHES,
    ExperimentConfig,
)
from autodraft.config.methods import (
    ABLATION_MODES,
    ADAPTIVE,
    AT_SERVER,
    CHAIN_D_WHEN_AUTO,
    DEFAULT_MAX_NEW_TOKENS,
    METHOD_IDS,
    METHOD_NAMES,
    AlgorithmsConfig,
    RunConfig,
    SamplingConfig,
    TreeConfig,
)
from autodraft.config.network import NetworkConfig, NetworkSetting
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
    ObjectiveConfig,
    RuntimeConfig,
    SloConfig,
)
from autodraft.config.spec import AVAILABLE_METHODS, MethodSpec

__all__ = [
    "ABLATION_MODES",
    "ADAPTIVE",
    "AT_SERVER",
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
