"""Layer: runtimes. The names under which a graph takes and gives the tensors of one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from portpe.errors import SpecError
from portpe.interface import Array, BlockInputs, BlockOutputs, check_states, position_shape, stages_of
from portpe.runtimes.cache_layout import LENGTHS
from portpe.spec import AttentionSpec

OUTPUT = "attention_output"


def input_names(spec: AttentionSpec, layer: int) -> dict[str, str]:
    """Graph input -> field of BlockInputs, in the graph's order."""
    names = {name: name for name in ("hidden_states", "position_ids", "attention_mask")}
    if spec.needs_key_positions:
        names["key_position_ids"] = "key_position_ids"
    if spec.causal:
        names |= {f"past_key_values.{layer}.{part}": f"past_{part}" for part in ("key", "value")}
    return names


def state_names(spec: AttentionSpec, layer: int) -> dict[str, str]:
    """Graph input -> name of the spec's ``cached_states``; they follow the other inputs."""
    return {f"past_key_values.{layer}.{name}": name for name in spec.cached_states}


def output_names(spec: AttentionSpec, layer: int) -> tuple[str, ...]:
    """What every graph of this spec gives, stages left aside."""
    parts = ("key", "value", *spec.cached_states) if spec.causal else ()
    return (OUTPUT, *(f"present.{layer}.{part}" for part in parts))


def feeds(spec: AttentionSpec, layer: int, inputs: BlockInputs) -> dict[str, Array]:
    """The call's arrays by graph input.

    Shapes are checked here, because a graph would broadcast ids of one row over a batch without a word (SpecError).
    """
    batch, sequence = inputs.hidden_states.shape[:2]
    total = inputs.past + sequence if spec.causal else sequence
    shapes = {
        "position_ids": position_shape(spec, batch, sequence),
        "attention_mask": (batch, total),
        "key_position_ids": position_shape(spec, batch, total),
    }
    for field in input_names(spec, layer).values():
        shape = getattr(inputs, field).shape
        if shape != shapes.get(field, shape):
            raise SpecError(f"{field} must have shape {shapes[field]}, got {shape}")
    check_states(spec, inputs)
    given = {name: getattr(inputs, field) for name, field in input_names(spec, layer).items()}
    return given | {name: inputs.past_states[state] for name, state in state_names(spec, layer).items()}


def block_outputs(spec: AttentionSpec, layer: int, found: Mapping[str, Array]) -> BlockOutputs:
    """A graph's outputs by name, as the block's; stages are those that the graph gives."""
    key, value = (found.get(f"present.{layer}.{part}") for part in ("key", "value"))
    stages = {stage: found[stage] for stage in stages_of(spec) if stage in found}
    if stages:
        stages["output"] = found[OUTPUT]
    states = {name: found[f"present.{layer}.{name}"] for name in spec.cached_states}
    return BlockOutputs(found[OUTPUT], key, value, stages, states)


def check_names(spec: AttentionSpec, layer: int, inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """Refuse a graph that takes other inputs, or lacks an output. Raises SpecError that names them.

    A graph with a buffer for its cache may be told its lengths besides.
    """
    expected, given = {*input_names(spec, layer), *state_names(spec, layer)}, set(inputs)
    if given & set(LENGTHS):
        expected |= set(LENGTHS)
    if expected - given:
        raise SpecError(f"graph inputs must hold {_listed(expected - given)}, got {_listed(given)}")
    if given - expected:
        raise SpecError(f"graph inputs must be {_listed(expected)} alone, got {_listed(given - expected)} besides")
    missing = set(output_names(spec, layer)) - set(outputs)
    if missing:
        raise SpecError(f"graph outputs must hold {_listed(missing)}, got {_listed(outputs)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
