"""Experiment files, XML or YAML, to a configuration and back.

All faults of a file are reported together, each with file and line. The package knows no models,
sockets or benchmark data.
"""

from autodraft.config_io.loading import LoadedConfig, dump_yaml, load_config
from autodraft.config_io.schema import xsd
from autodraft.config_io.tables import key_table

__all__ = ["LoadedConfig", "dump_yaml", "key_table", "load_config", "xsd"]
