"""portpe's MLX module, and mlx-lm's Llama attention."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from portpe.bench.case import Case
from portpe.bench.competitor import USUAL, Prepared, installed, memory
from portpe.bench.competitors import llama
from portpe.bench.subject import Subject
from portpe.interface import Array, BlockInputs
from portpe.runtimes.base import Availability

ON_CPU = "MLX's CPU backend: its speed is made for Apple's GPUs, and this is no measure of it"
SCORE_ARRAYS = 4.0
SLOWER = 20.0  # times that mlx's matrix products on a CPU take longer than the machine's limit, about


@dataclass
class MlxModule:
    """A module in the mlx-lm convention: ``module(x, mask, cache)``."""

    name: str
    peer: bool
    threads: str
    packages: tuple[str, ...]
    refuse: Callable[[Subject], str | None]
    make: Callable[[Subject], Any]
    twin: bool = False
    runtime: str = "mlx"
    _modules: dict[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> str:
        return ON_CPU if self._on_cpu() else ""

    @property
    def slowness(self) -> float:
        return SLOWER if self._on_cpu() else USUAL

    def _on_cpu(self) -> bool:
        if not self.availability().usable:
            return False
        import mlx.core as mx

        return bool(mx.default_device().type == mx.cpu)

    def availability(self) -> Availability:
        os.environ.setdefault("MLX_ENABLE_TF32", "0")
        return installed(*self.packages, extra="pip install 'portpe[mlx]' mlx-lm")

    def refusal(self, subject: Subject) -> str | None:
        return self.refuse(subject)

    def memory(self, subject: Subject, case: Case) -> int:
        return memory(subject, case, SCORE_ARRAYS)

    def prepare(self, subject: Subject, case: Case, inputs: BlockInputs) -> Prepared:
        import mlx.core as mx
        from mlx_lm.models import cache as caches

        from portpe.runtimes.mlx.weights import to_mlx, to_numpy

        if subject.key not in self._modules:
            self._modules[subject.key] = self.make(subject)
        module = self._modules[subject.key]
        mx.clear_cache()  # of what an earlier case freed
        hidden = to_mlx(inputs.hidden_states)
        make: Any = caches.KVCache
        cache = make() if subject.spec.causal else None
        if cache is not None and case.past:
            cache.update_and_fetch(to_mlx(inputs.past_key), to_mlx(inputs.past_value))
        mask = "causal" if subject.spec.causal and case.rows > 1 else None

        def run() -> Any:
            if cache is not None:
                cache.offset = case.past  # what a call wrote after it is written again
            output = module(hidden, mask, cache)
            mx.eval(output)
            return output

        def array(output: mx.array) -> Array:
            return to_numpy(output)

        return Prepared(run, array)


def competitors(threads: int) -> list[MlxModule]:
    """Ours and theirs."""
    del threads
    statement = f"one stream; the threads of its BLAS are OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    return [
        MlxModule("mlx portpe", False, statement, ("mlx.core", "mlx_lm"), lambda _: None, _ours, twin=True),
        MlxModule("mlx-lm", True, statement, ("mlx_lm", "mlx.core"), lambda s: llama.beyond_llama(s.spec), _theirs),
    ]


def _ours(subject: Subject) -> Any:
    import mlx.core as mx

    from portpe.runtimes.mlx import Attention

    block = Attention(subject.spec, tables=subject.tables)
    block.load(subject.weights)
    block.set_dtype(getattr(mx, subject.dtype))
    return block


def _theirs(subject: Subject) -> Any:
    import mlx.core as mx
    from mlx_lm.models import llama as mlx_llama

    from portpe.runtimes.mlx.weights import to_mlx

    spec = subject.spec
    assert spec.rotary is not None
    schedule = spec.rotary.schedule.model_dump()
    theta, kind = schedule.pop("rope_theta"), schedule.pop("kind")
    attention = mlx_llama.Attention(
        mlx_llama.ModelArgs(
            model_type="llama",
            hidden_size=spec.hidden_size,
            num_hidden_layers=1,
            intermediate_size=16,
            num_attention_heads=spec.num_heads,
            rms_norm_eps=1e-6,
            vocab_size=8,
            head_dim=spec.head_dim,
            max_position_embeddings=llama.POSITIONS,
            num_key_value_heads=spec.num_kv_heads,
            attention_bias=spec.biases.q,
            rope_theta=theta,
            rope_scaling=None if kind == "default" else {"rope_type": kind, **schedule},
        )
    )
    attention.load_weights([(name, to_mlx(array)) for name, array in subject.weights.items()])
    attention.set_dtype(getattr(mx, subject.dtype))
    return attention
