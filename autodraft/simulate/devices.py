"""What the simulator believes of machines: latency tables, where they come from, what is assumed.

Three kinds of files are read: what ``autodraft profile --export`` writes, the report of
``scripts/gpu_check.sh``, and tables written by hand in the first one's form. Measures nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from autodraft.errors import ConfigError
from autodraft.profiling.tables import LatencyTable
from autodraft.units import MS_PER_S

TABLES_KIND: Final = "autodraft tables"
_GPU_CHECK: Final = "gpu"
_EXAMPLE: Final = "docs/simulator.md shows a file"


@dataclass(frozen=True)
class Devices:
    """The two machines.

    Attributes:
        draft: Seconds of a draft step, by rows.
        target: Seconds of a forward of the target, by rows.
        source: Where the tables come from.
        assumptions: What of them was not measured, in words.
        round_s: Seconds of a round that are neither forwards nor the link, at the user.
        token_s: Seconds that a streamed token takes beyond its forward.
        prefill: Seconds to forward prompts of the target, by tokens; None reads ``target``.
    """

    draft: LatencyTable
    target: LatencyTable
    source: str
    assumptions: tuple[str, ...] = ()
    round_s: float = 0.0
    token_s: float = 0.0
    prefill: LatencyTable | None = None

    def prefill_s(self, tokens: int) -> float:
        """Return what the target takes to forward a prompt."""
        table = self.prefill or self.target
        return table.at(max(1, tokens), 0)


def load_devices(path: Path) -> Devices:
    """Read the tables of both machines.

    Args:
        path: A JSON or YAML file of one of the three kinds.

    Raises:
        ConfigError: If it cannot be read or is none of them.
    """
    content = _content(path)
    if content.get("check") == _GPU_CHECK:
        return _from_gpu_check(content, path)
    if content.get("kind") != TABLES_KIND:
        raise ConfigError(
            f"{path} holds no latency tables: its kind is {content.get('kind')!r}. Give a file of "
            f"`autodraft profile --export FILE` or `scripts/gpu_check.sh --out FILE`, or write one "
            f"with kind: {TABLES_KIND} ({_EXAMPLE})."
        )
    known = {"kind", "source", "assumptions", "round_ms", "token_ms", "draft", "target", "prefill"}
    if unknown := sorted(content.keys() - known):
        raise ConfigError(
            f"{path}: unknown {', '.join(unknown)}. Allowed: {', '.join(sorted(known))}."
        )
    return Devices(
        draft=_table(content, "draft", path),
        target=_table(content, "target", path),
        source=_text(content, "source", path),
        assumptions=tuple(map(str, content.get("assumptions") or ())),
        round_s=_milliseconds(content, "round_ms", path),
        token_s=_milliseconds(content, "token_ms", path),
        prefill=_table(content, "prefill", path) if "prefill" in content else None,
    )


def devices_content(devices: Devices) -> dict[str, Any]:
    """Return machines in the form that ``load_devices`` reads."""
    content = {
        "kind": TABLES_KIND,
        "source": devices.source,
        "assumptions": list(devices.assumptions),
        "round_ms": devices.round_s * MS_PER_S,
        "token_ms": devices.token_s * MS_PER_S,
        "draft": _table_content(devices.draft),
        "target": _table_content(devices.target),
    }
    if devices.prefill is not None:
        content["prefill"] = _table_content(devices.prefill)
    return content


def scaled(devices: Devices, draft: float, target: float) -> Devices:
    """Return machines that take so many times as long, and say so."""
    if draft == target == 1.0:
        return devices
    note = f"draft steps {draft:g} and target forwards {target:g} times as long as in the tables"
    prefill = None if devices.prefill is None else _stretched(devices.prefill, target)
    return replace(
        devices,
        draft=_stretched(devices.draft, draft),
        target=_stretched(devices.target, target),
        prefill=prefill,
        assumptions=(*devices.assumptions, note),
    )


def _stretched(table: LatencyTable, factor: float) -> LatencyTable:
    sizes = table.rows.tolist(), table.contexts.tolist()
    return LatencyTable(*sizes, table.seconds * factor, table.padding.tolist())


def _content(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except OSError as error:
        raise ConfigError(f"The tables {path} cannot be read ({error.strerror}).") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"The tables {path} are neither JSON nor YAML ({error}).") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no latency tables; {_EXAMPLE}.")
    return content


def _table(content: Mapping[str, Any], name: str, path: Path) -> LatencyTable:
    try:
        part = content[name]
        times = [[ms / MS_PER_S for ms in row] for row in part["ms"]]
        return LatencyTable(part["rows"], part["contexts"], times, part.get("padding") or ())
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: the table {name} is wrong ({type(error).__name__}: {error}). It needs rows "
            f"and contexts, both rising, and ms with a row of times for each context ({_EXAMPLE})."
        ) from error


def _table_content(table: LatencyTable) -> dict[str, Any]:
    return {
        "rows": table.rows.tolist(),
        "contexts": table.contexts.tolist(),
        "ms": (table.seconds * MS_PER_S).tolist(),
        "padding": table.padding.tolist(),
    }


def _text(content: Mapping[str, Any], name: str, path: Path) -> str:
    text = content.get(name)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{path}: say in {name} where the tables come from ({_EXAMPLE}).")
    return text


def _milliseconds(content: Mapping[str, Any], name: str, path: Path) -> float:
    value = content.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"{path}: {name} is {value!r}; give milliseconds, 0 or more.")
    return float(value) / MS_PER_S


def _from_gpu_check(content: Mapping[str, Any], path: Path) -> Devices:
    """Read the eager tables of the first pair of a check."""
    try:
        tables, models = content["tables"], content["models"]
        label = content["device"]["label"]
        pair = f"{models['target']['name']} and {models['draft']['name']}"
        draft = _from_cells(tables["draft_step_ms"]["eager"], "width")
        target = _from_cells(tables["verify_ms"]["eager"], "rows")
        prompts = tables["prefill_ms"]["eager"]
        prefill = _from_cells([{**row, "context": 0} for row in prompts], "tokens")
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: the report of gpu_check.sh holds no whole tables ({type(error).__name__}: "
            f"{error}). Run the check again; it says which part it left out."
        ) from error
    return Devices(
        draft=draft,
        target=target,
        source=f"gpu_check.sh on {label}: {pair}, random weights, {content['dtype']}, eager",
        assumptions=("both models on machines of this kind",),
        prefill=prefill,
    )


def _from_cells(cells: Sequence[Mapping[str, Any]], label: str) -> LatencyTable:
    """Return a table of the cells of a check; sizes that a context lacks are left out."""
    times = {(cell["context"], cell[label]): cell["ms"] / MS_PER_S for cell in cells}
    contexts = sorted({context for context, _ in times})
    sizes = [
        size
        for size in sorted({size for _, size in times})
        if all((context, size) in times for context in contexts)
    ]
    return LatencyTable(
        sizes, contexts, [[times[context, size] for size in sizes] for context in contexts]
    )
