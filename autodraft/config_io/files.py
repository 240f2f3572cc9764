"""Reads the text of a configuration, XML or YAML, into sections of tags with their lines.

Both readers give the same `Document` for twins. This module checks the form only: it knows no
block, no tag and no value. Nothing is fetched, no entity is resolved, no object is built.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard, cast

import yaml
from lxml import etree

from autodraft.config.knob import BLANKS, Raw, quoted
from autodraft.errors import ConfigError

ROOT: Final = "experiment_config"
MAX_BYTES: Final = 128 * 1024
_LONGEST_NAME: Final = 60
PARAMETER: Final = "parameter"
_XSI: Final = "{http://www.w3.org/2001/XMLSchema-instance}"
_YAML: Final = "tag:yaml.org,2002:"
_YAML_SCALARS: Final = frozenset(
    _YAML + name for name in ("str", "int", "float", "bool", "timestamp", "value")
)


@dataclass(frozen=True, order=True)
class Place:
    """Where something stands: a line of a file, or an override (line 0)."""

    line: int
    label: str

    def __str__(self) -> str:
        return f"{self.label}:{self.line}" if self.line else self.label


@dataclass(frozen=True)
class Entry:
    """One tag with its text; an empty text or list means that no value was given."""

    tag: str
    raw: Raw
    place: Place


@dataclass
class Section:
    """One block as it stands in the file."""

    name: str
    place: Place
    entries: list[Entry] = field(default_factory=list)


@dataclass
class Document:
    """All blocks of a file and the faults of its form."""

    label: str
    sections: list[Section] = field(default_factory=list)
    problems: list[tuple[Place, str]] = field(default_factory=list)

    def place(self, line: int) -> Place:
        """Return a line of this file."""
        return Place(line, self.label)

    def report(self, line: int, message: str) -> None:
        """Note a fault of the form."""
        self.problems.append((self.place(line), message))


def read_text(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: If it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: the configuration cannot be read ({error.strerror}). Check the path."
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path}: larger than {MAX_BYTES // 1024} KiB, so it is not a configuration. "
            "Check the path."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text. Save the file as UTF-8.") from error


def read_xml(label: str, text: str) -> Document:
    """Return the sections of an XML configuration.

    Raises:
        ConfigError: If it is not well-formed, has another root, or carries a DOCTYPE.
    """
    if (line := _doctype_line(text)) is not None:
        raise ConfigError(
            f"{label}:{line}: a DOCTYPE is not allowed (entities are not resolved). Remove it."
        )
    parser = etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        root = etree.fromstring(text.encode("utf-8"), parser)
    except etree.XMLSyntaxError as error:
        reason = re.sub(r", line \d+, column \d+.*", "", " ".join((error.msg or "empty").split()))
        raise ConfigError(f"{label}:{error.lineno or 1}: not well-formed XML: {reason}.") from None
    document = Document(label)
    if root.tag != ROOT:
        raise ConfigError(
            f"{document.place(_line(root))}: the root is <{_name(root)}>. Use <{ROOT}>."
        )
    for name in root.attrib:
        if not str(name).startswith(_XSI):
            document.report(_line(root), f"<{ROOT}> takes no attribute {name!s}.")
    for element in _children(document, root):
        section = Section(_name(element), document.place(_line(element)))
        document.sections.append(section)
        for name in element.attrib:
            document.report(_line(element), f"<{_name(element)}> takes no attribute {name!s}.")
        for child in _children(document, element):
            if (entry := _xml_entry(document, child)) is not None:
                section.entries.append(entry)
    return document


def _doctype_line(text: str) -> int | None:
    """Return the line of a DOCTYPE, found before any parser sees it; None without one."""
    position = 0
    while True:
        while text[position : position + 1].isspace():
            position += 1
        if text.startswith("<?", position):
            end = text.find("?>", position) + 2
        elif text.startswith("<!--", position):
            end = text.find("-->", position) + 3
        else:
            found = text.startswith("<!DOCTYPE", position)
            return text.count("\n", 0, position) + 1 if found else None
        if end <= position:  # never closed: the parser says so
            return None
        position = end


def _fit_to_show(name: str) -> str:
    """Return a name that stays on one line; those that exist pass unchanged."""
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else quoted(name)


def _name(element: etree._Element) -> str:
    return _fit_to_show(str(element.tag))


def _line(element: etree._Element) -> int:
    return cast(int | None, element.sourceline) or 1  # the stubs know no type of it


def _children(document: Document, parent: etree._Element) -> Iterator[etree._Element]:
    """Yield the elements in ``parent``; comments are skipped, loose text is a fault."""
    loose = [(_line(parent), parent.text)] if _holds_text(parent.text) else []
    for child in parent:
        if _holds_text(child.tail):
            inside = etree.tostring(child, encoding="unicode", with_tail=False)
            loose.append((_line(child) + inside.count("\n"), child.tail))
        if isinstance(child.tag, str):
            yield child
    for line, text in loose:
        before = text[: len(text) - len(text.lstrip())].count("\n")
        shown = quoted(text.strip())
        document.report(line + before, f"text outside of a tag: {shown}. Remove it.")


def _holds_text(text: str | None) -> TypeGuard[str]:
    return text is not None and bool(text.strip())


def _xml_entry(document: Document, element: etree._Element) -> Entry | None:
    line, tag = _line(element), _name(element)
    wanted = {"name"} if tag == PARAMETER else set()
    if {str(name) for name in element.attrib} != wanted:
        text = f'Use <TAG>value</TAG> or <{PARAMETER} name="TAG">value</{PARAMETER}>.'
        document.report(line, f"<{tag}> has wrong attributes. {text}")
        return None
    if any(isinstance(child.tag, str) for child in element):
        document.report(line, f"<{tag}> holds other elements. Use a value only.")
        return None
    text = "".join([element.text or "", *(child.tail or "" for child in element)])
    written = _fit_to_show(str(element.get("name", tag)).strip(BLANKS))
    return Entry(written, text.strip(BLANKS), document.place(line))


def read_yaml(label: str, text: str) -> Document:
    """Return the sections of a YAML configuration.

    Raises:
        ConfigError: If it is not YAML or its top is not a mapping.
    """
    document = Document(label)
    root = _compose(label, text)
    if root is None:
        return document
    blocks = _pairs(document, root, "the file")
    roots = [(line, node) for name, line, node in blocks if name == ROOT]
    if roots:
        for name, line, _ in blocks:
            if name != ROOT:
                document.report(line, f"{name} stands beside {ROOT}. Move it inside.")
        for line, _ in roots[1:]:
            document.report(line, f"second {ROOT}. Join them.")
        blocks = _pairs(document, roots[0][1], ROOT)
    for name, line, node in blocks:
        section = Section(name, document.place(line))
        document.sections.append(section)
        for tag, tag_line, value in _pairs(document, node, f"the block {name}"):
            raw = _yaml_raw(document, tag, value)
            if raw is not None:
                section.entries.append(Entry(tag, raw, document.place(tag_line)))
    return document


class _AliasFoundError(Exception):
    """A node repeats another one; the argument is its line."""


class _Loader(yaml.SafeLoader):
    """Composes nodes, but no aliases: a few of them can stand for more than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise _AliasFoundError(event.start_mark.line + 1)
        return super().compose_node(parent, index)


