"""The pictures of a parity report, as inline SVG. Without matplotlib there are none."""

from __future__ import annotations

import importlib.util
import io
import math
from typing import TYPE_CHECKING

from portpe.report.summary import Group, groups, stages, used

if TYPE_CHECKING:
    from portpe.parity import Report

LEAST = 1e-4  # a share of the bound below this is drawn there
MARKERS = {"float32": "o", "float16": "s", "bfloat16": "D"}
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#64473a", "#787774", "#cb912f")


def margins(report: Report) -> str | None:
    """The share of the bound that each stage's worst error takes, one mark a runtime and type; None where
    matplotlib is not installed or nothing was checked.
    """
    if not report.checks or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    names = stages(report.checks)
    figure = Figure(figsize=(11.0, 1.4 + 0.36 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    lines = _lines(groups(report))
    runtimes = list(dict.fromkeys(runtime for runtime, _ in lines))
    for number, ((runtime, dtype), members) in enumerate(lines.items()):
        points = [(y, _share(members, stage)) for y, stage in enumerate(names)]
        shown = [(y, share) for y, share in points if share is not None]
        spread = (number - (len(lines) - 1) / 2) * 0.6 / max(len(lines), 1)
        axes.plot(
            [share for _, share in shown],
            [y + spread for y, _ in shown],
            MARKERS.get(dtype, "x"),
            color=COLOURS[runtimes.index(runtime) % len(COLOURS)],
            markersize=5,
            label=f"{runtime} {dtype}",
        )
    axes.axvline(1.0, color="#b3261e", linewidth=1.2)
    axes.text(1.0, -0.95, "bound", color="#b3261e", ha="center", va="bottom", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(left=LEAST / 1.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("worst error, as a share of its bound")
    axes.grid(axis="x", color="#e3e2de", linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return _svg(figure)


def _lines(found: list[Group]) -> dict[tuple[str, str], list[Group]]:
    """Configurations by runtime and type: levels of optimisation share a mark."""
    lines: dict[tuple[str, str], list[Group]] = {}
    for group in found:
        lines.setdefault((group.runtime, group.dtype), []).append(group)
    return lines


def _share(members: list[Group], stage: str) -> float | None:
    worst = [used(check) for group in members if (check := group.at_stage(stage)) is not None]
    if not worst:
        return None
    return min(max(*worst, LEAST), 1e6) if math.isfinite(max(worst)) else 1e6


def _svg(figure: object) -> str:
    """The figure as an <svg> element; no date and no random names, so the same report gives the same bytes."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "portpe", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)  # type: ignore[attr-defined]
    text = buffer.getvalue()
    return text[text.index("<svg") :]
