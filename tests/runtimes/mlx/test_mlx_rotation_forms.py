"""Layer: tests. The fast forms of the rotation give the bits of its definition, wherever their angles come from."""

import shutil

import mlx.core as mx
import numpy as np
import pytest

from portpe.encodings import DefaultSchedule, RotaryEncoding, SinusoidalEncoding
from portpe.errors import SpecError
from portpe.runtimes.mlx import Attention, rotary, rotation_forms
from portpe.runtimes.mlx.position_table import FEW, PositionTable
from portpe.runtimes.mlx.positions import Run
from portpe.runtimes.mlx.rotary import SITES
from portpe.spec import AttentionSpec
from portpe.tables import TABLE_STEP, table_set

TYPES = [mx.float32, mx.float16, mx.bfloat16]
ALL_FORMS = {
    ("half", "roll"): rotation_forms.BY_ROLL,
    ("half", "flip"): rotation_forms.BY_FLIP,
    ("interleaved", "complex"): rotation_forms.BY_COMPLEX,
    ("interleaved", "flip"): rotation_forms.BY_INNER_FLIP,
}


def tables_of(width=12, full=None, seed=8):
    """Two levels of a million positions, or a full table of ``full`` rows that no formula makes."""
    encoding = RotaryEncoding(width=width, schedule=DefaultSchedule(rope_theta=500.0), attention_factor=1.3)
    if full is None:
        spec = AttentionSpec(
            hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=width, v_head_dim=4, scale=1.0, rotary=encoding
        )
        return encoding, table_set(spec)
    rng = np.random.default_rng(seed)
    return encoding, {name: rng.standard_normal((full, width // 2)).astype(np.float32) for name in ("cos", "sin")}


def heads(*shape, dtype=mx.float32, seed=1):
    """(batch, heads, tokens, channels) as a view of (batch, tokens, heads, channels), as in the block."""
    batch, count, tokens, width = shape
    flat = np.random.default_rng(seed).standard_normal((batch, tokens, count, width)).astype(np.float32)
    return mx.array(flat).astype(dtype).transpose(0, 2, 1, 3)


def bits(array):
    return np.array(array.view({4: mx.uint32, 2: mx.uint16}[array.dtype.size]))


def test_every_form_is_tried_here():
    used = {(pairing, id(form)) for pairing, rows in rotation_forms.FORMS.items() for _, form in rows}
    used |= {(pairing, id(form)) for pairing, form in rotary.COMPILED.items()}
    assert used == {(pairing, id(form)) for (pairing, _), form in ALL_FORMS.items()}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("on_host", [True, False], ids=["host", "device"])
@pytest.mark.parametrize("name", ALL_FORMS, ids=" by ".join)
def test_a_form_gives_the_bits_of_the_definition(name, on_host, dtype):
    """Products and sums in float32 are the same, whatever the order of the channels on the way; so is one cast."""
    form = ALL_FORMS[name]
    rng = np.random.default_rng(3)
    for batch, rows, count, tokens, width in ((1, 1, 3, 1, 10), (2, 1, 5, 7, 2), (3, 3, 2, 41, 16)):
        x = heads(batch, count, tokens, width, dtype=dtype)
        cos, sin = (rng.standard_normal((rows, 1, tokens, width // 2)).astype(np.float32) for _ in "cs")
        given = (cos, sin) if on_host else (mx.array(cos), mx.array(sin))
        found = form.turn(x, *rotation_forms.on_device(form.prepare(given)))
        expected = rotation_forms.turn(x, mx.array(cos), mx.array(sin), name[0])
        assert (found.dtype, found.shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(bits(found), bits(expected))
        part = heads(batch, count, tokens, width + 3, dtype=dtype)[..., 1 : width + 1]  # a slice of wider heads
        found = form.turn(part, *rotation_forms.on_device(form.prepare(given)))
        np.testing.assert_array_equal(
            bits(found), bits(rotation_forms.turn(part, mx.array(cos), mx.array(sin), name[0]))
        )


POSITIONS = {
    "one": Run(1_000_001, 1),
    "the first": Run(0, 3),
    "a short run over a block": Run(FEW - 2, 5),
    "a short run over a step": Run(TABLE_STEP - 2, 5),
    "a run in a step": Run(70 * TABLE_STEP + 5, 300),
    "a run over steps": Run(TABLE_STEP - 7, 2 * TABLE_STEP),
    "the last": Run(2**20 - 3, 3),
    "the last step": Run(2**20 - TABLE_STEP, TABLE_STEP),
    "rows": np.array([[5, 2**20 - 1, 0], [1_023, 1_024, 1_024], [70_000, 3, 64]]),
    "many rows": np.random.default_rng(2).integers(0, 2**20, (3, 90)),
}


def by_definition(rope, x, positions):
    places = positions.array()[None] if isinstance(positions, Run) else positions
    return rope(x, *rope.cos_sin(mx.array(places)))


@pytest.mark.parametrize("places", POSITIONS)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("rest", [0, 4])
@pytest.mark.parametrize("channels", ["first", "last"])
def test_positions_of_every_kind_take_the_rows_of_a_gather(places, pairing, rest, channels):
    """By slice, on the host or by a kept block: the numbers that mx.take of each position gives."""
    encoding, tables = tables_of()
    rope = SITES["rotary"](encoding.model_copy(update={"pairing": pairing, "channels": channels}), tables)
    positions = POSITIONS[places]
    tokens = positions.length if isinstance(positions, Run) else positions.shape[1]
    q, k = heads(3, 5, tokens, 12 + rest), heads(3, 2, tokens, 12 + rest, seed=2)
    for _ in range(2):  # the second time from what the first has kept
        found = rope.rotate(q, k, positions)
        for x, turned in zip((q, k), found, strict=True):
            np.testing.assert_array_equal(bits(turned), bits(by_definition(rope, x, positions)))


def test_a_full_table_is_read_to_its_last_row():
    """Its length is no multiple of a block's."""
    encoding, tables = tables_of(full=FEW + 9)
    rope = SITES["rotary"](encoding, tables)
    for positions in (Run(FEW + 8, 1), Run(FEW - 1, 10), Run(0, FEW + 9), np.array([[FEW + 8, 0]])):
        tokens = positions.length if isinstance(positions, Run) else positions.shape[1]
        q, k = heads(1, 3, tokens, 12), heads(1, 1, tokens, 12)
        for x, turned in zip((q, k), rope.rotate(q, k, positions), strict=True):
            np.testing.assert_array_equal(bits(turned), bits(by_definition(rope, x, positions)))


def test_a_kept_block_serves_its_own_form_and_place_only():
    """One token, then sixty, then one elsewhere and back: each has its own form or block."""
    encoding, tables = tables_of()
    rope = SITES["rotary"](encoding, tables)
    for positions in (Run(7, 1), Run(0, 60), Run(8, 1), Run(FEW + 8, 1), Run(9, 1), Run(9, 30), Run(FEW, 60)):
        q, k = heads(1, 3, positions.length, 12), heads(1, 1, positions.length, 12)
        for x, turned in zip((q, k), rope.rotate(q, k, positions), strict=True):
            np.testing.assert_array_equal(bits(turned), bits(by_definition(rope, x, positions)))


@pytest.mark.parametrize("order", ["interleaved", "sin_cos", "cos_sin"])
def test_sinusoids_of_a_run_are_those_of_its_positions(order):
    spec = AttentionSpec(
        hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=8, v_head_dim=8, scale=1.0,
        embedding=SinusoidalEncoding(width=8, order=order, offset=2),
    )  # fmt: skip
    site = Attention(spec).position_embedding
    for run in (Run(1_022, 1), Run(1_022, 5), Run(1_000, 200), Run(900, 2_000)):
        found = np.array(site(run))
        assert found.shape == (1, run.length, 8)
        angles = (run.array() + 2)[:, None] * 10000.0 ** (-np.arange(4) / 4)
        sin, cos = np.sin(angles), np.cos(angles)
        expected = {
            "interleaved": np.stack([sin, cos], -1).reshape(run.length, 8),
            "sin_cos": np.concatenate([sin, cos], -1),
            "cos_sin": np.concatenate([cos, sin], -1),
        }[order]
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=2e-7)
        np.testing.assert_array_equal(np.array(site(run.array()[None])), found)


def test_the_tables_on_the_host_are_the_devices_own_memory():
    _, tables = tables_of(full=9)
    table = PositionTable(tables)
    assert [array.ctypes.data for array in table._on_host.tables] == [
        np.asarray(array).ctypes.data for array in table.arrays
    ]


# --- compiled ---


@pytest.mark.skipif(shutil.which("g++") is None, reason="mx.compile does nothing on a CPU without g++")
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_compiled_gives_the_same_to_rounding(pairing, dtype):
    """A compiler may contract a product and a sum. Many shapes in turn: a trace is of one shape, so none is stale."""
    encoding, tables = tables_of()
    encoding = encoding.model_copy(update={"pairing": pairing})
    compiled, plain = (SITES["rotary"](encoding, tables, rotation) for rotation in ("compiled", "plain"))
    q = heads(1, 1, 1, 12)
    assert compiled.way(q, q) == ("compiled", None)
    eps = mx.finfo(dtype).eps
    for batch, tokens, first in ((1, 1, 5), (1, 1, 6), (2, 9, 1_020), (1, 70, 3), (2, 9, 4_000)):
        q, k = heads(batch, 5, tokens, 12, dtype=dtype), heads(batch, 2, tokens, 12, dtype=dtype, seed=2)
        pairs = zip(compiled.rotate(q, k, Run(first, tokens)), plain.rotate(q, k, Run(first, tokens)), strict=True)
        for found, expected in pairs:
            found, expected = (np.array(a.astype(mx.float32)) for a in (found, expected))  # noqa: PLW2901
            assert (np.abs(found - expected) <= eps * np.abs(expected) + 2**-20 * np.abs(expected).max()).all()


def test_compiled_says_why_it_is_not(monkeypatch):
    encoding, tables = tables_of()
    q = heads(1, 3, 2, 12)
    monkeypatch.setenv("MLX_DISABLE_COMPILE", "1")
    rope = SITES["rotary"](encoding, tables, "compiled")
    assert rope.way(q, q) == ("plain", "MLX_DISABLE_COMPILE is set")
    np.testing.assert_array_equal(bits(rope.rotate(q, q, Run(3, 2))[0]), bits(by_definition(rope, q, Run(3, 2))))
    monkeypatch.delenv("MLX_DISABLE_COMPILE")
    monkeypatch.setattr(rotary.sys, "platform", "linux")
    monkeypatch.setattr(rotary.shutil, "which", lambda _: None)
    way, reason = SITES["rotary"](encoding, tables, "compiled").way(q, q)
    assert (way, reason) == ("plain", "mx.compile needs g++ on this machine's PATH, and there is none")


def test_a_decode_step_is_traced_by_mx_compile(block_of, spec_of):
    """Nothing of it is read back from the device: mlx refuses to trace what is."""
    block, _ = block_of(spec_of("interleaved"))
    past = [mx.zeros((1, 2, 5, width)) for width in (12, 7)]
    x = mx.ones((1, 1, 20))

    def step(x):
        from portpe.runtimes.mlx.caches import PastCache

        return block(x, None, PastCache(*past))

    np.testing.assert_allclose(np.array(mx.compile(step)(x)), np.array(step(x)), rtol=0, atol=1e-6)


# --- by name ---


def test_the_way_is_chosen_by_detection_or_by_name():
    encoding, tables = tables_of()
    q = heads(1, 3, 2, 12)
    assert SITES["rotary"](encoding, tables).way(q, q) == ("plain", "mlx has no Metal device here")
    assert SITES["rotary"](encoding, tables, "plain").way(q, q) == ("plain", None)
    spec = AttentionSpec(
        hidden_size=8, num_heads=3, num_kv_heads=1, head_dim=16, v_head_dim=4, scale=1.0, rotary=encoding
    )
    assert Attention(spec).rotation_way(mx.float16) == ("plain", "mlx has no Metal device here")
    assert Attention(spec, rotation="fast_rope").rotation_way() == ("fast_rope", None)
    with pytest.raises(SpecError, match="rotary is required for a way of rotation, got None"):
        Attention(spec.model_copy(update={"rotary": None})).rotation_way()
    with pytest.raises(SpecError, match="rotation must be auto or plain here, got 'metal': mlx has no Metal device"):
        SITES["rotary"](encoding, tables, "metal")
    with pytest.raises(SpecError, match="rotation must be one of auto, plain, compiled, metal, fast_rope, got 'quick'"):
        SITES["rotary"](encoding, tables, "quick")