def _compose(label: str, text: str) -> yaml.Node | None:
    """Return the node tree; objects are never constructed."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except _AliasFoundError as found:
        raise ConfigError(
            f"{label}:{found}: an alias (*name) is not read. Write the value once more."
        ) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{label}:{line}: not valid YAML: {error.problem}.") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{label}:{line}: a control character is in the text.") from None
    except RecursionError:
        raise ConfigError(f"{label}: nested too deeply for a configuration.") from None
    return node


def _node_line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _YAML + "null"


def _pairs(document: Document, node: yaml.Node, what: str) -> list[tuple[str, int, yaml.Node]]:
    """Return key, line and value of a mapping of names; null is an empty one."""
    if _is_null(node):
        return []
    if not isinstance(node, yaml.MappingNode) or node.tag != _YAML + "map":
        document.report(_node_line(node), f"{what} is not a mapping. Use lines of NAME: value.")
        return []
    pairs = []
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            pairs.append((_fit_to_show(str(key.value)), _node_line(key), value))
        else:
            document.report(_node_line(key), f"a key of {what} is not a name.")
    return pairs


def _yaml_raw(document: Document, tag: str, node: yaml.Node) -> Raw | None:
    """Return a scalar or a list of scalars as text; None where the form is wrong."""
    if _is_null(node):
        return ""
    is_list = isinstance(node, yaml.SequenceNode) and node.tag == _YAML + "seq"
    items = node.value if is_list else [node]
    for item in items:
        if not isinstance(item, yaml.ScalarNode) or item.tag not in _YAML_SCALARS:
            document.report(_node_line(item), f"{tag} is neither a value nor a list of values.")
            return None
    texts = [str(item.value).strip(BLANKS) for item in items]
    return texts if is_list else texts[0]
