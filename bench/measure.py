"""One case: competitors are prepared, judged, and timed in interleaved rounds with the machine's limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from portpe.bench import costs, matrix
from portpe.bench.case import Case, inputs
from portpe.bench.competitor import Competitor, Prepared
from portpe.bench.limits import Limits
from portpe.bench.matrix import Machine
from portpe.bench.result import CaseResult, LeftOut, Overhead, Result
from portpe.bench.rounds import LONGEST_WARM, VISIT, Times, interleaved, once
from portpe.bench.settings import Settings
from portpe.bench.statistics import Ratio, paired_ratio, spread
from portpe.bench.subject import Subject
from portpe.bench.truth import Judgement, Truth

BASELINE = "onnxruntime portable"

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
        since, count = self.limits.count, matrix.rounds({e.key: e.visit() for e in right}, self.settings)
        self.say(f"{self.case.name}: {count} rounds of {len(right)}")
        times = interleaved(
            {entry.key: entry.prepared.run for entry in right},
            _groups(right),
            rounds=count,
            seed=self.settings.seed,
            seconds={entry.key: entry.seconds for entry in right},
            between=self.limits.measure,
        )
        for entry in right:
            entry.times = times[entry.key]
        return self._result(entries, count, since)

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
            results=[self._one(entry, baseline, seconds) for entry in entries],
            overhead=self._overhead(entries),
        )

    def _one(self, entry: Entry, baseline: Entry | None, limit_seconds: float) -> Result:
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
        return dataclasses.replace(
            found,
            calls=entry.times.calls,
            wall=spread(entry.times.wall),
            cpu=spread(entry.times.cpu),
            fraction_of_limit=limit_seconds / spread(self._clocked(entry)).median,
            ratio=self._ratio(entry, baseline) if baseline else None,
        )

    def _overhead(self, entries: list[Entry]) -> list[Overhead]:
        plain = {entry.competitor.name: entry for entry in entries if not entry.subject.encoded and entry.times}
        found = []
        for entry in entries:
            twin = plain.get(entry.competitor.name)
            if entry.subject.encoded and entry.times and twin is not None:
                ratio = self._ratio(entry, twin)
                found.append(Overhead(entry.competitor.name, ratio.median - 1, ratio.low - 1, ratio.high - 1))
        return found

    def _ratio(self, above: Entry, below: Entry) -> Ratio:
        return paired_ratio(self._clocked(above), self._clocked(below), seed=self.settings.seed)

    def _clocked(self, entry: Entry) -> list[float]:
        assert entry.times is not None
        times: list[float] = getattr(entry.times, self.settings.clock)
        return times


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
