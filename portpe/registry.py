"""What portpe knows: one row an encoding kind, one row a schedule.

Docs tables, the list of kinds that a message names and the encodings that parity cases
cover are read from here. A row holds what a reader wants to know and a small ``example``,
with unequal sizes, to build cases from; the arithmetic is in ``schedules``, ``tables`` and ``biases``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    DynamicSchedule,
    FixedRegime,
    LearnedEncoding,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    Part,
    ProportionalSchedule,
    RotaryEncoding,
    Schedule,
    SinusoidalEncoding,
    YarnSchedule,
)

Site = Literal["none", "embedding", "rotary", "bias"]


@dataclass(frozen=True)
class EncodingRow:
    """One encoding kind.

    Attributes:
        kind: its name in a spec, ``none`` for a layer without any.
        site: the hook of a block that it uses.
        spec_class: the class that holds its settings; None for ``none``.
        title: what people call it.
        formula: what is computed, in plain text; p is a position, i a pair, h a head.
        source: paper and section, or whose code defines it.
        example: a small instance with settings that are no defaults.
        weights: canonical names of the tensors it needs.
        bounded: whether positions always end with a table of the model's own.
    """

    kind: str
    site: Site
    spec_class: type[Part] | None
    title: str
    formula: str
    source: str
    example: Part | None
    weights: tuple[str, ...] = ()
    bounded: bool = False


@dataclass(frozen=True)
class ScheduleRow:
    """One frequency schedule of rotary encodings; ``kind`` names its law in ``portpe.schedules``.

    ``in_transformers`` False: transformers has no such type, and precision ``hf`` follows its
    arithmetic by analogy. Other attributes as in ``EncodingRow``.
    """

    kind: str
    spec_class: type[Schedule]
    title: str
    formula: str
    source: str
    example: Schedule
    in_transformers: bool = True

    @property
    def length_dependent(self) -> bool:
        """Whether frequencies depend on the current length, so that an export needs ``--context``."""
        return self.spec_class.length_dependent

    def rotary(self, width: int = 12) -> RotaryEncoding:
        """The example as a rotary encoding; longrope's lists fit the default width only."""
        regime = FixedRegime(length=96) if self.length_dependent else None
        return RotaryEncoding(width=width, schedule=self.example, regime=regime)


_ENCODINGS = (
    EncodingRow(
        kind="none",
        site="none",
        spec_class=None,
        title="No encoding (NoPE)",
        formula="nothing is added; without a mask, attention commutes with permutations of its input",
        source="Kazemnejad 2023",
        example=None,
    ),
    EncodingRow(
        kind="sinusoidal",
        site="embedding",
        spec_class=SinusoidalEncoding,
        title="Sinusoidal",
        formula="hidden += sin, cos of (p + offset) * base^(-i/n), n = d/2 or d/2 - 1",
        source="Vaswani 2017, section 3.5; tensor2tensor and fairseq for n = d/2 - 1",
        example=SinusoidalEncoding(width=12, order="sin_cos", denominator="half_minus_one", offset=2),
    ),
    EncodingRow(
        kind="learned",
        site="embedding",
        spec_class=LearnedEncoding,
        title="Learned absolute",
        formula="hidden += table[p + offset]; no row exists beyond the table",
        source="Gehring 2017, section 3.1; as in BERT, GPT-2, OPT (offset 2), RoBERTa (padding_idx + 1)",
        example=LearnedEncoding(rows=50, width=12, offset=2),
        weights=("position_embedding.weight",),
        bounded=True,
    ),
    EncodingRow(
        kind="rotary",
        site="rotary",
        spec_class=RotaryEncoding,
        title="Rotary (RoPE)",
        formula="pair i of q and k, (a, b), becomes A * (a cos - b sin, a sin + b cos) of sign * p * f_i",
        source="Su 2021, section 3.2; half pairing as in GPT-NeoX and transformers",
        example=RotaryEncoding(width=12, pairing="interleaved", schedule=DefaultSchedule(rope_theta=500000.0)),
    ),
    EncodingRow(
        kind="alibi",
        site="bias",
        spec_class=AlibiEncoding,
        title="ALiBi",
        formula="score -= scale * m_h * (i - j), or |i - j| where symmetric; m_h = 2^(-bias_max h / H) for H = 2^n",
        source="Press 2021, section 3; its released code for other head counts; MPT for bias_max",
        example=AlibiEncoding(bias_max=6.0, scale=0.5),
    ),
)

