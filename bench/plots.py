"""The pictures of a bench: time by length, fraction of the limit, overhead with its interval."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from portpe.bench.result import CaseResult, Report, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#64473a")
PEER = ("#8c8a84", "#b59f7b", "#7d9a93", "#a58aa3", "#8b9bb4", "#b58f8f", "#6f6d66", "#a3ad85", "#5f7480", "#c2b28a")
MARKERS = "osD^vP*Xh<>p"
PHASES = ("prefill", "decode")


def pngs(report: Report) -> dict[str, bytes]:
    """Each picture as PNG, by name; those that have nothing to show are left out."""
    return {name: _saved(figure, "png") for name, figure in _figures(report).items()}


def svgs(report: Report) -> dict[str, str]:
    """Each picture as an <svg> element; the same report gives the same bytes."""
    found = {}
    for name, figure in _figures(report).items():
        text = _saved(figure, "svg").decode()
        found[name] = text[text.index("<svg") :]
    return found


def _figures(report: Report) -> dict[str, Figure]:
    figures = {}
    for name, draw in (("time", _time), ("fraction_of_limit", _fraction), ("overhead", _overhead)):
        figure = draw(report)
        if figure is not None:
            figures[name] = figure
    return figures


def _time(report: Report) -> Figure | None:
    """Time over the least that the limit allows would hide the growth; so plain milliseconds, both axes log."""
    clock = report.settings["clock"]

    def value(result: Result, _case: CaseResult) -> tuple[float, float, float]:
        spread = getattr(result, clock)
        return spread.median * 1e3, spread.q1 * 1e3, spread.q3 * 1e3

    figure = _by_length(report, value, f"ms a call ({clock} time)")
    if figure is not None:
        for axes in figure.axes:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            cases = [case for case in report.cases if case.phase == axes.get_title()]
            lengths, least = [case.length for case in cases], [case.limit_seconds * 1e3 for case in cases]
            axes.plot(lengths, least, color="#b3261e", linewidth=1.2, linestyle="--", label="limit of the machine")
        _legend(figure)
    return figure


def _fraction(report: Report) -> Figure | None:
    def value(result: Result, _case: CaseResult) -> tuple[float, float, float]:
        assert result.fraction_of_limit is not None
        return result.fraction_of_limit, result.fraction_of_limit, result.fraction_of_limit

    figure = _by_length(report, value, "fraction of the machine's limit")
    if figure is not None:
        for axes in figure.axes:
            axes.axhline(1.0, color="#b3261e", linewidth=1.2, linestyle="--", label="limit of the machine")
            axes.set_ylim(bottom=0)
        _legend(figure)
    return figure


def _by_length(
    report: Report, value: Callable[[Result, CaseResult], tuple[float, float, float]], label: str
) -> Figure | None:
    """A line a competitor over the lengths, one field a phase; a band from quartile to quartile."""
    from matplotlib.figure import Figure

    phases = [phase for phase in PHASES if any(case.phase == phase and case.ranked() for case in report.cases)]
    if not phases:
        return None
    styles = _styles(report)
    figure = Figure(figsize=(5.2 * len(phases) + 2.6, 4.8), layout="constrained")
    for number, phase in enumerate(phases):
        axes = figure.add_subplot(1, len(phases), number + 1)
        cases = [case for case in report.cases if case.phase == phase]
        for name, style in styles.items():
            points = [
                (case.length, *value(result, case))
                for case in cases
                for result in case.ranked()
                if result.competitor == name
            ]
            if points:
                lengths, middle, low, high = zip(*points, strict=True)
                axes.plot(lengths, middle, label=name, **style)
                axes.fill_between(lengths, low, high, color=style["color"], alpha=0.15, linewidth=0)
        _dress(axes, phase, sorted({case.length for case in cases}))
    figure.axes[0].set_ylabel(label)
    return figure


def _overhead(report: Report) -> Figure | None:
    from matplotlib.figure import Figure

    cases = [case for case in report.cases if case.overhead]
    phases = [phase for phase in PHASES if any(case.phase == phase for case in cases)]
    if not phases:
        return None
    styles = _styles(report)
    figure = Figure(figsize=(5.2 * len(phases) + 2.6, 4.8), layout="constrained")
    for number, phase in enumerate(phases):
        axes = figure.add_subplot(1, len(phases), number + 1)
        mine = [case for case in cases if case.phase == phase]
        names = [name for name in styles if any(one.competitor == name for case in mine for one in case.overhead)]
        for place, name in enumerate(names):
            found = [(at, one) for at, case in enumerate(mine) for one in case.overhead if one.competitor == name]
            spread = (place - (len(names) - 1) / 2) * 0.7 / max(len(names), 1)
            axes.errorbar(
                [at + spread for at, _ in found],
                [100 * one.median for _, one in found],
                [
                    [100 * (one.median - one.low) for _, one in found],
                    [100 * (one.high - one.median) for _, one in found],
                ],
                fmt=styles[name]["marker"],
                color=styles[name]["color"],
                markersize=5,
                capsize=2.5,
                linewidth=1.2,
                label=name,
            )
        axes.axhline(0.0, color="#787774", linewidth=0.8)
        axes.set_xticks(range(len(mine)), [str(case.length) for case in mine])
        _plain(axes, phase)
    figure.axes[0].set_ylabel("what the encoding adds to the time, %")
    _legend(figure)
    return figure


def _styles(report: Report) -> dict[str, dict[str, Any]]:
    """Own ones in colour with full lines, peers in greys and dashes; by name, the same in every picture."""
    styles: dict[str, dict[str, Any]] = {}
    counts = {False: 0, True: 0}
    for entrant in report.competitors:
        if not entrant.usable:
            continue
        number = counts[entrant.peer]
        counts[entrant.peer] += 1
        colours = PEER if entrant.peer else OWN
        styles[entrant.name] = {
            "color": colours[number % len(colours)],
            "marker": MARKERS[(number + (6 if entrant.peer else 0)) % len(MARKERS)],
            "linestyle": ":" if entrant.peer else "-",
            "markersize": 4.5,
            "linewidth": 1.3 if entrant.peer else 1.8,
        }
    return styles


def _dress(axes: Axes, phase: str, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    _plain(axes, phase)


def _plain(axes: Axes, phase: str) -> None:
    axes.set_title(phase)
    axes.set_xlabel("tokens of the prompt" if phase == "prefill" else "tokens in the cache")
    axes.grid(color="#e3e2de", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure) -> None:
    """One for all fields, beside them."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries.keys(), loc="outside right center", frameon=False, fontsize=8.5)


def _saved(figure: Figure, kind: str) -> bytes:
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "portpe", "svg.fonttype": "none", "font.family": "sans-serif"}):
        if kind == "svg":
            figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
        else:
            figure.savefig(buffer, format="png", dpi=150, facecolor="white")
    return buffer.getvalue()
