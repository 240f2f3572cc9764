"""Reads a configuration from XML or YAML, with overrides, and writes it back.

All faults of a file are reported together, each with file and line. What is accepted without
effect is never silent: it is among the warnings. This module knows no models, no sockets and no
benchmark data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from autodraft.config import BLOCKS, SWITCHES, ExperimentConfig
from autodraft.config_io.files import ROOT, Document, Entry, Place, read_text, read_xml, read_yaml
from autodraft.config_io.names import (
    TARGETS,
    Target,
    legacy_reason,
    unknown_block,
    unknown_tag,
)
from autodraft.errors import ConfigError

_READERS: Final = {".xml": read_xml, ".yaml": read_yaml, ".yml": read_yaml}
_LONGEST_OVERRIDE: Final = 120
_MOST_PROBLEMS: Final = 50


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and where it came from.

    Attributes:
        config: The resolved settings.
        warnings: What was accepted but has no effect, or was cut or chosen; one line each.
        source: The file.
        text: The file as it was read, overrides not applied.
    """

    config: ExperimentConfig
    warnings: tuple[str, ...]
    source: Path
    text: str


@dataclass(frozen=True)
class _Setting:
    """One value that the user gave to a field."""

    target: Target
    entry: Entry


@dataclass
class _Check:
    """What is known of a configuration while it is checked."""

    problems: list[tuple[Place, str]] = field(default_factory=list)
    warnings: list[tuple[Place, str]] = field(default_factory=list)
    settings: dict[tuple[str, str], list[_Setting]] = field(default_factory=dict)

    def resolve(self, block: str, entry: Entry) -> _Setting | None:
        """Return what an entry sets; None for a legacy tag or a faulty one."""
        if (reason := legacy_reason(entry.tag)) is not None:
            self.warnings.append((entry.place, f"{entry.tag} has no meaning here: {reason}."))
        elif (target := TARGETS[block].get(entry.tag)) is None:
            self.problems.append((entry.place, unknown_tag(block, entry.tag)))
        elif not entry.raw:
            text = f"{entry.tag} is empty. Give it a value or remove it."
            self.problems.append((entry.place, text))
        else:
            return _Setting(target, entry)
        return None

    def add_document(self, document: Document) -> None:
        """Take the entries of a file."""
        self.problems += document.problems
        blocks: dict[str, Place] = {}
        for section in document.sections:
            if section.name not in BLOCKS:
                self.problems.append((section.place, unknown_block(section.name)))
                continue
            if section.name in blocks:
                text = f"second block {section.name}; the first is at {blocks[section.name]}."
                self.problems.append((section.place, f"{text} Join them."))
            blocks.setdefault(section.name, section.place)
            tags: dict[str, Place] = {}
            for entry in section.entries:
                if entry.tag in tags:
                    text = f"second {entry.tag}; the first is at {tags[entry.tag]}. Keep one."
                    self.problems.append((entry.place, text))
                elif (setting := self.resolve(section.name, entry)) is not None:
                    self.settings.setdefault(setting.target.key, []).append(setting)
                tags.setdefault(entry.tag, entry.place)

    def add_overrides(self, overrides: Sequence[str]) -> None:
        """Take the overrides: each replaces what the file says; the last of several wins."""
        for override in overrides:
            name, equals, value = override.partition("=")
            block, dot, tag = name.strip().partition(".")
            place = _override_place(block, tag, override)
            if not (equals and dot):
                text = "not of the form block.TAG=value, for example tree.PROPOSED_NODES=64."
                self.problems.append((place, text))
            elif block not in BLOCKS:
                self.problems.append((place, unknown_block(block)))
            elif (setting := self.resolve(block, Entry(tag, value.strip(), place))) is not None:
                self.settings[setting.target.key] = [setting]

    def values(self) -> dict[tuple[str, str], Any]:
        """Return the checked value of every field that the user set."""
        values: dict[tuple[str, str], Any] = {}
        for key, settings in self.settings.items():
            for setting in settings:
                try:
                    value = setting.target.read(setting.entry.raw)
                except ValueError as error:
                    self.problems.append((setting.entry.place, str(error)))
                    continue
                if values.setdefault(key, value) != value:
                    first = settings[0].entry
                    text = f"{setting.entry.tag} contradicts {first.tag} at {first.place}."
                    self.problems.append((setting.entry.place, f"{text} Keep one of them."))
        return values

    def compare(self, values: dict[tuple[str, str], Any]) -> None:
        """Note what is wrong between values of a block that are right one by one."""
        for block, cls in BLOCKS.items():
            given = {key for key in self.settings if key[0] == block}
            if not given <= values.keys():
                continue  # a wrong value is told first
            fields: dict[str, Any] = {}
            for name, info in cls.model_fields.items():
                default = info.get_default(call_default_factory=True, validated_data=fields)
                fields[name] = values.get((block, name), default)
            for name, text in cls.conflicts(fields):
                self.problems.append((self.settings[block, name][0].entry.place, text))

    def require(self, label: str) -> None:
        """Note the fields without a default that nobody set."""
        for block, targets in TARGETS.items():
            for tag, target in targets.items():
                info = BLOCKS[target.block].model_fields[target.field]
                if info.is_required() and target.key not in self.settings:
                    text = f"{block}.{tag} is required: {target.knob.meaning} Set it in the file"
                    text = f"{text} or with --set {block}.{tag}=…"
                    self.problems.append((Place(0, label), text))

    def warn_of_inert(self, label: str, config: ExperimentConfig) -> None:
        """Note the tags that were given and do not act yet."""
        at_default: list[str] = []
        for (block, name), settings in self.settings.items():
            tags = [setting.entry.tag for setting in settings]
            if settings[0].target.knob.acts:
                continue
            if getattr(getattr(config, block), name) == _default(config, block, name):
                at_default += tags
                continue
            self.warnings += [
                (
                    setting.entry.place,
                    f"{setting.entry.tag} is checked but does not act yet in this version.",
                )
                for setting in settings
            ]
        if at_default:
            verb = "is checked but does" if len(at_default) == 1 else "are checked but do"
            text = f"{', '.join(at_default)} {verb} not act yet in this version (at the default)."
            self.warnings.append((Place(0, label), text))

    def warn_of_overruled(self, label: str, config: ExperimentConfig) -> None:
        """Note the switches that say something else than METHODS_CSV."""
        names = config.algorithms.method_names
        if names is None:
            return
        overruled = [
            knob.tag
            for name, switch in SWITCHES.items()
            for knob in [config.algorithms.knobs()[switch]]
            if ("algorithms", switch) in self.settings
            and getattr(config.algorithms, switch) != (name in names)
        ]
        if overruled:
            text = f"METHODS_CSV overrides {', '.join(overruled)}."
            self.warnings.append((Place(0, label), text))