_SCHEDULES = (
    ScheduleRow(
        kind="default",
        spec_class=DefaultSchedule,
        title="RoPE",
        formula="f_i = theta_i = base^(-2i/R)",
        source="Su 2021, section 3.2.2",
        example=DefaultSchedule(rope_theta=500000.0),
    ),
    ScheduleRow(
        kind="linear",
        spec_class=LinearSchedule,
        title="Position interpolation",
        formula="f_i = theta_i / factor",
        source="Chen 2023, section 2.3",
        example=LinearSchedule(factor=2.5),
    ),
    ScheduleRow(
        kind="ntk",
        spec_class=NtkSchedule,
        title="NTK-aware",
        formula="f_i = base'^(-2i/R), base' = base * factor^(R/(R-2))",
        source="Peng 2023, section 3.1",
        example=NtkSchedule(factor=2.5),
        in_transformers=False,
    ),
    ScheduleRow(
        kind="ntk_by_parts",
        spec_class=NtkByPartsSchedule,
        title="NTK-by-parts",
        formula="f_i = (1 - r_i) theta_i + r_i theta_i / factor, r_i a ramp from beta_fast to beta_slow turns",
        source="Peng 2023, section 3.2",
        example=NtkByPartsSchedule(factor=4.0, original_max_position_embeddings=64),
        in_transformers=False,
    ),
    ScheduleRow(
        kind="dynamic",
        spec_class=DynamicSchedule,
        title="Dynamic NTK",
        formula="f_i = base'^(-2i/R), base' = base * (factor L/M - (factor - 1))^(R/(R-2)), L = max(length, M)",
        source="Peng 2023, section 3.3",
        example=DynamicSchedule(factor=2.0, max_position_embeddings=64),
    ),
    ScheduleRow(
        kind="yarn",
        spec_class=YarnSchedule,
        title="YaRN",
        formula="NTK-by-parts; A = g(mscale) / g(mscale_all_dim) where both are given, else g(1); "
        "g(m) = 0.1 m ln factor + 1",
        source="Peng 2023, section 3.4",
        example=YarnSchedule(factor=4.0, original_max_position_embeddings=64, truncate=False),
    ),
    ScheduleRow(
        kind="longrope",
        spec_class=LongropeSchedule,
        title="LongRoPE",
        formula="f_i = theta_i / long_factor_i past the original length, else / short_factor_i; "
        "A = sqrt(1 + ln factor / ln original)",
        source="Ding 2024, section 3; transformers (Phi-3) for A",
        example=LongropeSchedule(
            short_factor=(1.0, 1.05, 1.1, 1.2, 1.3, 1.5),
            long_factor=(1.1, 1.4, 2.5, 4.0, 6.5, 9.0),
            original_max_position_embeddings=64,
            factor=4.0,
        ),
    ),
    ScheduleRow(
        kind="llama3",
        spec_class=Llama3Schedule,
        title="Llama 3.1",
        formula="f_i = theta_i / factor for wavelengths > original / low, theta_i for those < original / high, "
        "a ramp between",
        source="transformers, modeling_rope_utils; Llama 3.1 release",
        example=Llama3Schedule(
            rope_theta=500000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    ScheduleRow(
        kind="proportional",
        spec_class=ProportionalSchedule,
        title="Proportional (p-RoPE)",
        formula="f_i = base^(-2i/D) / factor for the first int(prf * D // 2) pairs of the whole head, 0 after them",
        source="Barbero 2024; transformers (Gemma 4)",
        example=ProportionalSchedule(partial_rotary_factor=0.5),
    ),
)

ENCODINGS: Mapping[str, EncodingRow] = MappingProxyType({row.kind: row for row in _ENCODINGS})
SCHEDULES: Mapping[str, ScheduleRow] = MappingProxyType({row.kind: row for row in _SCHEDULES})
