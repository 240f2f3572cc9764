"""What the pages say is what the code does: links, files, commands, snippets, tables, messages.

The tables of fields are made from the classes by the functions below; a test that fails prints
what belongs into the page.
"""

import argparse
import ast
import dataclasses
import inspect
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal, localcontext
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec
import numpy as np
import pytest

import autodraft
from autodraft import Autodraft, cli, errors, records, serve_target
from autodraft.config import AVAILABLE_METHODS, BLOCKS, ServerConfig
from autodraft.config_io import load_config
from autodraft.decoding import sampling
from autodraft.decoding.noise import gumbel_noise, stream_key, token_hashes
from autodraft.decoding.wish import MAX_TOP_LOGPROBS
from autodraft.protocol import codec
from autodraft.protocol import messages as msg
from evaluation import cli as harness
from tests.unit.test_layering import LINES

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "configs/README.md",
    "results/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
]
RUNNER: Final = "evaluation/run_main_experiment_overall_performance.sh"
SCRIPTS: Final = {"run_target.sh", "scripts/quickstart.sh", RUNNER}
SOURCES: Final = sorted([*(ROOT / "autodraft").rglob("*.py"), *(ROOT / "evaluation").rglob("*.py")])
FOREIGN_OPTIONS: Final = {"--strict", "--no-deps"}  # of mypy and pip
FOREIGN_VARIABLES: Final = {
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "OMP_NUM_THREADS",
    "HF_TOKEN",
    "HF_HUB_OFFLINE",
}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(text))


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every line of every table."""
    for line in prose(text).splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def marked(name: str, mark: str) -> str:
    """Return what stands between ``<!-- mark -->`` and ``<!-- end mark -->``."""
    found = re.search(f"<!-- {mark} -->\n\n(.*?)\n\n<!-- end {mark} -->", page(name), re.DOTALL)
    assert found, f"{name} has no part marked {mark}"
    return found[1]


# ------------------------------------------------------------------------------ links, files, names


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_leads_somewhere(name: str) -> None:
    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page(name))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("name", PAGES)
def test_every_file_that_is_named_exists(name: str) -> None:
    folders = [ROOT / folder for folder in ("autodraft", "evaluation", "benchmarks", "tests")]
    modules = {path.name for folder in folders for path in folder.rglob("*.py")}
    text = page(name)
    named = spans(text) + " ".join(blocks(text, "bash")).split()
    for word in named:
        if not re.fullmatch(r"(\./)?[\w./-]*\w\.(py|sh|xml|yaml|md|toml|txt)", word):
            continue
        if "/" in word:
            assert (ROOT / word).is_file(), word
        elif word.endswith(".py"):
            assert word in modules, word


def defined_names(path: Path) -> set[str]:
    """Return functions, classes, ``Class.method`` and module variables of a file."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if hasattr(part, "name")}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {ast.unparse(target) for target in targets}
    return names


def test_the_code_that_the_architecture_page_points_to_is_there() -> None:
    checked = 0
    for cells in rows(page("docs/architecture.md")):
        for file, names in zip(cells, cells[1:], strict=False):
            if re.fullmatch(r"`[\w/]+\.py`", file):
                known = defined_names(ROOT / file.strip("`"))
                assert set(spans(names)) <= known, (file, names)
                checked += len(spans(names))
    assert checked > 20


