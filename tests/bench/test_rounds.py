"""Layer: tests. Every round runs everybody once, each in an order of its own."""

import gc

from portpe.bench.rounds import interleaved, once, order

GROUPS = [["a", "a plain"], ["b"], ["c", "c plain"], ["d"]]
NAMES = sorted(name for group in GROUPS for name in group)


def test_each_round_holds_everybody_once():
    for number in range(20):
        assert sorted(order(GROUPS, number, 0)) == NAMES


def test_a_group_stays_together_in_either_order():
    rounds = [order(GROUPS, number, 0) for number in range(40)]
    assert all(abs(one.index("a") - one.index("a plain")) == 1 for one in rounds)
    assert {one.index("a") < one.index("a plain") for one in rounds} == {True, False}


def test_orders_differ_between_rounds_and_repeat_with_the_seed():
    first, second = ([order(GROUPS, number, seed) for number in range(10)] for seed in (5, 5))
    assert first == second
    assert len({tuple(one) for one in first}) > 5
    assert {one[0] for one in [order(GROUPS, number, 5) for number in range(60)]} == set(NAMES)
    assert [order(GROUPS, number, 6) for number in range(10)] != first


def test_nobody_runs_twice_before_all_have_run():
    ran = []
    calls = {name: lambda name=name: ran.append(name) for name in NAMES}
    seconds = dict.fromkeys(NAMES, 1.0)  # long: once a visit, no call before the clock starts
    times = interleaved(calls, GROUPS, rounds=3, seed=0, seconds=seconds, between=lambda: ran.append("limits"))
    assert ran == [name for number in range(3) for name in ["limits", *order(GROUPS, number, 0)]]
    assert {name: len(found.wall) for name, found in times.items()} == dict.fromkeys(NAMES, 3)


def test_short_calls_are_repeated_and_warmed():
    ran = []
    times = interleaved({"a": lambda: ran.append(1)}, [["a"]], rounds=2, seed=0, seconds={"a": 0.002})
    assert times["a"].calls == 10  # 20 ms a visit
    assert len(ran) == 2 * (10 + 1)


def test_times_are_of_one_call():
    def busy():
        total = 0
        for number in range(20_000):
            total += number
        return total

    cpu = min(once(busy)[1] for _ in range(9))
    times = interleaved({"a": busy}, [["a"]], rounds=9, seed=0, seconds={"a": 0.001})["a"]
    assert times.calls == 20
    assert cpu / 3 < min(times.cpu) < cpu * 3
    assert all(used > 0 for used in (*times.wall, *times.cpu))


def test_the_collector_waits_and_comes_back():
    seen = []
    once(lambda: seen.append(gc.isenabled()))
    assert seen == [False]
    assert gc.isenabled()
