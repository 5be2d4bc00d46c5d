"""One case: competitors are prepared, judged, and timed in interleaved rounds with the machine's limits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from portpe.bench import costs, matrix
from portpe.bench.case import Case, inputs
from portpe.bench.competitor import Competitor, Prepared
from portpe.bench.limits import Limits
from portpe.bench.matrix import Machine
from portpe.bench.result import CaseResult, LeftOut, Overhead, Result
from portpe.bench.rounds import LONGEST_WARM, VISIT, Times, interleaved, once
from portpe.bench.settings import MIN_ROUNDS, OVERHEAD_SHARE, Settings
from portpe.bench.statistics import Ratio, paired_ratio, spread
from portpe.bench.subject import Subject
from portpe.bench.truth import Judgement, Truth

BASELINE = "onnxruntime portable"
NARROW = 0.01  # width of an overhead's interval that needs no more rounds
NEARLY = 1.05  # times the fastest: close enough for an overhead of its own
BATCH = 5  # rounds of a pair between two looks at the interval
MOST_PAIRS = 400

Say = Callable[[str], None]


@dataclass
class Entry:
    """A competitor with one subject, ready and judged. ``key`` names it among the calls of a round."""

    competitor: Competitor
    subject: Subject
    prepared: Prepared
    judgement: Judgement
    seconds: float
    times: Times | None = None
    pair_times: Times | None = None  # of rounds with its plain twin alone

    @property
    def key(self) -> str:
        return f"{self.competitor.name}/{self.subject.key}"

    def visit(self) -> float:
        """About how long one visit in a round takes."""
        return max(self.seconds, VISIT) + (self.seconds if self.seconds < LONGEST_WARM else 0.0)


@dataclass
class CaseRun:
    """What one case needs. ``subjects`` are the layer and, where there is one, its plain twin."""

    case: Case
    subjects: list[Subject]
    ends: dict[str, int | None]
    settings: Settings
    limits: Limits
    machine: Callable[[], Machine]
    say: Say
    left_out: list[LeftOut] = field(default_factory=list)

    def run(self, competitors: Iterable[Competitor]) -> CaseResult | None:
        """Measure those that can; None where nobody can."""
        entries = [entry for subject in self.subjects for entry in self._enter(subject, competitors)]
        right = [entry for entry in entries if entry.judgement.verdict != "wrong"]
        for key, reason in matrix.too_slow({entry.key: entry.visit() for entry in right}, self.settings).items():
            entry = next(entry for entry in right if entry.key == key)
            right.remove(entry)
            entries.remove(entry)
            self._leave(entry.competitor.name, entry.subject, reason)
        if not entries:
            return None
        since = self.limits.count
        count = self._rounds(right)
        self._overhead_rounds(right)
        return self._result(entries, count, since)

    def _rounds(self, right: list[Entry]) -> int:
        """The common rounds: a few of all, then as many as fit of those that can still win; returns their number."""
        began, first = time.perf_counter(), min(MIN_ROUNDS, self.settings.rounds or MIN_ROUNDS)
        self.say(f"{self.case.name}: {first} rounds of {len(right)}")
        self._time(right, first, between=self.limits.measure)
        kept = self._hopeful(right)
        spent = time.perf_counter() - began
        more = matrix.rounds({e.key: e.visit() for e in kept}, self.settings, done=first, spent=spent)
        if more:
            self.say(f"{self.case.name}: {more} more of {len(kept)}")
            self._time(kept, more, between=self.limits.measure, first=first)
        return first + more

    def _hopeful(self, right: list[Entry]) -> list[Entry]:
        """Without those that are too slow to be looked at any longer, which is noted; the baseline always stays."""
        baseline = _baseline(right)
        took = {e.competitor.name: spread(self._clocked(e)).median for e in right if e.subject.encoded}
        gone = matrix.hopeless(took) - {baseline.competitor.name if baseline else ""}
        for name in gone:
            reason = f"{took[name] / min(took.values()):.0f} times slower than the fastest: no rounds after the first"
            self._leave(name, self.subjects[0], f"{reason} {MIN_ROUNDS}")
        return [entry for entry in right if entry.competitor.name not in gone]

    def _overhead_rounds(self, right: list[Entry]) -> None:
        """More rounds of portpe's fastest forms, each with its plain twin, until the interval is narrow."""
        if self.settings.rounds is not None:
            return
        pairs = self._fastest_pairs(right)
        for pair in pairs:
            self.say(f"{self.case.name}: overhead of {pair[0].competitor.name}")
            began, left = time.perf_counter(), self.settings.budget * OVERHEAD_SHARE / len(pairs)
            while len(self._paired(*pair)[0]) < MOST_PAIRS and time.perf_counter() - began < left:
                ratio = self._overhead_ratio(*pair)
                if ratio.high - ratio.low < NARROW:
                    break
                self._time(list(pair), BATCH, first=len(self._paired(*pair)[0]), apart=True)

    def _fastest_pairs(self, right: list[Entry]) -> list[tuple[Entry, Entry]]:
        """Portpe's own with a twin, encoded and plain: the fastest, and those nearly as fast."""
        plain = {entry.competitor.name: entry for entry in right if not entry.subject.encoded}
        own = [e for e in right if e.subject.encoded and not e.competitor.peer and e.competitor.name in plain]
        took = [spread(self._clocked(entry)).median for entry in own]
        return [(e, plain[e.competitor.name]) for e, each in zip(own, took, strict=True) if each < NEARLY * min(took)]

    def _time(
        self,
        entries: list[Entry],
        rounds: int,
        *,
        between: Callable[[], object] = lambda: None,
        first: int = 0,
        apart: bool = False,
    ) -> None:
        """So many rounds; ``apart`` keeps them from those that ratios between competitors are formed of."""
        found = interleaved(
            {entry.key: entry.prepared.run for entry in entries},
            _groups(entries),
            rounds=rounds,
            seed=self.settings.seed,
            seconds={entry.key: entry.seconds for entry in entries},
            between=between,
            first=first,
        )
        for entry in entries:
            if apart:
                entry.pair_times = _joined(entry.pair_times, found[entry.key])
            else:
                entry.times = _joined(entry.times, found[entry.key])

    def _enter(self, subject: Subject, competitors: Iterable[Competitor]) -> list[Entry]:
        given, truth, entries = inputs(subject.spec, self.case, subject.dtype), None, []
        for competitor in competitors:
            if not subject.encoded and not competitor.twin:
                continue
            reason = matrix.refusal(
                competitor, subject, self.case, self.machine(), self.settings, self.ends[subject.key]
            )
            if reason is not None:
                self._leave(competitor.name, subject, reason)
                continue
            truth = truth or Truth(subject, self.case, given)
            self.say(f"{self.case.name}: {competitor.name}{'' if subject.encoded else ' without the encoding'}")
            try:
                prepared = competitor.prepare(subject, self.case, given)
                judgement = truth.judge(prepared.array(prepared.run()))
                entries.append(Entry(competitor, subject, prepared, judgement, once(prepared.run)[0]))
            except Exception as error:  # runtimes raise what they like, and the others go on
                message = " ".join(str(error).split()) or type(error).__name__
                self._leave(competitor.name, subject, f"{type(error).__name__}: {message[:300]}", failed=True)
        return entries

    def _leave(self, name: str, subject: Subject, reason: str, *, failed: bool = False) -> None:
        twin = "" if subject.encoded else " without the encoding"
        self.left_out.append(LeftOut(name, f"{self.case.name}{twin}", reason, failed))

    def _result(self, entries: list[Entry], count: int, since: int) -> CaseResult:
        subject, case = self.subjects[0], self.case
        rates = {name: self.limits.rate(name, since) for name in self.limits.all}
        limit = "gemm_rate" if case.phase == "prefill" else "read_bandwidth"
        flops, read = costs.flops(subject.spec, case), costs.bytes_read(subject.spec, case, subject.dtype)
        seconds = (flops if case.phase == "prefill" else read) / rates[limit]
        gemv = read / rates["gemv_bandwidth"] if case.phase == "decode" else None
        baseline = _baseline(entries)
        return CaseResult(
            phase=case.phase,
            length=case.length,
            rounds=count,
            flops=flops,
            bytes_read=read,
            limit=limit,
            limit_seconds=seconds,
            limits=rates,
            baseline=baseline.competitor.name if baseline else None,
            results=[self._one(entry, baseline, seconds, gemv) for entry in entries],
            overhead=self._overhead(entries),
        )

    def _one(self, entry: Entry, baseline: Entry | None, limit_seconds: float, gemv_seconds: float | None) -> Result:
        found = Result(
            competitor=entry.competitor.name,
            peer=entry.competitor.peer,
            encoded=entry.subject.encoded,
            verdict=entry.judgement.verdict,
            max_abs=entry.judgement.max_abs,
            share_of_bound=entry.judgement.share,
        )
        if entry.times is None:
            return found
        median = spread(self._clocked(entry)).median
        return dataclasses.replace(
            found,
            calls=entry.times.calls,
            rounds=len(entry.times.wall),
            wall=spread(entry.times.wall),
            cpu=spread(entry.times.cpu),
            fraction_of_limit=limit_seconds / median,
            fraction_of_gemv=gemv_seconds / median if gemv_seconds is not None else None,
            ratio=self._ratio(entry, baseline) if baseline else None,
        )

    def _overhead(self, entries: list[Entry]) -> list[Overhead]:
        plain = {entry.competitor.name: entry for entry in entries if not entry.subject.encoded and entry.times}
        found = []
        for entry in entries:
            twin = plain.get(entry.competitor.name)
            if entry.subject.encoded and entry.times and twin is not None:
                ratio, rounds = self._overhead_ratio(entry, twin), len(self._paired(entry, twin)[0])
                found.append(Overhead(entry.competitor.name, ratio.median - 1, ratio.low - 1, ratio.high - 1, rounds))
        return found

    def _overhead_ratio(self, entry: Entry, twin: Entry) -> Ratio:
        return paired_ratio(*self._paired(entry, twin), seed=self.settings.seed)

    def _paired(self, entry: Entry, twin: Entry) -> tuple[list[float], list[float]]:
        """The times of both in all rounds that they shared, those of the pair alone too."""
        first, second = ([*self._clocked(one), *self._clocked(one, apart=True)] for one in (entry, twin))
        return first, second

    def _ratio(self, above: Entry, below: Entry) -> Ratio:
        """Over the rounds of both: who left early shares the first ones."""
        first, second = self._clocked(above), self._clocked(below)
        shared = min(len(first), len(second))
        return paired_ratio(first[:shared], second[:shared], seed=self.settings.seed)

    def _clocked(self, entry: Entry, *, apart: bool = False) -> list[float]:
        times = entry.pair_times if apart else entry.times
        found: list[float] = getattr(times, self.settings.clock) if times is not None else []
        return found


def _joined(earlier: Times | None, later: Times) -> Times:
    if earlier is not None:
        earlier.extend(later)
    return earlier or later


def _groups(entries: list[Entry]) -> list[list[str]]:
    """A competitor with and without the encoding stays together in a round."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(entry.competitor.name, []).append(entry.key)
    return list(groups.values())


def _baseline(entries: list[Entry]) -> Entry | None:
    """Whom ratios are to: the portable graph, else the first that was timed."""
    timed = [entry for entry in entries if entry.subject.encoded and entry.times is not None]
    return next((entry for entry in timed if entry.competitor.name == BASELINE), timed[0] if timed else None)
