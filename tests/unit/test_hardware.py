"""What the driver calls the GPUs of a model."""

from types import SimpleNamespace

import pytest
import torch

from autodraft.models.hardware import gpu_uuids


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(index: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"1234abcd-0000-0000-0000-00000000000{index}")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.usefixtures("three_gpus")
def test_each_gpu_that_holds_a_part_of_a_model_is_named_once() -> None:
    assert gpu_uuids(["cuda:2", "cpu", torch.device("cuda:0"), "cuda:2"]) == (
        "GPU-1234abcd-0000-0000-0000-000000000000",
        "GPU-1234abcd-0000-0000-0000-000000000002",
    )


@pytest.mark.usefixtures("three_gpus")
def test_cuda_without_a_number_is_the_current_one() -> None:
    assert gpu_uuids(["cuda", "cuda:1"]) == ("GPU-1234abcd-0000-0000-0000-000000000001",)


def test_a_cpu_is_no_gpu() -> None:
    assert gpu_uuids(["cpu", "mps"]) == ()
