"""Layer: tests. One case: who is judged, ranked, left out, and what the numbers are made of."""

import dataclasses

import pytest

from portpe.bench import costs, matrix
from portpe.bench import measure as measuring
from portpe.bench.case import Case
from portpe.bench.competitor import Prepared
from portpe.bench.competitors import torch_modules
from portpe.bench.limits import Limits
from portpe.bench.matrix import Machine
from portpe.bench.measure import CaseRun
from portpe.bench.settings import Settings
from portpe.bench.subject import of_bundle, plain_twin
from portpe.tables import end_of

CASE = Case("decode", 40)


class Changed:
    """The reference under another name, its output or its behaviour changed."""

    def __init__(self, name, *, shift=0.0, error=None, peer=True, bytes_needed=0, slowness=1.0, repeats=1):
        self._inner = torch_modules.competitors(1)[0]
        self.repeats = repeats
        self.name, self.peer, self.runtime, self.twin = name, peer, "pytorch", True
        self.threads, self.note, self.slowness = "", "", slowness
        self.shift, self.error, self.bytes_needed = shift, error, bytes_needed

    def availability(self):
        return self._inner.availability()

    def refusal(self, subject):
        return None

    def memory(self, subject, case):
        return self.bytes_needed

    def prepare(self, subject, case, inputs):
        if self.error:
            raise self.error
        prepared = self._inner.prepare(subject, case, inputs)

        def run():
            for _ in range(self.repeats - 1):
                prepared.run()
            return prepared.run()

        return Prepared(run, lambda found: prepared.array(found) + self.shift)


@pytest.fixture
def run(bundle_of, tmp_path):
    """Measure one case with these competitors; returns the result and what was left out."""
    subject = of_bundle(bundle_of("rotary_default"), "float32", tmp_path)
    twin = plain_twin(subject, tmp_path / "plain")
    subjects = [subject, twin]
    ends = {one.key: end_of(one.spec, one.tables) for one in subjects}
    limits = Limits(1, small=True)
    limits.measure()

    def measure(*competitors, case=CASE, machine=None, **settings):
        asked = Settings(**{"rounds": 3, "small": True, **settings})
        machine = machine or Machine(None, limits.rate("read_bandwidth"), limits.rate("gemm_rate"))
        one = CaseRun(case, subjects, ends, asked, limits, lambda: machine, lambda _step: None)
        return one.run(competitors), one.left_out

    return measure


def test_a_wrong_competitor_is_reported_and_not_ranked(run):
    found, left_out = run(Changed("right"), Changed("wrong", shift=0.5))
    assert left_out == []
    wrong = next(one for one in found.results if one.competitor == "wrong" and one.encoded)
    assert wrong.verdict == "wrong"
    assert wrong.max_abs == pytest.approx(0.5, abs=1e-3)
    assert (wrong.wall, wrong.cpu, wrong.ratio, wrong.fraction_of_limit) == (None, None, None, None)
    assert [one.competitor for one in found.ranked()] == ["right"]
    assert [one.competitor for one in found.overhead] == ["right"]
    assert found.baseline == "right"


def test_a_competitor_that_raises_is_left_out_with_its_message(run):
    found, left_out = run(Changed("right"), Changed("broken", error=RuntimeError("no kernel\nfor this")))
    assert [one.competitor for one in found.ranked()] == ["right"]
    assert {(one.competitor, one.case, one.reason, one.failed) for one in left_out} == {
        ("broken", "decode 40", "RuntimeError: no kernel for this", True),
        ("broken", "decode 40 without the encoding", "RuntimeError: no kernel for this", True),
    }


def test_too_much_memory_is_left_out_before_it_is_taken(run):
    machine = Machine(10**9, 1e10, 1e11)
    found, left_out = run(Changed("right"), Changed("large", bytes_needed=7 * 10**8), machine=machine)
    assert [one.competitor for one in found.ranked()] == ["right"]
    assert left_out[0].reason == "it would take about 0.7 GB, and 1.0 GB are free"


