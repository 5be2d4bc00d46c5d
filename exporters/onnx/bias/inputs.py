"""Layer: exporters/onnx. What a bias-site encoding may read of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.embedding import Weights
from portpe.spec import AttentionSpec

Project = Callable[[ir.Value, str, bool], ir.Value]  # rows (batch, sequence, hidden), a projection's name, its bias


@dataclass(frozen=True)
class TokenInputs:
    """What may be read for a cache: this call's tokens alone."""

    hidden: ir.Value  # (batch, sequence, hidden): what q_proj sees
    project: Project


@dataclass(frozen=True)
class ScoreInputs:
    """What a bias may read of a block. What a form has to lay out first is a function, called where it is read."""

    spec: AttentionSpec
    hidden: ir.Value  # (batch, sequence, hidden): what q_proj sees
    q: Callable[[], ir.Value]  # (batch, heads, sequence, head_dim): rotated and normed, not scaled
    k: Callable[[], ir.Value]  # (batch, kv_heads, total, head_dim), the cached ones too, of ``reads_keys`` alone
    visible: Callable[[], ir.Value]  # bool (batch, 1, 1 | sequence, total)
    kept: Callable[[], ir.Value]  # bool (batch, total): the slots that hold no pad
    position_ids: ir.Value  # (batch, sequence), axes before it where there are several
    key_position_ids: ir.Value  # (batch, total), likewise
    tables: lookup.Tables
    weights: Weights
    project: Project
    states: Mapping[str, ir.Value]  # (batch, numbers of a token, total) in float32, of all keys, by name
