"""Ctrl-C and SIGTERM end a run at a moment that leaves its files whole.

This module knows nothing of runs or files.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, both signals raise `KeyboardInterrupt`, but not inside of `held`.

    Signals reach the main thread only; entered in another one, this changes nothing.
    """

    def __init__(self) -> None:
        """Change nothing yet."""
        self._holding = False
        self._pending = False
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._holding:
            raise KeyboardInterrupt
        self._pending = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the block finish before a signal that comes during it acts."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
