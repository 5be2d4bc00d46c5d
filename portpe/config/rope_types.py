"""One function a ``rope_type``: the keys of its block become a schedule and an attention factor.

Keys, defaults and precedence are those of transformers' ``modeling_rope_utils`` (5.x); a key is
documented there as belonging to a type or it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from portpe.config.section import Section, shown
from portpe.encodings import (
    AnySchedule,
    DefaultSchedule,
    DynamicSchedule,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkSchedule,
    ProportionalSchedule,
    YarnSchedule,
)
from portpe.errors import SpecError


@dataclass(frozen=True)
class RopeBlock:
    """What a rope_type's function reads from: the block itself and what stands around it.

    ``keys`` is the config's rope block (``rope_parameters`` or ``rope_scaling``), ``width`` the
    number of rotated channels, ``original`` the trained length before scaling, resolved on demand.
    """

    keys: Section
    rope_theta: float
    width: int
    partial_rotary_factor: float
    max_position_embeddings: Callable[[], int]
    original: Callable[[], int]
    warn: Callable[[str], None]


Reader = Callable[[RopeBlock], tuple[AnySchedule, float | None]]


def default(block: RopeBlock) -> tuple[AnySchedule, float | None]:
    """No scaling."""
    return DefaultSchedule(rope_theta=block.rope_theta), None


def linear(block: RopeBlock) -> tuple[AnySchedule, float | None]:
    """Position interpolation by ``factor``."""
    return LinearSchedule(rope_theta=block.rope_theta, factor=block.keys.positive("factor")), None


def dynamic(block: RopeBlock) -> tuple[AnySchedule, float | None]:
    """Dynamic NTK measures length against max_position_embeddings, not the original length."""
    limit = block.max_position_embeddings()
    key = "original_max_position_embeddings"
    if block.keys.has(key) and block.keys.integer(key) != limit:
        block.warn(
            f"{block.keys.name(key)} = {block.keys.integer(key)} is not used by rope_type 'dynamic', "
            f"which starts at max_position_embeddings = {limit}"
        )
    factor = block.keys.positive("factor")
    return DynamicSchedule(rope_theta=block.rope_theta, factor=factor, max_position_embeddings=limit), None


def ntk_alpha(block: RopeBlock) -> tuple[AnySchedule, float | None]:
    """HunYuan's "dynamic" with an alpha: NTK-aware, fixed. Where alpha is given, its code reads nothing else."""
    factor = block.keys.real("factor", 1.0)
    if factor != 1:
        block.warn(f"{block.keys.name('factor')} = {factor} is not used by rope_type 'dynamic' with alpha")
    for key in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        block.keys.get(key)
    return NtkSchedule(rope_theta=block.rope_theta, factor=block.keys.positive("alpha")), None


def yarn(block: RopeBlock) -> tuple[AnySchedule, float | None]:
    """YaRN. A null factor is max_position_embeddings over the original length; 0 and null betas are defaults."""
    keys = block.keys
    if "factor" not in keys.data:
        raise SpecError(f"{keys.name('factor')} is required and missing")
    original = block.original()
    factor = keys.positive("factor") if keys.has("factor") else block.max_position_embeddings() / original
    beta_fast = keys.real("beta_fast", 32.0) or 32.0
    beta_slow = keys.real("beta_slow", 1.0) or 1.0
    for key, beta in (("beta_fast", beta_fast), ("beta_slow", beta_slow)):
        if beta < 0:
            raise SpecError(f"{keys.name(key)} must be > 0, got {shown(keys.get(key))}")
    if beta_fast < beta_slow:
        block.warn(f"{keys.name('beta_fast')} = {beta_fast} < beta_slow = {beta_slow}: the ramp is inverted")
    schedule = YarnSchedule(
        rope_theta=block.rope_theta,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        truncate=keys.flag("truncate", True),
        mscale=_mscale(keys, "mscale"),
        mscale_all_dim=_mscale(keys, "mscale_all_dim"),
    )
    return schedule, _attention_factor(keys)


def longrope(block: RopeBlock) -> tuple[AnySchedule, float | None]:
    """LongRoPE. Without a factor it is max_position_embeddings over the original length."""
    keys = block.keys
    original = block.original()
    if original < 2:
        raise SpecError(f"original_max_position_embeddings must be > 1 for rope_type 'longrope', got {original}")
    factor = keys.positive("factor") if keys.has("factor") else block.max_position_embeddings() / original
    sets = {}
    for key in ("short_factor", "long_factor"):
        sets[key] = keys.positives(key)
        if len(sets[key]) != block.width // 2:
            raise SpecError(
                f"{keys.name(key)} must have {block.width // 2} entries, half the rotary width, got {len(sets[key])}"
            )
    schedule = LongropeSchedule(
        rope_theta=block.rope_theta,
        short_factor=sets["short_factor"],
        long_factor=sets["long_factor"],
        original_max_position_embeddings=original,
        factor=factor,
        **_mscales(keys),
    )
    return schedule, _attention_factor(keys)


def llama3(block: RopeBlock) -> tuple[AnySchedule, float | None]:
    """Llama 3.1's ramp between two wavelengths."""
    keys = block.keys
    factor = keys.positive("factor")
    low, high = keys.positive("low_freq_factor"), keys.positive("high_freq_factor")
    if high < low:
        block.warn(f"{keys.name('high_freq_factor')} = {high} < low_freq_factor = {low}: the ramp is inverted")
    schedule = Llama3Schedule(
        rope_theta=block.rope_theta,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=block.original(),
    )
    return schedule, None


def proportional(block: RopeBlock) -> tuple[AnySchedule, float | None]:
    """Frequencies over the whole head, the last ones zero: the rotary width is head_dim."""
    schedule = ProportionalSchedule(
        rope_theta=block.rope_theta,
        factor=block.keys.positive("factor", 1.0),
        partial_rotary_factor=block.partial_rotary_factor,
    )
    return schedule, None


def _mscale(keys: Section, key: str) -> float | None:
    """0 is allowed and counts as absent, as transformers has it."""
    if not keys.has(key):
        return None
    value = keys.real(key)
    if value < 0:
        raise SpecError(f"{keys.name(key)} must be >= 0, got {shown(keys.get(key))}")
    return value


def _mscales(keys: Section) -> dict[str, float]:
    """PhiMoE states the magnitude of each set of factors."""
    given = {key: keys.positive(key) for key in ("short_mscale", "long_mscale") if keys.has(key)}
    if len(given) == 1:
        raise SpecError(f"{keys.name('short_mscale')} and long_mscale must be given together, got one of them")
    return given


def _attention_factor(keys: Section) -> float | None:
    """An explicit attention_factor goes before every formula; null leaves it to the formula."""
    return keys.positive("attention_factor") if keys.has("attention_factor") else None


READERS: dict[str, Reader] = {  # by the names that a config may give
    "default": default,
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "longrope": longrope,
    "llama3": llama3,
    "proportional": proportional,
}

# Keys of the types above, to tell a key in the wrong block from one that nobody knows.
KEYS = frozenset(
    {
        "factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "truncate",
        "mscale",
        "mscale_all_dim",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    }
)
