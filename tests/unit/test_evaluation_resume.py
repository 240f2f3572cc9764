"""Going on with a run: which one, what is asked again, and when it is refused."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from autodraft.config import ExperimentConfig
from autodraft.config_io import dump_yaml
from autodraft.errors import AutodraftError, ConfigError, ContextLengthError, LinkClosed, StoreError
from evaluation.cli import main
from evaluation.interrupts import Interrupts
from evaluation.resume import Wish, choose_run, comparable, differences, resolved_text
from evaluation.runner import Engine
from evaluation.store import RunStore, hash_config
from tests.unit.evaluation_fakes import FakeEngine, Messages, make_config
from tests.unit.evaluation_harness import Harness, fail_at

QUICK = ("--limit", "2", "--set", "run.WARMUP_QUESTIONS=0", "--set", "run.RETRIES=0")
TABLES = ("summary.csv", "categories.csv", "tradeoff.csv")


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


@pytest.fixture
def stopped(harness: Harness) -> Harness:
    """Return the harness after a run of 8 requests that stopped at the sixth."""
    harness.engine = fail_at(6, LinkClosed("The server went away."))
    assert harness(*QUICK) == 1
    harness.engine = FakeEngine()
    harness.made.clear()
    return harness


# ------------------------------------------------------------------------------ going on by default


@pytest.mark.parametrize("option", [(), ("--resume",)])
def test_a_run_that_stopped_goes_on_where_it_stood(
    stopped: Harness, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    assert stopped(*QUICK, *option) == 0
    assert len(stopped.engine.asked) == 3
    assert "5 of 8 requests are answered already" in capsys.readouterr().err
    statuses = [line["status"] for line in stopped.lines()]
    assert statuses == ["ok"] * 5 + ["error"] + ["ok"] * 3
    assert stopped.manifest()["status"] == "finished"
    assert [each["status"] for each in stopped.manifest()["sessions"]] == ["stopped", "finished"]


def test_the_tables_are_those_of_an_undisturbed_run(stopped: Harness) -> None:
    stopped(*QUICK)
    before = tables(stopped.folder)
    stopped.engine = FakeEngine()
    assert stopped(*QUICK, "--fresh") == 0
    assert tables(stopped.folders[1]) == before


def test_a_finished_run_is_not_run_again_and_its_tables_are_printed(
    stopped: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped(*QUICK)
    stopped.made.clear()
    before = tables(stopped.folder)
    for name in TABLES:
        (stopped.folder / name).unlink()
    capsys.readouterr()
    assert stopped(*QUICK) == 0
    assert stopped.made == []
    captured = capsys.readouterr()
    assert "Nothing is left to do" in captured.err
    assert "server_only" in captured.out
    assert tables(stopped.folder) == before
    assert len(stopped.manifest()["sessions"]) == 2


def test_a_failed_request_is_asked_again_and_the_last_line_counts(
    harness: Harness,
) -> None:
    harness.engine = fail_at(6, ContextLengthError("The prompt has too many tokens."))
    assert harness(*QUICK) == 1
    harness.engine = fail_at(1, ContextLengthError("Still too many."))
    assert harness(*QUICK) == 1
    assert len(harness.engine.asked) == 1
    harness.engine = FakeEngine()
    assert harness(*QUICK) == 0
    assert len(harness.engine.asked) == 1
    assert [line["status"] for line in harness.lines()].count("error") == 2


def test_the_server_may_have_moved(stopped: Harness) -> None:
    moved = ("--set", "runtime.TARGET_HOST=elsewhere", "--set", "runtime.TARGET_PORT=99")
    assert stopped(*QUICK, *moved, "--set", "run.RETRIES=3", "--set", "dataset.DOWNLOAD=0") == 0
    assert len(stopped.engine.asked) == 3
    assert stopped.made[0].runtime.target_host == "elsewhere"


def test_another_configuration_begins_another_run(stopped: Harness) -> None:
    assert stopped(*QUICK, "--set", "run.MAX_NEW_TOKENS=99") == 0
    assert len(stopped.engine.asked) == 8
    assert len(stopped.folders) == 2


def test_the_warm_up_is_repeated(stopped: Harness) -> None:
    options = ("--limit", "2", "--set", "run.RETRIES=0")
    stopped.engine = fail_at(4 + 6, LinkClosed("The server went away."))
    assert stopped(*options) == 1
    stopped.engine = FakeEngine()
    assert stopped(*options) == 0
    assert len(stopped.engine.asked) == 4 + 3


def test_what_a_killed_process_left_is_mended(stopped: Harness) -> None:
    rounds = (stopped.folder / "rounds.jsonl").read_bytes()
    first = rounds.split(b"\n")[0].replace(b'"question_id":1', b'"question_id":2')
    with (stopped.folder / "rounds.jsonl").open("ab") as file:
        file.write(first + b"\n" + first[:30])
    with (stopped.folder / "requests.jsonl").open("ab") as file:
        file.write(b'{"schema')
    manifest = stopped.manifest()
    manifest["sessions"][0]["status"] = "running"  # killed before it could say more
    (stopped.folder / "manifest.json").write_text(json.dumps(manifest))
    assert stopped(*QUICK) == 0
    assert len(stopped.lines("rounds.jsonl")) == 16
    assert [each["status"] for each in stopped.manifest()["sessions"]] == ["killed", "finished"]


def test_a_run_that_was_killed_before_its_manifest_goes_on(stopped: Harness) -> None:
    (stopped.folder / "manifest.json").unlink()
    assert stopped(*QUICK) == 0
    assert len(stopped.engine.asked) == 3
    assert stopped.manifest()["status"] == "finished"


# ----------------------------------------------------------------------------------------- refusals


def test_a_run_that_another_process_writes_is_left_alone(
    stopped: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunStore(stopped.folder).locked():
        assert stopped(*QUICK) == 1
    assert "Another process is writing the run" in capsys.readouterr().err
    assert stopped.made == []


def test_another_model_is_refused(stopped: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    stopped.engine.described = {
        "target": {"model": "fake", "revision": "2", "device": "a GPU"},
        "draft": stopped.engine.described["draft"],
    }
    assert stopped(*QUICK) == 1
    assert stopped.engine.asked == []
    err = capsys.readouterr().err
    assert "target revision was 1, is 2; target device was a CPU, is a GPU" in err
    assert "--fresh" in err
    assert len(stopped.lines()) == 6
    stopped.engine = FakeEngine()  # the refused session does not count
    assert stopped(*QUICK) == 0


def test_another_draft_on_the_server_is_refused(stopped: Harness) -> None:
    stopped.engine.described["target"]["draft"] = {"model": "another"}
    assert stopped(*QUICK) == 1
    assert stopped.engine.asked == []


def test_questions_that_have_changed_are_refused(
    stopped: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = stopped.manifest()
    manifest["questions"]["quick"]["sha256"] = "0" * 64
    (stopped.folder / "manifest.json").write_text(json.dumps(manifest))
    assert stopped(*QUICK) == 1
    assert "its questions have changed since it began (quick)" in capsys.readouterr().err
    assert stopped.made == []


def test_shapes_that_were_tuned_meanwhile_are_refused(
    stopped: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = stopped.manifest()
    manifest["methods"][1]["max_depth"] = 2
    (stopped.folder / "manifest.json").write_text(json.dumps(manifest))
    assert stopped(*QUICK) == 1
    assert "its methods have changed since it began (chain on quick)" in capsys.readouterr().err


def test_another_commit_is_told_and_goes_on(
    stopped: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = stopped.manifest()
    manifest["sessions"][0]["commit"] = "0123abc"
    (stopped.folder / "manifest.json").write_text(json.dumps(manifest))
    assert stopped(*QUICK) == 0
    assert "warning: The run was begun with another commit of AutoDraft (0123abc before" in (
        capsys.readouterr().err
    )
    assert stopped.manifest()["sessions"][0]["commit"] == "0123abc"


def test_insisting_without_such_a_run_names_what_differs(
    stopped: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ("--set", "run.MAX_NEW_TOKENS=99", "--set", "network.RTT_MS=20")
    assert stopped(*QUICK, *other, "--resume") == 2
    err = capsys.readouterr().err
    assert "There is no run to go on with" in err
    assert f"The newest, {stopped.folder.name}: Different: network.RTT_MS (" in err
    assert "run.MAX_NEW_TOKENS (256 there, 99 now)." in err
    assert stopped.made == []


def test_a_run_that_is_named_must_have_the_configuration(
    stopped: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    name = stopped.folder.name
    assert stopped(*QUICK, "--set", "run.MAX_NEW_TOKENS=99", "--resume", name) == 2
    err = capsys.readouterr().err
    assert f"The run {name} has another configuration" in err
    assert "run.MAX_NEW_TOKENS (256 there, 99 now)" in err
    assert stopped(*QUICK, "--resume", name) == 0
    assert len(stopped.engine.asked) == 3


# ----------------------------------------------------------------------------------- choosing a run


def make_runs(root: Path, config: ExperimentConfig, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "config.resolved.yaml").write_text(dump_yaml(config))


def test_the_newest_run_of_the_configuration_is_chosen(tmp_path: Path) -> None:
    mine, other = make_config(), make_config(run={"max_new_tokens": 9, "warmup_questions": 0})
    digest = hash_config(resolved_text(mine))
    make_runs(tmp_path, mine, *(f"20260102-{digest}{end}" for end in ("", "-2", "-10")))
    make_runs(tmp_path, mine, f"20251231-{digest}")
    make_runs(tmp_path, other, f"20260201-{hash_config(resolved_text(other))}")
    (tmp_path / f"20260301-{digest}").mkdir()  # killed before it had a configuration
    (tmp_path / "notes").mkdir()
    assert choose_run(tmp_path, mine, Wish()) == tmp_path / f"20260102-{digest}-10"
    assert choose_run(tmp_path, mine, Wish(fresh=True)) is None
    assert choose_run(tmp_path / "nowhere", mine, Wish()) is None


def test_a_run_of_another_version_is_no_run_to_go_on_with(tmp_path: Path) -> None:
    mine = make_config()
    folder = tmp_path / f"20260102-{hash_config(resolved_text(mine))}"
    make_runs(tmp_path, mine, folder.name)
    (folder / "config.resolved.yaml").write_text("run: {UNHEARD_OF: 1}\n")
    assert choose_run(tmp_path, mine, Wish()) is None
    with pytest.raises(ConfigError, match="There is no run to go on with"):
        choose_run(tmp_path, mine, Wish(insist=True))


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        ("runtime", {"target_host": "x", "target_port": 9, "target_token_env": "MINE"}),
        ("dataset", {"download": False}),
        ("run", {"dry_run": True, "retries": 9}),
    ],
)
def test_where_the_server_is_makes_no_difference(block: str, fields: dict[str, Any]) -> None:
    assert differences(make_config(), make_config(**{block: fields})) == []
    assert resolved_text(make_config()) == resolved_text(make_config(**{block: fields}))


def test_every_other_tag_makes_one() -> None:
    config = make_config(runtime={"server_name": "other"}, objective={"billing": "held"})
    assert differences(make_config(), config) == [
        "runtime.SERVER_NAME (autodraft there, other now)",
        "objective.BILLING (busy there, held now)",
    ]
    assert comparable(config).run == comparable(make_config()).run


# ------------------------------------------------------------------------------------------ signals


def test_a_signal_waits_for_what_must_be_whole() -> None:
    done = []

    def kill_within(interrupts: Interrupts) -> None:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("the end of the block")

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            kill_within(interrupts)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with interrupts.held():  # nothing is left pending
            pass
    assert done == ["the end of the block"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_failure_in_a_block_that_must_be_whole_is_not_hidden() -> None:
    with Interrupts() as interrupts, pytest.raises(StoreError, match="full"), interrupts.held():
        raise StoreError("full")


def test_sigterm_keeps_the_files_like_ctrl_c(harness: Harness) -> None:
    def failure(label: str, messages: Messages) -> AutodraftError | None:
        if len(harness.engine.asked) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return None

    harness.engine = FakeEngine(failure)
    assert harness(*QUICK) == 130
    assert len(harness.lines()) == 2
    assert harness.manifest()["status"] == "interrupted"
    assert (harness.folder / "summary.csv").exists()


def test_no_engine_is_made_where_nothing_is_left_to_do(
    harness: Harness,
) -> None:
    assert harness(*QUICK) == 0

    def make_engine(config: ExperimentConfig) -> Engine:
        raise AssertionError("an engine was made")

    given = ["run", str(harness.config), "--output", str(harness.output), *QUICK]
    assert main(given, make_engine) == 0
