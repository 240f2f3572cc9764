"""Which run an experiment goes on with: the newest of the same configuration, or as it is told.

This module reads configurations only. It knows no engine and no records, and writes nothing.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autodraft.config import BLOCKS, ExperimentConfig
from autodraft.config_io import dump_yaml, load_config
from autodraft.errors import ConfigError
from evaluation.store import RESOLVED_FILE, hash_config

# What may differ from session to session of one run: where the server happens to be, and how
# patient or connected the client is. None of it changes a figure.
_FREE_TAGS: Final = {
    "runtime": ("target_host", "target_port", "target_token_env"),
    "dataset": ("download",),
    "run": ("retries", "dry_run"),
}
_RUN_ID: Final = re.compile(r"(\d{8})-([0-9a-f]+)(?:-(\d+))?")
_MOST_SHOWN: Final = 8


@dataclass(frozen=True)
class Wish:
    """What the user said of earlier runs.

    Attributes:
        fresh: Begin a run of its own whatever there is.
        insist: Refuse to begin a new one.
        run_id: The run to go on with; None takes the newest of the same configuration.
    """

    fresh: bool = False
    insist: bool = False
    run_id: str | None = None


def comparable(config: ExperimentConfig) -> ExperimentConfig:
    """Return a configuration with the tags that may differ within a run at their defaults."""
    blocks = {}
    for block, names in _FREE_TAGS.items():
        fields = BLOCKS[block].model_fields
        defaults = {name: fields[name].default for name in names}
        blocks[block] = getattr(config, block).model_copy(update=defaults)
    return config.model_copy(update=blocks)


def resolved_text(config: ExperimentConfig) -> str:
    """Return what the run's id is made from."""
    return dump_yaml(comparable(config))


def differences(there: ExperimentConfig, now: ExperimentConfig) -> list[str]:
    """Name the tags in which two configurations differ, with both values.

    Tags that may differ within a run are left out.
    """
    there, now = comparable(there), comparable(now)
    found = []
    for block, cls in BLOCKS.items():
        for name, knob in cls.knobs().items():
            old, new = getattr(getattr(there, block), name), getattr(getattr(now, block), name)
            if old != new:
                shown = f"{knob.kind.plain(old)} there, {knob.kind.plain(new)} now"
                found.append(f"{block}.{knob.tag} ({shown})")
    return found


def choose_run(experiment: Path, config: ExperimentConfig, wish: Wish) -> Path | None:
    """Return the folder of the run to go on with, or None where a new one begins.

    Args:
        experiment: Folder of the experiment's runs; it may not exist.
        config: The configuration asked for.
        wish: What the user said.

    Raises:
        ConfigError: If the user insists, and there is no such run or it has another configuration.
    """
    if wish.fresh:
        return None
    if wish.run_id is not None:
        return _named_run(experiment, config, wish.run_id)
    runs = _runs_newest_first(experiment)
    wanted = hash_config(resolved_text(config))
    for folder, digest in runs:
        if digest == wanted and (there := _config_of(folder)) and not differences(there, config):
            return folder
    if wish.insist:
        raise ConfigError(_nothing_to_resume(experiment, config, [folder for folder, _ in runs]))
    return None


def _named_run(experiment: Path, config: ExperimentConfig, run_id: str) -> Path:
    folder = experiment / run_id
    if not (folder / RESOLVED_FILE).is_file():
        names = ", ".join(found.name for found, _ in _runs_newest_first(experiment)[:_MOST_SHOWN])
        raise ConfigError(
            f"There is no run {run_id} in {experiment}. Runs: {names or 'none'}. Leave --resume "
            "out to begin one."
        )
    there = load_config(folder / RESOLVED_FILE).config
    if differing := differences(there, config):
        raise ConfigError(
            f"The run {run_id} has another configuration, so it cannot go on with this one. "
            f"{_in_words(differing)} Make them equal, or begin a run of its own with --fresh."
        )
    return folder


def _nothing_to_resume(experiment: Path, config: ExperimentConfig, runs: list[Path]) -> str:
    text = f"There is no run to go on with: none in {experiment} has this configuration."
    for folder in runs:
        if (there := _config_of(folder)) is not None:
            text += f" The newest, {folder.name}: {_in_words(differences(there, config))}"
            break
    return f"{text} Leave --resume out to begin a new one."


def _in_words(differing: list[str]) -> str:
    more = len(differing) - _MOST_SHOWN
    shown = ", ".join(differing[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"Different: {shown}."


def _config_of(folder: Path) -> ExperimentConfig | None:
    """Return a run's configuration; None where this version cannot read it."""
    try:
        return load_config(folder / RESOLVED_FILE).config
    except ConfigError:
        return None


def _runs_newest_first(experiment: Path) -> list[tuple[Path, str]]:
    """Return the folders of runs with the hash of each one's configuration."""
    found = []
    for folder in experiment.iterdir() if experiment.is_dir() else ():
        if (match := _RUN_ID.fullmatch(folder.name)) and folder.is_dir():
            day, digest, number = match.groups()
            found.append(((day, int(number or 1)), folder, digest))
    return [(folder, digest) for _, folder, digest in sorted(found, reverse=True)]
