"""Layer: tests. How many rounds fit, and who must go where too few do."""

import pytest

from portpe.bench import matrix
from portpe.bench.case import Case
from portpe.bench.settings import Settings
from portpe.errors import SpecError


@pytest.mark.parametrize(("seconds", "rounds"), [(1.0, 12), (100.0, 3), (0.001, 40)])
def test_rounds_fill_the_budget_within_their_bounds(seconds, rounds):
    assert matrix.rounds({"a": seconds, "b": 4 * seconds}, Settings(budget=60.0)) == rounds


def test_rounds_that_are_asked_for_are_run():
    assert matrix.rounds({"a": 100.0}, Settings(rounds=9, budget=1.0)) == 9
    assert matrix.rounds({"a": 100.0}, Settings(rounds=9, budget=1.0), done=3, spent=300.0) == 6


@pytest.mark.parametrize(("spent", "more"), [(10.0, 10), (0.5, 11), (59.0, 0), (600.0, 0)])
def test_what_is_spent_and_done_counts(spent, more):
    assert matrix.rounds({"a": 1.0, "b": 4.0}, Settings(budget=60.0), done=3, spent=spent) == more
    assert matrix.rounds({"a": 0.001}, Settings(budget=60.0), done=3, spent=1.0) == 37


def test_hopeless_are_those_beyond_five_times_the_fastest():
    assert matrix.hopeless({"a": 2.0, "b": 9.9, "c": 10.1, "d": 40.0}) == {"c", "d"}
    assert matrix.hopeless({}) == set()


def test_the_slowest_go_until_the_least_rounds_fit():
    gone = matrix.too_slow({"fast": 1.0, "slow": 8.0, "slower": 30.0}, Settings(budget=50.0))
    assert list(gone) == ["slower"]
    assert gone["slower"].startswith("one call took 30.0 s, and 3 rounds of all competitors do not fit into 50 s")


def test_the_last_one_stays():
    assert matrix.too_slow({"only": 1000.0}, Settings(budget=1.0)) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(lengths=(128, 0)), r"lengths must be >= 1, got \[128, 0\]"),
        (Settings(lengths=()), r"lengths must be >= 1, got \[\]"),
        (Settings(phases=("training",)), "phase must be one of decode, prefill, got 'training'"),
        (Settings(threads=0), "threads must be >= 1, got 0"),
        (Settings(rounds=0), "rounds must be >= 1, got 0"),
        (Settings(budget=0.0), "budget must be > 0 seconds, got 0.0"),
    ],
)
def test_settings_that_break_a_rule_are_refused(settings, message):
    with pytest.raises(SpecError, match=message):
        settings.check()


def test_cases_of_a_layer(spec_of):
    settings = Settings(lengths=(5, 9))
    both = [Case("decode", 5), Case("decode", 9), Case("prefill", 5), Case("prefill", 9)]
    assert settings.cases(spec_of("rotary_default")) == both
    assert settings.cases(spec_of("rotary_bidirectional")) == both[2:]
    assert Settings(lengths=(5, 9), phases=("decode",)).cases(spec_of("rotary_default")) == both[:2]
    assert Settings(lengths=(5, 9), phases=("decode",)).cases(spec_of("rotary_bidirectional")) == []
