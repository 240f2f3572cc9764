"""Writes what is made from the classes of the configuration: the schema and the page of all tags.

They are ``configs/experiment.xsd`` and the tables of ``configs/README.md``. With ``--check``
nothing is changed, and the exit code is 1 where one of them is stale. It knows the folder
``configs`` and no value of any tag.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from autodraft.config_io import key_table, xsd

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def file_table(folder: Path) -> str:
    """Return a Markdown table of the folder's experiments, each with what its comment begins with.

    Args:
        folder: Holds the XML files, each perhaps with a twin in YAML.

    Raises:
        ValueError: If a file does not begin with a comment whose first line is a sentence.
    """
    lines = ["| experiment | what it is |", "| --- | --- |"]
    for path in sorted(folder.glob("*.xml")):
        found = re.search(r"<!--\s*(.+?)\.\n", path.read_text(encoding="utf-8"))
        if found is None:
            raise ValueError(f"{path}: begin the file with a comment of one line that ends with .")
        names = [name for name in (path.name, f"{path.stem}.yaml") if (folder / name).is_file()]
        links = ", ".join(f"[{name}]({name})" for name in names)
        lines.append(f"| {links} | {found[1]} |")
    return "\n".join(lines)


def between(text: str, mark: str, content: str) -> str:
    """Return a page with ``content`` between ``<!-- mark -->`` and ``<!-- end mark -->``.

    Raises:
        ValueError: If the page has no such part.
    """
    head, begin, rest = text.partition(f"<!-- {mark} -->\n")
    _, end, tail = rest.partition(f"<!-- end {mark} -->\n")
    if not (begin and end):
        raise ValueError(f"configs/README.md has no part marked {mark}")
    return f"{head}{begin}\n{content.strip()}\n\n{end}{tail}"


def generated(folder: Path) -> dict[Path, str]:
    """Return the files as they should be, by their paths."""
    readme = folder / "README.md"
    page = between(readme.read_text(encoding="utf-8"), "files", file_table(folder))
    return {readme: between(page, "key table", key_table()), folder / "experiment.xsd": xsd()}


def main(arguments: Sequence[str] | None = None, folder: Path = CONFIGS) -> int:
    """Write or check the files; return the exit code."""
    parser = argparse.ArgumentParser(description="Writes configs/experiment.xsd and its page.")
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 where stale")
    check = parser.parse_args(arguments).check
    stale = [
        (path, text)
        for path, text in generated(folder).items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {'stale' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
