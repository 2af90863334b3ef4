"""Each store behaves as the one in memory, for any order of commits, deletions and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from coordination.conftest import KINDS
from coordination.stores import Store
from hubsub.coordination import Delete, Entry, Lease, Put, Watch
from hubsub.coordination.memory import MemoryCoordinator
from hubsub.errors import ExpectationError, LeaseLostError

KEYS = ["controller", "hubs/1", "hubs/2", "rooms/chat/1", "rooms/chat/2"]
DIRECTORIES = ["", "hubs", "rooms", "rooms/chat"]
PATIENCE_S = 30
TIMEOUT = "20s"
"""Time-out of a request. It is long because the test is about results, on a machine that may be busy."""

_numbers = count(1)

writes = st.dictionaries(
    st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=4)), min_size=0, max_size=3
)
expectations = st.dictionaries(
    st.sampled_from(KEYS), st.sampled_from(["now", "absent", "before"]), max_size=2
)


class Machine(RuleBasedStateMachine):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self._run(self._open(store))
        self.revisions: dict[tuple[str, int], int] = {}
        """(key, revision) in the model → revision in the store."""
        self.before: dict[str, int] = {}
        """An earlier revision of each key in the model."""
        self.leases: tuple[Lease, Lease] | None = None

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        self.runner.run(step)

    async def _open(self, store: Store) -> None:
        self.real = await store.open(f"model/{next(_numbers)}", timeout=TIMEOUT)
        self.model = MemoryCoordinator()
        self.watches = [(self.real.watch(directory), {}) for directory in DIRECTORIES]  # type: ignore[var-annotated]

    @rule(expect=expectations, writes=writes, leased=st.booleans())
    def commit(self, expect: dict[str, str], writes: dict[str, bytes | None], leased: bool) -> None:
        self._run(self._commit(expect, writes, leased))

    async def _commit(self, expect: dict[str, str], writes: dict[str, bytes | None], leased: bool) -> None:
        expected = {}
        for key, of in expect.items():
            entry = await self.model.get(key)
            now = entry.revision if entry else 0
            expected[key] = {"now": now, "absent": 0, "before": self.before.get(key, 0)}[of]
        outcomes: list[Any] = []
        for coordinator, lease, revisions in (
            (self.model, self.leases and self.leases[0], expected),
            (self.real, self.leases and self.leases[1], {k: self._real(k, r) for k, r in expected.items()}),
        ):
            made = [
                Delete(key) if value is None else Put(key, value, (leased and lease) or None)
                for key, value in writes.items()
            ]
            try:
                outcomes.append(await coordinator.commit(revisions, made))
            except (ExpectationError, LeaseLostError) as error:
                outcomes.append(error)
        model, real = outcomes
        if isinstance(model, dict):
            assert isinstance(real, dict) and model.keys() == real.keys()
            for key, revision in model.items():
                assert (revision == 0) == (real[key] == 0)
                self.revisions[key, revision] = real[key]
                self.before[key] = revision or self.before.get(key, 0)
        else:
            assert type(real) is type(model), (model, real)
            if isinstance(model, ExpectationError):
                assert (real.key, real.found) == (model.key, self._real(model.key, model.found))

    @rule()
    def lease_or_give_back(self) -> None:
        self._run(self._lease_or_give_back())

    async def _lease_or_give_back(self) -> None:
        if self.leases is None:
            self.leases = (await self.model.lease(60), await self.real.lease(60))
            return
        for lease in self.leases:
            await lease.release()
        self.leases = None

    @invariant()
    def what_is_read_is_the_same(self) -> None:
        self._run(self._same())

    async def _same(self) -> None:
        for directory in DIRECTORIES:
            model = [self._as_real(entry) for entry in (await self.model.page(directory)).entries]
            page = await self.real.page(directory)
            assert list(page.entries) == model and not page.more
        for key in KEYS[:2]:
            entry = await self.model.get(key)
            assert await self.real.get(key) == (entry and self._as_real(entry))

    def teardown(self) -> None:
        try:
            self._run(self._watches_agree())
        finally:
            self.runner.run(self.real.close())
            self.runner.run(self.model.close())
            self.runner.close()

    async def _watches_agree(self) -> None:
        for watch, state in self.watches:
            model = [self._as_real(entry) for entry in (await self.model.page(watch.directory)).entries]
            await self._converges(watch, state, model)

    async def _converges(self, watch: Watch, state: dict[str, Entry], model: list[Entry]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            async for changes in watch:
                if changes.whole:
                    state.clear()
                state |= {entry.key: entry for entry in changes.entries}
                for key in changes.gone:
                    del state[key]
                if [state[key] for key in sorted(state)] == model:
                    return

    def _real(self, key: str, revision: int) -> int:
        return self.revisions[key, revision] if revision else 0

    def _as_real(self, entry: Entry) -> Entry:
        return Entry(entry.key, entry.value, self._real(entry.key, entry.revision))


@pytest.mark.parametrize("store", KINDS, indirect=True)
def test_each_store_does_what_the_model_does(store: Store) -> None:
    errors: list[Exception] = []

    class Watched(Machine):
        """Stores the first error: after a failure the store's state differs when Hypothesis tries to repeat
        it."""

        def _run(self, step: Coroutine[Any, Any, None]) -> None:
            try:
                super()._run(step)
            except Exception as error:
                errors.append(error)
                raise

    try:
        run_state_machine_as_test(
            lambda: Watched(store),
            settings=settings(
                max_examples=settings().max_examples // 6,
                stateful_step_count=20,
                deadline=None,
                phases=[Phase.reuse, Phase.generate],  # Shrinking takes too long with a store of processes.
            ),
        )
    except Flaky as flaky:
        raise (errors[0] if errors else flaky) from None
