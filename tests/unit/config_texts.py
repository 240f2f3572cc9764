"""Texts of configuration files, and how a test reads them by a short name."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autodraft.config_io import LoadedConfig, load_config
from autodraft.errors import ConfigError

ALL_BLOCKS = "runtime, models, objective, dataset, algorithms, tree, network, slo, sampling, run"
MODELS = ("models", [("BASE_MODEL_PATH", "big"), ("DRAFT_MODEL_PATH", "small")])
Blocks = Sequence[tuple[str, Sequence[tuple[str, str]]]]
Load = Callable[..., LoadedConfig]


def as_xml(blocks: Blocks) -> str:
    """One line for the root, for each block and for each tag, as `as_yaml` has them."""
    lines = ["<experiment_config>"]
    for block, tags in blocks:
        lines.append(f"<{block}>")
        lines += [f"  <{tag}>{value}</{tag}>" for tag, value in tags]
        lines[-1] += f"</{block}>"
    return "\n".join(lines) + "</experiment_config>\n"


def as_yaml(blocks: Blocks) -> str:
    lines = ["experiment_config:"]
    for block, tags in blocks:
        lines.append(f"  {block}:")
        lines += [f"    {tag}: {value}" for tag, value in tags]
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[Blocks], str]] = {"xml": as_xml, "yaml": as_yaml}


def loader_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a text by a short name, so that messages can be compared as a whole."""
    monkeypatch.chdir(folder)

    def loader(text: str | bytes, suffix: str = "yaml", *overrides: str) -> LoadedConfig:
        path = Path(f"c.{suffix}")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path, overrides)

    return loader


def fault(load: Load, text: str | bytes, suffix: str = "yaml", *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, suffix, *overrides)
    return str(caught.value)
