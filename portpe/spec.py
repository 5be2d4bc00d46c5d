"""One self-attention layer, as far as its numbers go: ``AttentionSpec``."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from portpe import linear_rules
from portpe.encodings import (
    BiasEncoding,
    EmbeddingEncoding,
    Encoding,
    Flag,
    NonNegativeInt,
    Part,
    PositiveInt,
    PositiveReal,
    QueryTemperature,
    RotaryEncoding,
)
from portpe.errors import SpecError
from portpe.layer_parts import EmbeddingProjection, MlaProjection, Norm, OutputGate, ProjectionBiases

SCHEMA_VERSION: Final = 1


class AttentionSpec(Part):
    """What decides the numbers of one self-attention layer.

    Masks go by cache slot, bottom-right aligned; biases and rotations go by position.
    ``window`` w: the query at slot i sees slots i-w+1..i; ``window_radius`` r, without
    causality: |i - j| <= r. ``chunk`` c, with causality: a query sees the positions of its own chunk alone,
    p // c == p' // c (Llama 4). ``scale`` multiplies q.k. ``softcap`` c maps a score s to
    c * tanh(s / c), before the mask. ``sinks``: one learned logit a head joins the softmax
    and takes no value. ``clip_qkv`` clamps q, k and v to +-clip_qkv; v is then multiplied by
    ``value_scale``. ``output_gate`` multiplies what the heads give, before o_proj. ``embed_scale``
    multiplies hidden_states before the embedding encoding is added. ``embedding_to`` ``query_key``: it is added to what
    q_proj and k_proj see, and v_proj sees hidden_states themselves; every layer of a stack has it (DETR).
    ``embedding_norm`` closes the embeddings, before ``input_norm``: layer 0 of mBART or CLIP has both.
    ``max_position_embeddings`` is the trained length, where the config states one.
    ``attention`` ``linear``: with phi(x) = elu(x) + 1, rotations R and the sums over the keys that the masks leave,
    sum (R phi(q)) . (R phi(k)) v / sum phi(q) . phi(k) (Su 2021, equation 19; Katharopoulos 2020): a rotation turns
    features, in the numerator alone. k is cached as it was projected, and its features are made and turned at each
    call: the numerator needs them turned and the normaliser unturned, and k gives both, rounded once.
    ``beyond`` names what the layer's attention has and no field says: its positions are right, and it has no block.
    """

    portpe_spec: Literal[1] = SCHEMA_VERSION
    hidden_size: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    v_head_dim: PositiveInt
    causal: Flag = True
    window: PositiveInt | None = None
    window_radius: NonNegativeInt | None = None
    chunk: PositiveInt | None = None
    scale: PositiveReal
    softcap: PositiveReal | None = None
    sinks: Flag = False
    clip_qkv: PositiveReal | None = None
    value_scale: PositiveReal = 1.0
    output_gate: OutputGate | None = None
    biases: ProjectionBiases = ProjectionBiases()
    projection: Literal["standard", "mla"] = "standard"
    mla: MlaProjection | None = None
    attention: Literal["softmax", "linear"] = "softmax"
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    embedding_norm: Norm | None = None
    input_norm: Norm | None = None
    embedding_projection: EmbeddingProjection | None = None
    embed_scale: PositiveReal | None = None
    embedding: EmbeddingEncoding | None = None
    embedding_to: Literal["input", "query_key"] = "input"
    rotary: RotaryEncoding | None = None
    query_scale: QueryTemperature | None = None
    bias: tuple[BiasEncoding, ...] = ()
    max_position_embeddings: PositiveInt | None = None
    contract: str = "hf"
    beyond: Annotated[str, Field(strict=True, min_length=1)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise SpecError(f"num_heads must be a multiple of num_kv_heads = {self.num_kv_heads}, got {self.num_heads}")
        if self.rotary is not None and self.rotary.width > self.head_dim:
            raise SpecError(f"rotary.width must be <= head_dim = {self.head_dim}, got {self.rotary.width}")
        if self.window is not None and not self.causal:
            raise SpecError(f"window needs causal true, got window {self.window}; without causality give window_radius")
        if self.window_radius is not None and self.causal:
            raise SpecError(f"window_radius needs causal false, got {self.window_radius}; with causality give window")
        if self.embedding is not None and self.embedding.width != self.input_width:
            raise SpecError(
                f"embedding.width must equal the width of hidden_states = {self.input_width}, "
                f"got {self.embedding.width}"
            )
        if self.causal and self.rotary is not None and self.rotary.needs_positions:
            raise SpecError("prefix_tokens, suffix_tokens and centred coordinates need causal false, got causal true")
        for encoding in self.encodings:
            encoding.check_layer(self)
        axes = {encoding.position_axes for encoding in self.encodings}
        if len(axes) > 1:
            raise SpecError(f"encodings of one layer must take positions of as many axes, got {sorted(axes)}")
        self._biases_fit()
        if (self.q_norm is None) != (self.k_norm is None):
            raise SpecError("q_norm and k_norm must be given together or not at all, got one of them")
        if self.chunk is not None and (not self.causal or self.position_axes > 1):
            raise SpecError(f"chunk needs causal true and positions of one axis, got chunk {self.chunk}")
        self._latents_fit()
        self._values_fit()
        self._decay_fits()
        if self.attention == "linear":
            linear_rules.check(self)
        return self

    def _biases_fit(self) -> None:
        """Each has tensors of its own, and all know one grid."""
        owners: dict[str, str] = {}
        for part in self.bias:
            for tensor in part.weight_shapes(self):
                if tensor in owners:
                    raise SpecError(
                        f"bias must have each tensor once, got {tensor} in {owners[tensor]} and in {part.kind}"
                    )
                owners[tensor] = part.kind
        grids = {encoding.position_ends for encoding in self.encodings} - {None}
        if len(grids) > 1:
            raise SpecError(f"encodings of one layer must know one grid, got {sorted(map(str, grids))}")

    def _decay_fits(self) -> None:
        """A decay scales queries up and keys down: products of both are right, and what else meets one alone is not."""
        if self.rotary is None or self.rotary.decay is None:
            return
        if self.q_norm is not None and self.q_norm.when == "after":
            raise SpecError("q_norm.when must be before with rotary.decay, whose scales a norm would undo, got after")
        for part in self.bias:
            if part.reads_queries:
                raise SpecError(
                    f"bias must not read queries or keys with rotary.decay, which scales them, got {part.kind}"
                )

    def _latents_fit(self) -> None:
        mla = self.mla
        if (self.projection == "mla") != (mla is not None):
            has = "none" if mla is None else "one"
            raise SpecError(f"mla must be given exactly with projection 'mla', got {has} with {self.projection!r}")
        if mla is None:
            return
        if self.num_kv_heads != self.num_heads:
            raise SpecError(f"num_kv_heads must be num_heads = {self.num_heads} with mla, got {self.num_kv_heads}")
        if mla.qk_rope_head_dim >= self.head_dim:
            raise SpecError(f"mla.qk_rope_head_dim must be < head_dim = {self.head_dim}, got {mla.qk_rope_head_dim}")
        rotary = self.rotary
        if rotary is not None and (rotary.width, rotary.channels) != (mla.qk_rope_head_dim, "last"):
            raise SpecError(
                f"rotary must turn the last {mla.qk_rope_head_dim} channels, mla.qk_rope_head_dim, "
                f"got the {rotary.channels} {rotary.width}"
            )
        if self.q_norm is not None or self.v_norm is not None or self.clip_qkv is not None:
            raise SpecError("q_norm, k_norm, v_norm and clip_qkv must be left out with mla, got one")
        if self.value_scale != 1:
            raise SpecError(f"value_scale must be 1 with mla, which has mla.kv_scale, got {self.value_scale}")
        if self.biases.q or self.biases.k or self.biases.v:
            raise SpecError("biases must be of o alone with mla, which has mla.bias, got one of q, k or v")

    def _values_fit(self) -> None:
        """Nothing rotates values, and a norm undoes their scale. Where v_proj sees hidden_states itself, nothing may
        stand between them and the projections.
        """
        if self.v_norm is not None and self.v_norm.when == "after":
            raise SpecError("v_norm.when must be before: nothing rotates values, got after")
        if self.v_norm is not None and self.value_scale != 1:
            raise SpecError(f"value_scale must be 1 with v_norm, which divides it out, got {self.value_scale}")
        if self.embedding_to == "input":
            return
        if self.embedding is None:
            raise SpecError("embedding_to must be input without an embedding, got query_key")
        between = ("embed_scale", "embedding_projection", *self.input_norms, "mla", "output_gate", "bias")
        for name in between:
            if getattr(self, name):
                raise SpecError(f"{name} must be left out where embedding_to is query_key, got one")
        if self.attention != "softmax":
            raise SpecError(f"attention must be softmax where embedding_to is query_key, got {self.attention}")

    @property
    def values_see_input(self) -> bool:
        """Whether v_proj sees hidden_states and not what the embedding encoding was added to."""
        return self.embedding_to == "query_key"

    @property
    def input_width(self) -> int:
        """The last dimension of hidden_states."""
        return self.hidden_size if self.embedding_projection is None else self.embedding_projection.width

    @property
    def input_norms(self) -> dict[str, Norm]:
        """The norms between the embeddings and the projections, by name, in order."""
        norms = {"embedding_norm": self.embedding_norm, "input_norm": self.input_norm}
        return {name: norm for name, norm in norms.items() if norm is not None}

    @property
    def gate_width(self) -> int:
        """How many numbers gate_proj gives a token; 0 without an output gate."""
        if self.output_gate is None:
            return 0
        return self.num_heads * (self.v_head_dim if self.output_gate.scope == "channel" else 1)

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """Those that the layer has, in the order of the block."""
        sites = (self.embedding, self.rotary, self.query_scale, *self.bias)
        return tuple(site for site in sites if site is not None)

    @property
    def cached_states(self) -> dict[str, int]:
        """What a cache keeps besides keys and values: by name, how many float32 numbers a token has."""
        found: dict[str, int] = {}
        for encoding in self.encodings if self.causal else ():
            found |= encoding.cached_states(self)
        return found

    @property
    def position_axes(self) -> int:
        """How many coordinates a position has; position_ids are (B, S) where it is 1, else (axes, B, S)."""
        return max((encoding.position_axes for encoding in self.encodings), default=1)

    @property
    def position_ends(self) -> tuple[int, ...] | None:
        """By axis the first coordinate that does not exist, where an encoding knows the cells of a grid alone."""
        ends = [encoding.position_ends for encoding in self.encodings if encoding.position_ends is not None]
        return tuple(min(each) for each in zip(*ends, strict=True)) if ends else None

    @property
    def needs_key_positions(self) -> bool:
        """Whether a graph takes key_position_ids besides position_ids."""
        return bool(self.bias) or self.chunk is not None or self.deferred_rotation

    @property
    def deferred_rotation(self) -> bool:
        """Whether keys are cached before rotation, and all of them turned at each call."""
        return self.rotary is not None and (self.attention == "linear" or self.rotation_by_length)

    @property
    def caches_projected_keys(self) -> bool:
        """Whether k is cached as it was projected, because features or rotation are made anew at each call."""
        return self.attention == "linear" or self.deferred_rotation

    @property
    def rotation_by_length(self) -> bool:
        """Whether each call turns by the schedule of each batch row's own length."""
        return self.rotary is not None and self.rotary.defers_rotation

    @property
    def length_dependent(self) -> bool:
        """Whether the frequencies depend on the current length and no regime says whose that is."""
        return self.rotary is not None and self.rotary.schedule.length_dependent and self.rotary.regime is None

    @property
    def refusal(self) -> str | None:
        """Why no block computes this layer; None where a block does."""
        if self.beyond is None:
            return None
        return f"the layer's attention has {self.beyond}, which no block carries; spec and tables give its positions"

    @property
    def precision(self) -> Literal["exact", "hf"]:
        """``hf`` if any encoding takes transformers' own float32 numbers."""
        return "hf" if any(getattr(site, "precision", "exact") == "hf" for site in self.encodings) else "exact"

    def with_precision(self, precision: Literal["exact", "hf"]) -> AttentionSpec:
        """The same spec with every encoding's numbers exact, or as transformers makes them.

        Raises SpecError: transformers has no such encoding.
        """
        if precision == "hf" and self.rotary is not None and self.rotary.decay is not None:
            raise SpecError("precision must be exact with rotary.decay, which transformers does not have, got hf")

        def turned(site: Any) -> Any:
            has = site is not None and "precision" in type(site).model_fields
            return site.model_copy(update={"precision": precision}) if has else site

        return self.model_copy(
            update={
                "rotary": turned(self.rotary),
                "query_scale": turned(self.query_scale),
                "embedding": turned(self.embedding),
                "bias": tuple(turned(b) for b in self.bias),
            }
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AttentionSpec:
        """A spec from plain JSON data (lists where tuples stand). Raises SpecError."""
        if not isinstance(data, dict):
            raise SpecError(f"a spec must be a JSON object, got {type(data).__name__}")
        if type(data.get("portpe_spec")) is not int or data["portpe_spec"] != SCHEMA_VERSION:
            raise SpecError(f"portpe_spec must be {SCHEMA_VERSION}, got {data.get('portpe_spec')!r}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; ``from_dict`` gives an equal spec back."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """``to_dict`` as indented JSON with a final newline."""
        return json.dumps(self.to_dict(), indent=2) + "\n"
