"""Rows of the frequency schedules."""

from __future__ import annotations

from portpe.encodings import (
    DefaultSchedule,
    DynamicSchedule,
    DynamicYarnSchedule,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    ProportionalSchedule,
    YarnSchedule,
)
from portpe.registry.rows import ScheduleRow

SCHEDULE_ROWS = (
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
        kind="dynamic_yarn",
        spec_class=DynamicYarnSchedule,
        title="Dynamic YaRN",
        formula="YaRN with factor s = max(1, length / original), A = 0.1 ln s + 1",
        source="Peng 2023, sections 3.3 and 3.4",
        example=DynamicYarnSchedule(original_max_position_embeddings=64, truncate=False),
        in_transformers=False,
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
