"""One thread in front of one model.

Torch calls of all sessions run here one after another, and each comes back with the time it waited
and the time it took, apart: the second is the model's, the first is the load of the moment.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from typing_extensions import ParamSpec

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Timed(Generic[Result]):
    """A result, with the seconds it waited and the seconds it took."""

    value: Result
    queue_s: float
    run_s: float


class ModelWorker:
    """Runs model calls in the order they are submitted."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    def submit(
        self,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> asyncio.Future[Timed[Result]]:
        """Queue a model call and return what it will come to; one in the queue can be cancelled."""
        submitted = time.perf_counter()

        def call() -> Timed[Result]:
            started = time.perf_counter()
            value = function(*args, **kwargs)
            return Timed(value, started - submitted, time.perf_counter() - started)

        return asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def run(
        self,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Timed[Result]:
        """Run a model call on the model's thread; raises what it raises."""
        return await self.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Finish the call in flight and end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
