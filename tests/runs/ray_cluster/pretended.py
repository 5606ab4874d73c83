"""A pretended Ray: actors in this process, which die when they are told to, and answers that come in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """Root of the errors, as Ray's."""


class RayTaskError(RayError):
    """What a call raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RayActorError(RayError):
    """The worker of a call is dead."""


@dataclass(eq=False)
class Pending:
    """A call whose answer is not there yet."""

    call: Callable[[], Any]


@dataclass(eq=False)
class Handle:
    """An actor."""

    ray: PretendedRay
    make: Callable[[], Any]
    actor: Any = None
    alive: bool = True

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *given: Pending(lambda: self._run(name, *given)))

    def _run(self, name: str, *given: Any) -> Any:
        if not self.alive or self.ray.dies(name, given):
            self.alive = False
            raise RayActorError("it was killed.")
        try:
            self.actor = self.make() if self.actor is None else self.actor
            return getattr(self.actor, name)(*given)
        except Exception as error:
            raise RayTaskError(error) from error


@dataclass
class PretendedRay:
    """As much of the module as is used; ``dies`` says which calls kill their actor."""

    dies: Callable[[str, Sequence[Any]], bool] = lambda name, given: False
    cpus: Sequence[int] = (2,)
    before_wait: Callable[[int], None] = lambda waiting: None  # told how many calls are waited for
    hired: list[Handle] = field(default_factory=list)
    killed: list[Handle] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def remote(self, *, num_cpus: int, max_restarts: int) -> Callable[[type], Any]:
        assert max_restarts == 0

        def actor(kind: type) -> Any:
            def hire(*given: Any) -> Handle:
                self.hired.append(Handle(self, lambda: kind(*given)))
                return self.hired[-1]

            return SimpleNamespace(remote=hire)

        return actor

    def put(self, value: Any) -> Any:
        return value

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": float(count)}} for count in self.cpus]

    def wait(
        self, calls: list[Pending], *, num_returns: int, timeout: float | None
    ) -> tuple[list[Pending], list[Pending]]:
        assert calls
        self.before_wait(len(calls))
        return self.dice.sample(calls, num_returns), []

    def get(self, pending: Pending) -> Any:
        return pending.call()

    def kill(self, handle: Handle) -> None:
        handle.alive = False
        self.killed.append(handle)
