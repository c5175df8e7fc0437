"""Random calls on arrays under memory pressure, compared with ordinary arrays."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import BUDGET, make
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule, run_state_machine_as_test

import overspill

DTYPES = ["u1", "<i4", ">f8", "c16"]


class Model(RuleBasedStateMachine):
    """Each array has an ordinary one that the same was done to. A view is a pair of views."""

    delivery = "in-thread"
    arrays: Bundle = Bundle("arrays")

    def __init__(self) -> None:
        super().__init__()
        self.pager = make(self.delivery)
        self.filler = self.pager.zeros(BUDGET * 5 // 4, np.uint8)
        self.turn = 0

    def teardown(self) -> None:
        assert self.pager.stats()["memory_peak_bytes"] <= BUDGET * 9 // 8
        self.pager.close()

    @rule(target=arrays, rows=st.integers(1, 40), columns=st.integers(1, 5000), dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"))
    def make(self, rows: int, columns: int, dtype: str, order: str) -> tuple[np.ndarray, np.ndarray]:
        model = (np.arange(rows * columns) % 251).astype(dtype).reshape(rows, columns, order=order)
        return overspill.array(model, order=order, pager=self.pager), model

    @rule()
    def push_out(self) -> None:
        self.turn += 1
        self.filler[:: overspill.PAGE_SIZE] = self.turn % 256

    @rule(target=arrays, pair=arrays, start=st.integers(0, 40), step=st.sampled_from([1, 2, -1]), turned=st.booleans())
    def view(self, pair, start, step, turned):
        array, model = (a[start % a.shape[0] :: step] for a in pair)
        return (array.T, model.T) if turned else (array, model)

    @rule(pair=arrays, value=st.integers(0, 250), row=st.integers(0, 40), column=st.integers(0, 5000))
    def assign(self, pair, value, row, column):
        for a in pair:
            a[row % a.shape[0], column % a.shape[1] :] = value

    @rule(pair=arrays)
    def compute(self, pair):
        for a in pair:
            np.add(a, 1, out=a, casting="unsafe")
        array, model = pair
        assert array.sum() == model.sum()

    @rule(pair=arrays, axis=st.sampled_from([0, 1]))
    def sort(self, pair, axis):
        for a in pair:
            a.sort(axis=axis)

    @rule(pair=arrays, seed=st.integers(0, 99))
    def scatter(self, pair, seed):
        for a in pair:
            random = np.random.default_rng(seed)
            where = tuple(random.integers(0, n, 50) for n in a.shape)
            a[where] = np.arange(50)

    @rule(pair=arrays)
    def discard(self, pair):
        array, model = pair
        if array.flags.c_contiguous or array.flags.f_contiguous:
            overspill.discard(array)
            model[...] = 0

    @rule(pair=arrays)
    def prefetch_and_wire(self, pair):
        overspill.prefetch(pair[0])
        with overspill.wire(pair[0]) as array:
            assert np.array_equal(array, pair[1])

    @rule(policy=st.sampled_from(overspill.POLICIES))
    def set_policy(self, policy):
        self.pager.set_policy(policy)

    @rule(pair=arrays)
    def compare(self, pair):
        assert np.array_equal(*pair)

    @rule(target=arrays, pair=consumes(arrays), back=st.booleans())
    def forget(self, pair, back):
        assert np.array_equal(*pair)
        return pair if back else multiple()


@pytest.mark.parametrize("delivery", ["in-thread", "threads"])
def test_model(delivery: str) -> None:
    make(delivery).close()
    machine = type("Model", (Model,), {"delivery": delivery})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=5, stateful_step_count=30, deadline=None, database=None, suppress_health_check=checks)
    )