@pytest.mark.parametrize("name", PAGES)
def test_every_variable_and_tag_that_is_named_exists(name: str) -> None:
    tags = {knob.tag for block in BLOCKS.values() for knob in block.knobs().values()}
    variables = set(re.findall(r"AUTODRAFT_[A-Z_]+", page("autodraft/settings.py")))
    codes = {code.name for code in msg.ErrorCode}
    constants = {found for path in SOURCES for found in defined_names(path) if found.isupper()}
    switches = set(re.findall(r"[A-Z_]{4,}", page("configs/README.md")))
    known = tags | variables | codes | constants | FOREIGN_VARIABLES | switches
    words = {word for word in spans(page(name)) if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", word)}
    assert words <= known


# ------------------------------------------------------------------------------------- shell blocks


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= options_of(command)
    return found


def options_of_scripts() -> set[str]:
    """Return the options that the benchmarks and the training script add to their parsers."""
    files = [*(ROOT / "benchmarks").glob("*.py"), ROOT / "scripts" / "distillation" / "command.py"]
    adds = r"\badd(?:_argument)?\(\s*\"(--[a-z-]+)\""
    return {option for file in files for option in re.findall(adds, file.read_text("utf-8"))}


def commands(name: str) -> list[list[str]]:
    """Return the words of every command of the page's bash blocks, assignments left out."""
    found = []
    for block in blocks(page(name), "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            words = words[1:] if words[:1] == ["export"] else words
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words:
                found.append(words)
    return found


def as_arguments(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return ``autodraft`` or ``evaluation`` and the arguments that its parser gets."""
    words = words[1:] if words[0] == "bash" else words
    script = words[0].removeprefix("./")
    if words[0].startswith("python") and words[1:2] == ["-m"]:
        return words[2], list(words[3:])
    if script == "run_target.sh":
        return "autodraft", ["target", *words[1:]]
    if script == "scripts/quickstart.sh":
        return "evaluation", ["run", "configs/quickstart.xml", *words[1:]]
    if script == RUNNER:
        place = next(i for i, word in enumerate(words) if re.match("--config-(xml|yaml)$", word))
        rest = [*words[1:place], *words[place + 2 :]]
        return "evaluation", ["run", words[place + 1], *rest]
    return None


@pytest.mark.parametrize("name", PAGES)
def test_every_command_that_is_shown_would_be_accepted(name: str) -> None:
    for words in commands(name):
        found = as_arguments(words)
        if found is None or found[0] not in {"autodraft", "evaluation"}:
            continue
        program, arguments = found
        parser = cli._parser() if program == "autodraft" else harness._parser()
        parsed = parser.parse_args(arguments)  # leaves with exit code 2 where one is wrong
        if (ROOT / getattr(parsed, "config", "no file")).is_file():
            load_config(ROOT / parsed.config, parsed.overrides).config.methods()
        assert getattr(parsed, "method", "chain") in AVAILABLE_METHODS


@pytest.mark.parametrize("name", PAGES)
def test_every_option_in_the_text_exists(name: str) -> None:
    known = options_of(cli._parser()) | options_of(harness._parser()) | FOREIGN_OPTIONS
    known |= {"--config-xml", "--config-yaml"} | options_of_scripts()
    named = {span.split()[0] for span in spans(page(name)) if span.startswith("--")}
    assert named <= known


def test_the_runner_tells_all_options_of_the_harness() -> None:
    done = subprocess.run(
        ["bash", str(ROOT / RUNNER), "--help"], capture_output=True, text=True, check=True
    )
    run = harness._parser()._subparsers._group_actions[0].choices["run"]  # type: ignore[union-attr]
    assert options_of(run) - {"-h", "--help"} <= set(re.findall(r"--[a-z-]+", done.stdout))


# ------------------------------------------------------------------------------------------- Python

FIRST_NAMES: Final[dict[str, Any]] = {
    "engine": Autodraft,
    "result": records.GenerationResult,
    "record": records.RequestRecord,
    "round_": records.RoundRecord,
}


def require_attributes(node: ast.Attribute) -> None:
    """Follow ``result.request.ttft_s`` and the like through the annotations."""
    names: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        names.insert(0, inner.attr)
        inner = inner.value
    known = FIRST_NAMES.get(inner.id) if isinstance(inner, ast.Name) else None
    for name in names:
        if known is None:
            return
        hints = get_type_hints(known)
        assert name in hints or hasattr(known, name), ast.unparse(node)
        known = hints.get(name) if name in hints and msgspec_struct(hints[name]) else None


def msgspec_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def require_arguments(call: ast.Call, names: dict[str, Any]) -> None:
    """Check a call of a public name, or of a method of ``engine``, against its signature."""
    if isinstance(call.func, ast.Name):
        function = names.get(call.func.id)
    elif isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "engine":
        function = getattr(Autodraft, call.func.attr)
    else:
        return
    keywords = {keyword.arg for keyword in call.keywords if keyword.arg}
    if inspect.isclass(function) and hasattr(function, "model_fields"):
        fields = function.model_fields
        assert keywords <= set(fields) | {field.alias for field in fields.values()}
    elif function is not None and getattr(function, "__module__", "") == "autodraft.api":
        positional = [None] * (len(call.args) + isinstance(call.func, ast.Attribute))
        bound = inspect.signature(function).bind(*positional, **dict.fromkeys(keywords))
        assert set(bound.arguments.get("options", {})) <= set(ServerConfig.model_fields)


@pytest.mark.parametrize("name", PAGES)
def test_the_snippets_use_what_exists(name: str) -> None:
    for code in blocks(page(name), "python"):
        tree = ast.parse(code)
        names: dict[str, Any] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(ast.unparse(node), names)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                require_arguments(node, names)
            elif isinstance(node, ast.Attribute):
                require_attributes(node)


# ----------------------------------------------------------------------------------- made from code


def described(documented: Any, section: str) -> dict[str, str]:
    """Return what a docstring says of each attribute or argument, as Markdown."""
    text = inspect.getdoc(documented) or ""
    found = re.search(rf"^{section}:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    items = re.findall(
        r"^    (\w+): (.*(?:\n        .*)*)", found[1] if found else "", re.MULTILINE
    )
    return {name: markdown(" ".join(words.split())) for name, words in items}


def markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", r"\|")


def summary(documented: Any) -> str:
    return markdown((inspect.getdoc(documented) or "").partition("\n")[0])


def type_name(kind: Any) -> str:
    name = str(kind) if get_args(kind) else kind.__name__
    return re.sub(r"[\w.]+\.(\w+)", r"\1", name).replace("|", r"\|")


def as_table(headings: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def message_table(union: Any) -> str:
    body = []
    for kind in sorted(get_args(union), key=lambda kind: kind.__struct_config__.tag):
        fields = [
            f"`{field.name}: {type_name(field.type)}"
            + ("`" if field.default is msgspec.NODEFAULT else f" = {field.default}`")
            for field in msgspec.structs.fields(kind)
        ]
        tag = str(kind.__struct_config__.tag)
        body.append([tag, f"`{kind.__name__}`", summary(kind), ", ".join(fields) or "none"])
    return as_table(("type", "message", "meaning", "fields, in order"), body)


def field_table(union: Any) -> str:
    body = [
        [f"`{kind.__name__}`", f"`{name}`", meaning]
        for kind in sorted(get_args(union), key=lambda kind: kind.__struct_config__.tag or 0)
        for name, meaning in described(kind, "Attributes").items()
    ]
    return as_table(("message", "field", "meaning"), body)


def record_table(kind: type[msgspec.Struct]) -> str:
    meanings = described(kind, "Attributes")
    body = [
        [f"`{field.name}`", f"`{type_name(field.type)}`", meanings[field.name]]
        for field in msgspec.structs.fields(kind)
    ]
    return as_table(("field", "type", "meaning"), body)


def argument_table(function: Any) -> str:
    meanings = described(function, "Args")
    body = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            required = parameter.default is inspect.Parameter.empty
            default = "required" if required else f"`{parameter.default!r}`"
            body.append([f"`{name}`", default, meanings[name]])
    return as_table(("argument", "default", "meaning"), body)


def server_table() -> str:
    meanings = described(ServerConfig, "Attributes")
    body = [
        [f"`{name}`", f"`{field.default!r}`", meanings[name]]
        for name, field in ServerConfig.model_fields.items()
    ]
    return as_table(("field", "default", "meaning"), body)


GENERATED: Final = {
    ("docs/protocol.md", "client messages"): message_table(msg.ClientMessage),
    ("docs/protocol.md", "server messages"): message_table(msg.ServerMessage),
    ("docs/protocol.md", "client fields"): field_table(msg.ClientMessage),
    ("docs/protocol.md", "server fields"): field_table(msg.ServerMessage),
    ("docs/protocol.md", "draft fields"): field_table(
        msg.DraftWish | msg.DraftInfo | msg.Latencies
    ),
    ("docs/protocol.md", "answer fields"): field_table(msg.Sampling | msg.Scores),
    ("docs/api.md", "Autodraft"): argument_table(Autodraft.__init__),
    ("docs/api.md", "run"): argument_table(Autodraft.run),
    ("docs/api.md", "serve_target"): argument_table(serve_target),
    ("docs/api.md", "ServerConfig"): server_table(),
    ("docs/api.md", "GenerationResult"): record_table(records.GenerationResult),
    ("docs/api.md", "RequestRecord"): record_table(records.RequestRecord),
    ("docs/api.md", "RoundRecord"): record_table(records.RoundRecord),
    ("docs/api.md", "TokenScore"): record_table(records.TokenScore),
}


@pytest.mark.parametrize(("name", "mark"), GENERATED)
def test_a_table_says_what_the_class_says(name: str, mark: str) -> None:
    expected = GENERATED[name, mark]
    assert marked(name, mark) == expected, f"put this into {name}:\n{expected}"


def first_cells(name: str, mark: str) -> list[str]:
    return [cells[0].strip("`") for cells in rows(marked(name, mark))][2:]


def test_the_error_codes_are_those_of_the_protocol() -> None:
    table = [cells[:2] for cells in rows(marked("docs/protocol.md", "error codes"))][2:]
    assert table == [[str(code.value), f"`{code.name}`"] for code in msg.ErrorCode]


def test_the_error_tree_is_that_of_the_module() -> None:
    found = re.search(r"\n\n(    AutodraftError\n.*?)\n\n", errors.__doc__ or "", re.DOTALL)
    assert found
    assert textwrap.dedent(found[1]) + "\n" in blocks(page("docs/api.md"), "text")


def test_the_environment_variables_are_those_that_are_read() -> None:
    ours = [word for word in first_cells("docs/api.md", "environment") if "AUTODRAFT" in word]
    read = re.findall(r"^    (AUTODRAFT_\w+): ", page("autodraft/settings.py"), re.MULTILINE)
    assert ours == read
    assert set(read) == set(re.findall(r"AUTODRAFT_\w+", page("autodraft/settings.py")))


def test_the_exit_codes_are_those_of_both_command_lines() -> None:
    listed = [int(code) for code in first_cells("docs/api.md", "exit codes")]
    for program in (cli, harness):
        assert listed == [0, program.EXIT_FAILED, program.EXIT_USAGE, program.EXIT_INTERRUPTED]


def test_every_public_name_and_method_is_described() -> None:
    text = page("docs/api.md")
    methods = [name for name in vars(Autodraft) if not name.startswith("_")]
    assert sorted(first_cells("docs/api.md", "methods")) == sorted(methods)
    assert [name for name in autodraft.__all__ if f"`{name}" not in text] == []


def test_the_layers_are_those_of_the_layering_test() -> None:
    def exists(unit: str) -> bool:
        home = ROOT / "autodraft" / unit
        return home.is_dir() or home.with_suffix(".py").is_file() or (ROOT / unit).is_dir()

    table = [set(spans(cells[1])) for cells in rows(marked("docs/architecture.md", "layers"))][2:]
    assert table == [{unit for unit in line if exists(unit)} for line in LINES]


# --------------------------------------------------------------------------------- the wire, in hex


def hex_block(mark: str) -> bytes:
    """Return the bytes at the start of the lines of a marked block."""
    (block,) = re.findall(r"```text\n(.*?)```", marked("docs/protocol.md", mark), re.DOTALL)
    pattern = r"^((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)"
    return bytes.fromhex(" ".join(re.findall(pattern, block, re.MULTILINE)))


def test_the_worked_example_is_what_the_codec_makes() -> None:
    tokens, parents = np.array([284, 70_000, 5]), np.array([0, 0, 1])
    nodes = codec.pack_nodes(tokens, parents)
    path = codec.pack_path(np.array([1, 3]), num_nodes=3)
    assert hex_block("example up") == codec.encode(msg.Verify(1, nodes))
    assert hex_block("example down") == codec.encode(msg.Verified(1, path, 262, 40, 1250))
    assert hex_block("example ping") == codec.encode(msg.Ping()) + codec.encode(msg.Pong())


def test_the_bytes_of_a_round_are_those_that_are_sent() -> None:
    table = list(rows(marked("docs/protocol.md", "bytes")))[2:]
    assert len(table) > 3
    for nodes, accepted, up, down in (map(int, cells) for cells in table):
        tree = codec.pack_nodes(np.full(nodes, 70_000), np.zeros(nodes, dtype=np.int64))
        path = codec.pack_path(np.arange(1, accepted + 1), nodes)
        assert len(codec.encode(msg.Verify(127, tree))) == up
        assert len(codec.encode(msg.Verified(127, path, 70_000, 70_000, 70_000))) == down


# ------------------------------------------------------------------------------------ losslessness


def noise_of(hash_: int) -> float:
    """Return ``-ln(-ln u)`` of a hash, in 40 digits before it is rounded."""
    with localcontext(Context(prec=40)):
        uniform = (Decimal(hash_ >> 12) + Decimal("0.5")) / 2**52
        return float(-(-uniform.ln()).ln())


def test_the_noise_is_what_the_page_says_bit_by_bit() -> None:
    body = list(rows(marked("docs/losslessness.md", "noise vectors")))[2:]
    assert len(body) > 8
    for cells in body:
        seed, choice, position, token = map(int, cells[:4])
        key = stream_key(seed, choice, position)
        hash_ = int(token_hashes(key, np.array([token]))[0])
        assert cells[4:6] == [f"`{key:016x}`", f"`{hash_:016x}`"]
        assert float(cells[6]) == pytest.approx(noise_of(hash_), rel=0, abs=1e-15)
        assert gumbel_noise(key, np.array([token]))[0] == pytest.approx(
            noise_of(hash_), rel=0, abs=1e-15
        )


def allowed(name: str) -> str:
    least, most = sampling._RANGES[name]
    whole = name in sampling._WHOLE
    start = f"above {least:g}" if name in sampling._ABOVE else f"{least:g}"
    return f"{start} to {most}, whole" if whole else f"{start} to {most:g}"


def test_the_options_of_sampling_are_those_of_the_class_in_order() -> None:
    body = list(rows(marked("docs/losslessness.md", "sampling")))[2:]
    fields = dataclasses.fields(sampling.Sampling)
    assert [cells[0] for cells in body] == [f"`{field.name}`" for field in fields]
    for field, (_, default, range_) in zip(fields, body, strict=True):
        if field.name in sampling._RANGES:
            assert default.split()[0] == f"{field.default:g}"
            assert range_ == allowed(field.name)
        else:
            assert default == "none"
    assert sampling.MAX_BIASED == sampling.MAX_BAD_WORDS == 1024
    assert sampling.MAX_BIAS == 100


def test_the_pages_name_the_present_protocol_and_the_most_log_probabilities() -> None:
    assert f"This is protocol version {msg.PROTOCOL_VERSION}." in page("docs/protocol.md")
    assert f"| `top_logprobs` of `Open` | 0 to {MAX_TOP_LOGPROBS} |" in page("docs/protocol.md")
    assert f"`top_logprobs=N`, 0 to {MAX_TOP_LOGPROBS}," in page("docs/losslessness.md")


# ----------------------------------------------------------------------------------- error messages


def source_messages() -> list[str]:
    """Return every text of the sources; whatever is put into it at run time is ‹›."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES]
    constants = {
        ast.unparse(node.target): str(node.value.value)
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant)
        if ast.unparse(node.target).isupper() and isinstance(node.value.value, str)
    }

    def text(part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        assert isinstance(part, ast.FormattedValue)
        return constants.get(ast.unparse(part.value), "‹›")

    found = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(text(part) for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_every_error_message_that_is_explained_begins_like_one_of_ours() -> None:
    known = source_messages()
    shell = page("scripts/setup_env.sh")
    quoted = blocks(page("docs/troubleshooting.md"), "text")
    lines = [line for block in quoted for line in block.splitlines()]
    assert len(lines) > 30
    for line in lines:
        beginning = re.sub("‹[^›]*›", "‹›", line).removesuffix(" …")
        for prefix in ("The target server at ‹› refused: ", "‹› failed on the server: "):
            if beginning.startswith(prefix) and beginning != prefix.strip():
                assert any(message.startswith(prefix) for message in known)
                beginning = beginning.removeprefix(prefix)
        in_shell = all(part in shell for part in beginning.removeprefix("error: ").split("‹›"))
        assert in_shell or any(message.startswith(beginning) for message in known), line