def load_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read an experiment's configuration.

    Args:
        path: An ``.xml``, ``.yaml`` or ``.yml`` file.
        overrides: Values that replace the file's, each ``block.TAG=value``.

    Raises:
        ConfigError: If anything is wrong; one line ``FILE:LINE: message`` for each fault.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"{path}: unknown kind of file. Use a name that ends in .xml or .yaml.")
    text, label = read_text(path), str(path)
    check = _Check()
    check.add_document(reader(label, text))
    check.add_overrides(overrides)
    values = check.values()
    check.compare(values)
    check.require(label)
    if check.problems:
        raise ConfigError(_message(check.problems))
    config = _build(values)
    check.warn_of_inert(label, config)
    check.warn_of_overruled(label, config)
    check.warnings += [(Place(0, label), note) for note in config.notes()]
    return LoadedConfig(config, tuple(_lines(check.warnings)), path, text)


def dump_yaml(config: ExperimentConfig) -> str:
    """Return a configuration as YAML: every tag with its value, loadable to an equal one."""
    lines = [f"{ROOT}:"]
    for block, cls in BLOCKS.items():
        lines.append(f"  {block}:")
        for name, knob in cls.knobs().items():
            plain = knob.kind.plain(getattr(getattr(config, block), name))
            lines.append(f"    {knob.tag}: {_inline(plain)}")
    return "\n".join(lines) + "\n"


def _override_place(block: str, tag: str, override: str) -> Place:
    target = TARGETS.get(block, {}).get(tag)
    if target is not None and target.knob.secret:
        return Place(0, f"--set {block}.{tag}=…")
    if len(override) > _LONGEST_OVERRIDE:
        override = override[:_LONGEST_OVERRIDE] + "…"
    return Place(0, f"--set {override}")


def _lines(notes: list[tuple[Place, str]]) -> list[str]:
    """Return messages in the order of the file's lines, those without a line last."""
    ordered = sorted(notes, key=lambda note: (not note[0].line, note[0].line))
    return [f"{place}: {text}" for place, text in ordered]


def _message(problems: list[tuple[Place, str]]) -> str:
    lines = _lines(problems)
    if len(lines) > _MOST_PROBLEMS:
        lines[_MOST_PROBLEMS:] = [f"… and {len(lines) - _MOST_PROBLEMS} more."]
    return "\n".join(lines)


def _build(values: dict[tuple[str, str], Any]) -> ExperimentConfig:
    blocks: dict[str, dict[str, Any]] = {block: {} for block in BLOCKS}
    for (block, name), value in values.items():
        blocks[block][name] = value
    return ExperimentConfig(**{name: BLOCKS[name](**fields) for name, fields in blocks.items()})


def _default(config: ExperimentConfig, block: str, name: str) -> Any:
    """Return the default of a field, given the fields that it is taken from."""
    data = getattr(config, block).model_dump()
    info = BLOCKS[block].model_fields[name]
    return info.get_default(call_default_factory=True, validated_data=data)


def _inline(plain: Any) -> str:
    """Return a scalar or a list as YAML on one line."""
    text: str = yaml.safe_dump([plain], default_flow_style=True, allow_unicode=True, width=10**9)
    return text.strip()[1:-1]
