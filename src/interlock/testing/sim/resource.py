"""What the locks are for: counters that keep the highest fence they have seen, somewhere on the network."""

from __future__ import annotations

from collections.abc import Callable

from .kernel import Future
from .runtime import SimRuntime
from .wire import Network


class Resource:
    """One counter. Whoever touches it first seals it with its fence; who comes with a lower one is turned away."""

    seals_at_entry = True

    def __init__(self, network: Network, record: Callable[..., None]) -> None:
        self._network = network
        self._record = record  # (who, what, **fields)
        self._values: dict[str, int] = {}
        self._newest: dict[str, int] = {}

    async def enter(self, runtime: SimRuntime, name: str, lease: str, fence: int) -> int | None:
        """Seal it and read it. None: turned away."""
        return await self._exchange(runtime, lambda: self._enter(name, lease, fence))

    async def write(self, runtime: SimRuntime, name: str, lease: str, fence: int, value: int) -> bool:
        """Write it. False: turned away."""
        return await self._exchange(runtime, lambda: self._write(name, lease, fence, value)) is not None

    async def _exchange(self, runtime: SimRuntime, act: Callable[[], int | None]) -> int | None:
        kernel, answer = runtime.kernel, Future()

        def arrive() -> None:
            kernel.at(kernel.now + self._network.delay(), runtime.process, answer.settle, act())

        kernel.at(kernel.now + self._network.delay(), None, arrive)
        value: int | None = await answer
        return value

    def _enter(self, name: str, lease: str, fence: int) -> int | None:
        value, newest = self._values.get(name, 0), self._newest.get(name, 0)
        if fence < newest:
            self._record("counter", "enter", name=name, lease=lease, fence=fence, note="stale")
            return None
        if self.seals_at_entry:
            self._newest[name] = fence
            self._record("counter", "enter", name=name, lease=lease, fence=fence, value=value)
        return value

    def _write(self, name: str, lease: str, fence: int, value: int) -> int | None:
        if fence < self._newest.get(name, 0):
            self._record("counter", "write", name=name, lease=lease, fence=fence, value=value, note="stale")
            return None
        self._newest[name], self._values[name] = fence, value
        self._record("counter", "write", name=name, lease=lease, fence=fence, value=value)
        return value
