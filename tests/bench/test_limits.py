"""Layer: tests. The machine's limits are measured, positive, and of the size that machines have."""

import numpy as np
import pytest

from portpe.bench.limits import Limits


@pytest.fixture(scope="module", params=[1, 2])
def limits(request):
    found = Limits(request.param, small=True)
    for _ in range(3):
        found.measure()
    return found


def test_limits_are_plausible(limits):
    bandwidths = ("read_bandwidth", "copy_bandwidth", "gemv_bandwidth")
    assert {*bandwidths, "gemm_rate"} == set(limits.all)
    assert all(1e8 < limits.rate(name) < 1e13 for name in bandwidths)
    assert 1e8 < limits.rate("gemm_rate") < 1e15


def test_each_names_its_unit_and_the_fastest_way(limits):
    for limit in limits.all.values():
        assert limit.method in limit.methods
        assert limit.unit == ("flop" if limit.name == "gemm_rate" else "byte")


def test_a_case_takes_the_values_of_its_own_rounds(limits):
    since = limits.count
    limits.measure()
    last = limits.all["read_bandwidth"].rates[-1]
    assert limits.rate("read_bandwidth", since) == pytest.approx(last)
    assert limits.count == since + 1


def test_copies_really_copy(limits):
    limits.all["copy_bandwidth"].measure()
    np.testing.assert_array_equal(limits._target, limits._source)