def test_too_much_time_is_left_out_by_the_estimate(run, bundle_of):
    case, spec = Case("prefill", 64), bundle_of("rotary_default").spec
    machine = Machine(None, 1e15, costs.flops(spec, case) / 2.0)  # the limit is 2 s a call
    found, left_out = run(Changed("right", slowness=0.1), Changed("slow"), case=case, machine=machine, budget=9.0)
    assert [one.competitor for one in found.ranked()] == ["right"]
    assert left_out[0].reason.startswith("5 calls would take about 10 s, and one case has 9 s")


def test_positions_past_the_tables_are_left_out(bundle_of, tmp_path, run):
    end = bundle_of("rotary_default").table_positions
    found, left_out = run(Changed("right"), case=Case("decode", end))
    assert left_out[0].reason == f"its positions reach {end}, and the tables end at {end - 1}"
    assert all(not one.encoded for one in found.results)


def test_numbers_follow_from_the_times(run):
    found, _ = run(Changed("right"), Changed("other"))
    assert (found.rounds, found.limit, found.phase, found.length) == (3, "read_bandwidth", "decode", 40)
    assert found.limit_seconds == pytest.approx(found.bytes_read / found.limits["read_bandwidth"])
    assert sum(one.encoded for one in found.results) == 2
    for one in found.results:
        assert one.wall.q1 <= one.wall.median <= one.wall.q3
        assert one.fraction_of_limit == pytest.approx(found.limit_seconds / one.cpu.median)
        assert one.ratio.low <= one.ratio.median <= one.ratio.high
    baseline = next(one for one in found.results if one.competitor == "right" and one.encoded)
    assert dataclasses.astuple(baseline.ratio) == (1.0, 1.0, 1.0)


def test_the_hopeless_take_part_in_the_first_rounds_alone(run):
    found, left_out = run(Changed("fast"), Changed("slow", repeats=12), rounds=5)
    rounds = {(one.competitor, one.encoded): one.rounds for one in found.results}
    assert rounds == {("fast", True): 5, ("fast", False): 5, ("slow", True): 3, ("slow", False): 3}
    [note] = left_out
    assert (note.competitor, note.case, note.failed) == ("slow", "decode 40", False)
    assert note.reason.endswith("times slower than the fastest: no rounds after the first 3")
    ranked = found.ranked()
    assert [one.competitor for one in ranked] == ["fast", "slow"]
    assert ranked[1].ratio.median > 5
    assert found.rounds == 5


def test_the_fastest_of_portpes_own_get_rounds_with_their_twins(run, monkeypatch):
    """Nobody else does; the overhead is of all rounds that the two shared, the ratio of the common ones."""
    monkeypatch.setattr(matrix, "MAX_ROUNDS", 4)
    monkeypatch.setattr(measuring, "NARROW", 0.0)
    found, _ = run(
        Changed("own", peer=False), Changed("own slow", peer=False, repeats=3), Changed("peer"), rounds=None, budget=0.5
    )
    rounds = {one.competitor: one.rounds for one in found.overhead}
    assert (rounds["own slow"], rounds["peer"]) == (found.rounds, found.rounds)
    assert rounds["own"] > found.rounds
    assert {one.rounds for one in found.results} == {found.rounds}


def test_a_narrow_interval_needs_no_more_rounds(run, monkeypatch):
    monkeypatch.setattr(measuring, "NARROW", 1e9)
    found, _ = run(Changed("own", peer=False), rounds=None, budget=0.5)
    assert {one.rounds for one in found.overhead} == {found.rounds}


def test_the_plain_twin_has_no_position_in_it(bundle_of, tmp_path):
    subject = of_bundle(bundle_of("learned"), "float32", tmp_path)
    twin = plain_twin(subject, tmp_path / "plain")
    assert (twin.spec.rotary, twin.spec.embedding, twin.spec.bias) == (None, None, ())
    assert set(subject.weights) - set(twin.weights) == {"position_embedding.weight"}
    assert set(twin.graphs) == set(subject.graphs)
    assert plain_twin(of_bundle(bundle_of("none"), "float32", tmp_path), tmp_path / "none") is None
