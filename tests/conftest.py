"""Every test runs offline and away from the user's own token and files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("tests", deadline=None)  # other work on the machine is no fault
settings.load_profile("tests")

# Read when huggingface_hub is first imported, so it must be set before any test module is.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests, and the servers they start, off this user's configuration and data.

    The cache folder stays the user's: the embedded pair takes long to prepare.
    """
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("AUTODRAFT_TOKEN", "HF_TOKEN"):
            patch.delenv(variable, raising=False)
        for variable in ("AUTODRAFT_CONFIG_DIR", "AUTODRAFT_DATA_DIR"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Give torch one thread: tiny models gain nothing by more, and lose much on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a tiny target and of its first layer, a draft that is right now and then."""
    from tests.fakes import save_tiny_model  # loads torch, which most tests do without

    root = tmp_path_factory.mktemp("tiny")
    return (
        save_tiny_model(root / "target", seed=1),
        save_tiny_model(root / "draft", seed=1, num_hidden_layers=1),
    )
