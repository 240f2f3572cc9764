"""What can go wrong between two processes, and what the user is told.

Every message must say what to do, in one paragraph without a traceback; nothing that was finished
is lost. Tiny random models; a real server process and a real client process each.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autodraft import Autodraft
from autodraft.config import (
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    ObjectiveConfig,
    RuntimeConfig,
)
from autodraft.errors import (
    AuthError,
    ConnectError,
    ContextLengthError,
    LinkClosed,
    ModelLoadError,
    RemoteError,
    TokenizerMismatch,
)
from tests.fakes import save_tiny_model
from tests.servers import TOKEN, TargetProcess, target_process

CONTEXT = 256
CHAIN = MethodSpec(method="chain", width=1, max_depth=3, node_budget=3)
SERVER_ONLY = MethodSpec(method="server_only", width=0, max_depth=0, node_budget=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return save_tiny_model(folder / "target"), save_tiny_model(folder / "draft", seed=1)


@pytest.fixture(scope="module")
def server(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TargetProcess]:
    arguments = ("--base-model-path", str(models[0]), "--max-context", str(CONTEXT))
    with target_process(tmp_path_factory.mktemp("server"), *arguments) as process:
        yield process


def engine_for(models: tuple[Path, Path], port: int, **options: object) -> Autodraft:
    settings: dict[str, object] = {
        "target_model": str(models[0]),
        "draft_model": str(models[1]),
        "target_port": port,
        "token": TOKEN,
        "dtype": "float32",
        "target_dtype": "auto",
    }
    return Autodraft(**(settings | options))  # type: ignore[arg-type]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client(*arguments: str, token: str | None = TOKEN) -> "subprocess.CompletedProcess[str]":
    environment = {name: text for name, text in os.environ.items() if name != "AUTODRAFT_TOKEN"}
    if token is not None:
        environment["AUTODRAFT_TOKEN"] = token
    return subprocess.run(
        [sys.executable, "-m", "autodraft", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def assert_one_paragraph(
    process: "subprocess.CompletedProcess[str]", code: int, *words: str
) -> None:
    errors = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert process.returncode == code, process.stderr
    assert len(errors) == 1, process.stderr
    assert "Traceback" not in process.stderr
    for word in words:
        assert word in errors[0]


def test_a_server_that_is_not_there(models: tuple[Path, Path]) -> None:
    port = free_port()
    target, draft = map(str, models)
    process = client(
        "generate", "hello", "--target-model", target, "--draft-model", draft,
        "--target-port", str(port),
    )  # fmt: skip
    assert_one_paragraph(process, 1, f"127.0.0.1:{port}", "run_target.sh", "TARGET_PORT")


def test_something_else_on_the_port(models: tuple[Path, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectError, match="no AutoDraft target server"):
            engine_for(models, listener.getsockname()[1]).connect()
        thread.join()


def test_a_missing_and_a_wrong_token(
    server: TargetProcess,
    models: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("AUTODRAFT_TOKEN", raising=False)
    monkeypatch.setenv("AUTODRAFT_CONFIG_DIR", str(tmp_path))
    with pytest.raises(AuthError, match="no token was given.*AUTODRAFT_TOKEN"):
        engine_for(models, server.port, token=None).connect()
    with pytest.raises(AuthError, match="not the server's.*AUTODRAFT_TOKEN"):
        engine_for(models, server.port, token="wrong").connect()
    assert TOKEN not in server.log
    assert "wrong" not in server.log


def test_the_token_file_lets_a_client_of_the_same_user_in(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTODRAFT_CONFIG_DIR", str(tmp_path / "config"))
    arguments = ("--base-model-path", str(models[0]))
    with target_process(tmp_path, *arguments, token="") as server:
        monkeypatch.delenv("AUTODRAFT_TOKEN", raising=False)
        token_file = tmp_path / "config" / "token"
        assert token_file.stat().st_mode & 0o777 == 0o600
        with engine_for(models, server.port, token=None) as engine:
            assert engine.run("hi", method=CHAIN, max_new_tokens=4).token_ids
        assert token_file.read_text().strip() not in server.log


def test_a_page_in_a_browser_cannot_connect(server: TargetProcess) -> None:
    request = (
        "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {TOKEN}\r\nOrigin: http://localhost:8000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 403")


def test_another_server_name(server: TargetProcess, models: tuple[Path, Path]) -> None:
    with pytest.raises(RemoteError, match="'cloud'.*'autodraft'") as caught:
        engine_for(models, server.port, server_name="cloud").connect()
    assert caught.value.code == "SERVER_NAME"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("target_model", "another/model"),
        ("target_quantization", "8bit"),
        ("target_dtype", "float16"),
    ],
)
def test_an_eager_server_never_runs_silently_what_was_not_asked(
    server: TargetProcess, models: tuple[Path, Path], option: str, value: str
) -> None:
    with pytest.raises(RemoteError, match=f"{value}.*this server runs {models[0]}") as caught:
        engine_for(models, server.port, **{option: value}).connect()
    assert caught.value.code == "MODEL_REFUSED"


def test_an_unknown_target_model_on_a_lazy_server(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with target_process(tmp_path, "--lazy-load") as lazy:
        with pytest.raises(RemoteError, match="nobody/nothing.*cannot be loaded") as caught:
            engine_for(models, lazy.port, target_model="nobody/nothing").connect()
        assert caught.value.code == "MODEL_FAILED"
        with pytest.raises(RemoteError, match="local path") as caught:
            engine_for(models, lazy.port).connect()
        assert caught.value.code == "MODEL_REFUSED"


def test_an_unknown_draft_model(
    server: TargetProcess, models: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match="no-such-folder"):
        engine_for(models, server.port, draft_model=str(tmp_path / "no-such-folder")).connect()
    with pytest.raises(ModelLoadError, match=r"embedded:smollm2-135m-instruct"):
        engine_for(models, server.port, draft_model="embedded:smollm").connect()


@pytest.mark.embedded
def test_a_draft_with_another_tokenizer(server: TargetProcess, models: tuple[Path, Path]) -> None:
    with pytest.raises(TokenizerMismatch) as caught:
        engine_for(models, server.port, draft_model="embedded:smollm2-draft").connect()
    assert "embedded:smollm2-draft" in str(caught.value)
    assert str(models[0]) in str(caught.value)


def test_a_prompt_longer_than_the_context(server: TargetProcess, models: tuple[Path, Path]) -> None:
    with engine_for(models, server.port) as engine:
        with pytest.raises(ContextLengthError, match=f"{CONTEXT} tokens.*1 to {CONTEXT - 1}"):
            engine.run(prompt_ids=[5] * CONTEXT, method=CHAIN)
        assert engine.run(prompt_ids=[5] * 9, method=CHAIN, max_new_tokens=3).token_ids


@pytest.mark.parametrize("room", [1, 2, 7])
def test_the_context_limit_ends_every_method_alike(
    server: TargetProcess, models: tuple[Path, Path], room: int
) -> None:
    prompt = [5, 9, 7] * 80
    prompt = (prompt * 2)[: CONTEXT - room]
    with engine_for(models, server.port) as engine:
        results = [engine.run(prompt_ids=prompt, method=spec) for spec in (SERVER_ONLY, CHAIN)]
    assert results[0].token_ids == results[1].token_ids
    assert results[0].finish_reason == results[1].finish_reason
    assert len(results[0].token_ids) <= room


def test_a_port_in_use(server: TargetProcess, models: tuple[Path, Path]) -> None:
    process = client("target", "--port", str(server.port))
    assert_one_paragraph(process, 1, str(server.port), "--port")


def test_an_eager_server_without_a_model_is_a_usage_error() -> None:
    assert_one_paragraph(client("target", "--eager-load"), 2, "--base-model-path")


def test_a_server_killed_in_mid_run_ends_the_request_at_once(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    server = TargetProcess(tmp_path, "--base-model-path", str(models[0]))
    with engine_for(models, server.port) as engine:
        stream = engine.stream("hello", method=CHAIN, max_new_tokens=1500)
        next(stream)
        server.kill()
        started = time.monotonic()
        with pytest.raises(LinkClosed, match="log"):
            for _ in stream:
                pass
        assert time.monotonic() - started < 10


def test_a_client_that_goes_away_leaves_the_server_to_the_others(
    server: TargetProcess, models: tuple[Path, Path]
) -> None:
    gone = engine_for(models, server.port)
    stream = gone.stream("hello", method=SERVER_ONLY, max_new_tokens=200)
    next(stream)
    gone._user.connect()._link._socket.socket.shutdown(socket.SHUT_RDWR)
    with engine_for(models, server.port) as engine:
        result = engine.run("hello", method=SERVER_ONLY, max_new_tokens=20)
    assert result.token_ids
    with pytest.raises(LinkClosed):
        list(stream)


def test_two_sessions_at_once_get_their_own_answers(
    server: TargetProcess, models: tuple[Path, Path]
) -> None:
    prompts = [[5, 6, 7], [9, 9, 1, 30]]
    with engine_for(models, server.port) as engine:
        alone = [
            engine.run(prompt_ids=ids, method=CHAIN, max_new_tokens=40).token_ids for ids in prompts
        ]
    answers: dict[int, list[int]] = {}

    def ask(index: int) -> None:
        with engine_for(models, server.port) as engine:
            result = engine.run(prompt_ids=prompts[index], method=CHAIN, max_new_tokens=40)
            answers[index] = result.token_ids

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[0], answers[1]] == alone


def test_energy_follows_the_configured_watts_and_charges_waiting(
    server: TargetProcess, models: tuple[Path, Path]
) -> None:
    config = ExperimentConfig(
        runtime=RuntimeConfig(target_port=server.port),
        models=ModelsConfig(
            base_model_path=str(models[0]), draft_model_path=str(models[1]), dtype="auto"
        ),
        objective=ObjectiveConfig(
            draft_watts=100, draft_idle_watts=10, target_watts=200, target_idle_watts=20
        ),
    )
    with Autodraft.from_config(config, token=TOKEN) as engine:
        drafted = engine.run("hello", method=CHAIN, max_new_tokens=12)
        plain = engine.run("hello", method=SERVER_ONLY, max_new_tokens=12).request
    record = drafted.request
    assert record.draft_s is not None
    waited_s = record.total_s - record.draft_s
    assert record.draft_j == pytest.approx(100 * record.draft_s + 10 * waited_s)
    for one in (record, plain):
        idle_s = one.target_held_s - one.target_busy_s
        assert one.target_j == pytest.approx(200 * one.target_busy_s + 20 * idle_s)
    assert plain.draft_j == 0.0
    for round_ in drafted.rounds:
        idle_s = round_.round_s - round_.verify_s
        assert round_.target_j == pytest.approx(200 * round_.verify_s + 20 * idle_s)


def test_generate_prints_the_record_as_json(
    server: TargetProcess, models: tuple[Path, Path]
) -> None:
    target, draft = map(str, models)
    process = client(
        "generate", "hello", "--target-model", target, "--draft-model", draft, "--json",
        "--target-port", str(server.port), "--method", "chain", "--max-new-tokens", "5",
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    record = json.loads(process.stdout)
    assert record["request"]["method"] == "chain"
    assert record["token_ids"] == record["request"]["output_ids"]
