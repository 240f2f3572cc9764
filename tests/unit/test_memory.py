"""Memory is given back where that can be asked for, and pages of a mapped file are let go."""

import ctypes
import gc
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from autodraft.models import memory as giving
from autodraft.models.memory import MappedFile


@pytest.fixture
def fresh_c_functions() -> Iterator[None]:
    """Look the C library's functions up anew, before and after a test that replaces it."""
    giving._c_function.cache_clear()
    yield
    giving._c_function.cache_clear()


@pytest.mark.usefixtures("fresh_c_functions")
class TestGiveBackMemory:
    @pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
    def test_glibc_is_asked_for_all_it_can_spare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = giving._c_function("malloc_trim", ctypes.c_size_t)
        if found is None:
            pytest.skip("another C library")
        assert found(0) in (0, 1)
        asked: list[int] = []
        monkeypatch.setattr(giving, "_c_function", lambda *_: asked.append)
        giving.give_back_memory()
        giving.give_back_memory(collect=False)
        assert asked == [0, 0]

    @pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
    def test_large_blocks_are_settled_in_glibc(self, monkeypatch: pytest.MonkeyPatch) -> None:
        adjust = giving._c_function("mallopt", ctypes.c_int, ctypes.c_int)
        if adjust is None:
            pytest.skip("another C library")
        taken: list[int] = []
        monkeypatch.setattr(
            giving, "_c_function", lambda *_: lambda *values: taken.append(adjust(*values))
        )
        giving.settle_large_blocks()
        assert taken == [1, 1]  # glibc knows both settings and takes the values

    @pytest.mark.parametrize(
        "fault", [AttributeError("malloc_trim"), OSError("no handle"), TypeError("None")]
    )
    def test_another_c_library_is_left_alone(
        self, fault: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: object) -> None:
            raise fault

        monkeypatch.setattr(ctypes, "CDLL", refuse)
        assert giving._c_function("malloc_trim", ctypes.c_size_t) is None
        giving.give_back_memory()
        giving.settle_large_blocks()
        MappedFile(range(0, mmap.PAGESIZE), owner=None).drop_pages()

    @pytest.mark.parametrize("collect", [True, False])
    def test_garbage_is_collected_where_that_is_wanted(
        self, collect: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        collected: list[bool] = []
        monkeypatch.setattr(gc, "collect", lambda: collected.append(True))
        giving.give_back_memory(collect)
        assert collected == [True] * collect


def resident_bytes(addresses: range) -> int:
    """Return how much of a mapping of this process is in memory."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            inside = int(name.split("-")[0], 16) == addresses.start
        elif inside and name == "Rss:":
            return int(values[0]) * 1024
    raise AssertionError("no such mapping")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells of its mappings")
class TestMappedFile:
    @pytest.fixture
    def mapped(self, tmp_path: Path) -> torch.Tensor:
        """The numbers 0, 1, 2, … in a file of some pages, mapped into memory."""
        path = tmp_path / "numbers"
        torch.arange(100_000, dtype=torch.int64).numpy().tofile(path)
        return torch.from_file(str(path), shared=False, size=100_000, dtype=torch.int64)

    def test_pages_are_dropped_and_come_back(self, mapped: torch.Tensor) -> None:
        total = int(mapped.sum())
        file = MappedFile.around(mapped[777:].data_ptr(), mapped.untyped_storage())
        assert file is not None
        assert resident_bytes(file.addresses) >= 800_000
        file.drop_pages()
        assert resident_bytes(file.addresses) == 0
        assert int(mapped.sum()) == total

    def test_what_was_written_to_is_not_dropped(self, mapped: torch.Tensor) -> None:
        mapped[5] = -1
        assert MappedFile.around(mapped.data_ptr(), mapped) is None

    def test_memory_of_no_file_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = torch.zeros(1 << 20)
        assert MappedFile.around(values.data_ptr(), values) is None
        monkeypatch.setattr(giving, "_MAPS", Path("/no/such/file"))
        assert MappedFile.around(values.data_ptr(), values) is None
