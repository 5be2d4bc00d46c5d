"""What portpe knows: one row an encoding kind, a schedule, a layout of several coordinates, a decay, a kind of block.

Docs tables, the list of kinds that a message names and the encodings that parity cases
cover are read from here. A row holds what a reader wants to know and a small ``example``,
with unequal sizes, to build cases from; the arithmetic is in ``schedules``, ``tables`` and ``biases``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from portpe.registry.attention import ATTENTION_ROWS
from portpe.registry.axes import AXES_ROWS
from portpe.registry.bias import BIAS_ROWS
from portpe.registry.embedding import EMBEDDING_ROWS
from portpe.registry.query import QUERY_ROWS
from portpe.registry.rotary import DECAY_ROWS, ROTARY_ROWS
from portpe.registry.rows import AttentionRow, AxesRow, DecayRow, EncodingRow, ScheduleRow, Site
from portpe.registry.schedules import SCHEDULE_ROWS

__all__ = [
    "ATTENTIONS",
    "AXES",
    "DECAYS",
    "ENCODINGS",
    "SCHEDULES",
    "AttentionRow",
    "AxesRow",
    "DecayRow",
    "EncodingRow",
    "ScheduleRow",
    "Site",
]

ENCODINGS: Mapping[str, EncodingRow] = MappingProxyType(
    {row.kind: row for row in (*EMBEDDING_ROWS, *ROTARY_ROWS, *QUERY_ROWS, *BIAS_ROWS)}
)
ATTENTIONS: Mapping[str, AttentionRow] = MappingProxyType({row.kind: row for row in ATTENTION_ROWS})
SCHEDULES: Mapping[str, ScheduleRow] = MappingProxyType({row.kind: row for row in SCHEDULE_ROWS})
AXES: Mapping[str, AxesRow] = MappingProxyType({row.kind: row for row in AXES_ROWS})
DECAYS: Mapping[str, DecayRow] = MappingProxyType({row.kind: row for row in DECAY_ROWS})
