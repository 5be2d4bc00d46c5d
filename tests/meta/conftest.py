"""Planting faults: in the ONNX graphs of a bundle by editing them, in the MLX module by changing what it holds."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from portpe import bundle as bundles
from portpe.bundle import Bundle
from portpe.exporters.onnx import ExternalWeight, build
from portpe.parity.faults import Fault
from portpe.tables import table_set

TYPES = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


# --- ONNX ------------------------------------------------------------------------------------


def plant_in_graphs(folder, fault: Fault) -> None:
    """Change the production and the stages graph in place and renew their digests."""
    bundle = Bundle.open(folder, verify=False)
    tables = bundle.tables()
    for path in sorted((folder / "onnx").glob("*.onnx")):
        model = onnx.load(path, load_external_data=False)
        if fault.positions == "offset_in_decode":
            _add_one_where_there_is_a_past(model)
        elif fault.positions == "slots":
            _count_slots(model)
        elif fault.features is not None:
            _mistake_features(model, fault.features)
        elif fault.on_keys is not None:
            _scale_keys(model)
        elif fault.settings is not None:
            model = _follow(bundle, model, fault, stages=path.name.endswith(".stages.onnx"))
        elif fault.gate is not None:
            _misplace_gate(model, fault.gate)
        else:
            _replace_tables(model, fault.tables(bundle.spec, tables))
        path.write_bytes(model.SerializeToString())


def _faulty_tables(bundle, fault):
    """Those of the faulty settings, changed further where the fault changes tables too."""
    new = table_set(fault.settings(bundle.spec), bundle.table_positions)
    return new if fault.tables is None else fault.tables(bundle.spec, new)


def _follow(bundle, model, fault, *, stages):
    """A graph that follows another spec: its tables replaced where shapes allow, else built anew on the same data."""
    spec, new = fault.settings(bundle.spec), _faulty_tables(bundle, fault)
    same_structure = spec.model_copy(update={"rotary": bundle.spec.rotary}) == bundle.spec and _turns_alike(
        spec, bundle
    )
    if same_structure:
        _replace_tables(model, new)
        return model
    external = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {entry.key: entry.value for entry in tensor.external_data}
            dtype = TYPES[tensor.data_type]
            external[tensor.name] = ExternalWeight(
                place["location"], int(place["offset"]), int(place["length"]), dtype, tuple(tensor.dims)
            )
    dtype = next(iter(external.values())).dtype
    built = build(spec, form="portable", dtype=dtype, layer=bundle.layer, tables=new, weights=external, stages=stages)
    return onnx.load_from_string(built)


def _turns_alike(spec, bundle):
    if spec.rotary is None:
        return False
    kept = ("width", "channels", "pairing", "pairing_out", "own_key_tables")
    return all(getattr(spec.rotary, name) == getattr(bundle.spec.rotary, name) for name in kept)


def _scale_keys(model):
    """What multiplies the rotated queries, (batch, 1, sequence, 1), multiplies the rotated keys too."""
    nodes = list(model.graph.node)
    by_output = {name: place for place, node in enumerate(nodes) for name in node.output}
    place, scaled = by_output["k_rotated"], nodes[by_output["q_rotated"]]
    assert scaled.op_type == "Mul"
    assert place > by_output["q_rotated"]
    nodes[place].output[list(nodes[place].output).index("k_rotated")] = "fault_keys"
    nodes.insert(place + 1, helper.make_node("Mul", ["fault_keys", scaled.input[1]], ["k_rotated"]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _replace_tables(model, tables):
    for tensor in model.graph.initializer:
        if tensor.name in tables:
            faulty = tables[tensor.name].reshape(tuple(tensor.dims))  # slopes are shaped to broadcast
            tensor.CopyFrom(numpy_helper.from_array(faulty, tensor.name))


def _rewire(model, changed, nodes):
    """Feed every reader of an input from a new value instead; ``nodes`` compute it."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in changed:
                node.input[place] = changed[name]
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])


def _constant(model, name, value):
    model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return name


def _past_length(model):
    """Nodes that give the length of the past as fault_past (), from the shapes of mask and hidden states."""
    one = _constant(model, "fault_axis", [1])
    axes = _constant(model, "fault_squeeze", [0])
    return [
        helper.make_node("Shape", ["attention_mask"], ["fault_mask_shape"]),
        helper.make_node("Shape", ["hidden_states"], ["fault_rows_shape"]),
        helper.make_node("Gather", ["fault_mask_shape", one], ["fault_total_1"]),
        helper.make_node("Gather", ["fault_rows_shape", one], ["fault_rows_1"]),
        helper.make_node("Squeeze", ["fault_total_1", axes], ["fault_total"]),
        helper.make_node("Squeeze", ["fault_rows_1", axes], ["fault_rows"]),
        helper.make_node("Sub", ["fault_total", "fault_rows"], ["fault_past"]),
    ]


def _add_one_where_there_is_a_past(model):
    one = _constant(model, "fault_one", 1)
    nodes = [
        *_past_length(model),
        helper.make_node("Min", ["fault_past", one], ["fault_step"]),
        helper.make_node("Add", ["position_ids", "fault_step"], ["fault_position_ids"]),
    ]
    _rewire(model, {"position_ids": "fault_position_ids"}, nodes)


def _count_slots(model):
    """position_ids become past + row, key_position_ids the slot, whatever was given."""
    zero, one = _constant(model, "fault_zero", 0), _constant(model, "fault_one", 1)
    nodes = [
        *_past_length(model),
        helper.make_node("Range", ["fault_past", "fault_total", one], ["fault_new"]),
        helper.make_node("Range", [zero, "fault_total", one], ["fault_all"]),
        helper.make_node("Sub", ["position_ids", "position_ids"], ["fault_zeros"]),
        helper.make_node("Add", ["fault_zeros", "fault_new"], ["fault_position_ids"]),
    ]
    changed = {"position_ids": "fault_position_ids"}
    if any(value.name == "key_position_ids" for value in model.graph.input):
        nodes += [
            helper.make_node("Sub", ["key_position_ids", "key_position_ids"], ["fault_key_zeros"]),
            helper.make_node("Add", ["fault_key_zeros", "fault_all"], ["fault_key_position_ids"]),
        ]
        changed["key_position_ids"] = "fault_key_position_ids"
    _rewire(model, changed, nodes)


def _mistake_features(model, mistake):
    """Linear attention's nodes, known by the stage in their names, rewired or joined by others in their order."""
    if mistake == "normaliser_rotated":
        rotated = {"q_features": "q_rotated", "k_features": "k_rotated"}
        for node in model.graph.node:
            if node.name.startswith("normaliser/"):
                node.input[:] = [rotated.get(name, name) for name in node.input]
        return
    zero, one = (numpy_helper.from_array(np.float32(value), f"fault_{value}") for value in (0, 1))
    model.graph.initializer.extend([zero, one])
    nodes = list(model.graph.node)
    for part in "qk":
        change = _take_one_off if mistake == "without_one" else _rotate_first
        nodes = list(change(nodes, part))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _take_one_off(nodes, part):
    for node in nodes:
        if f"{part}_features" in node.output:
            node.output[0] = f"fault_{part}"
            yield node
            yield helper.make_node("Sub", [f"fault_{part}", "fault_1"], [f"{part}_features"])
        else:
            yield node


def _rotate_first(nodes, part):
    """q_rotated and k_rotated become features of rotated q and k; q_features and k_features stay what they are."""
    made = {name for node in nodes if node.name.startswith(f"{part}_features/") for name in node.output}
    first = next(node for node in nodes if node.name.startswith(f"{part}_features/"))
    source = next(name for name in first.input if name not in made)
    for node in nodes:
        if node is first:
            yield helper.make_node("Cast", [source], [f"fault_{part}"], to=TensorProto.FLOAT)
        if node.name.startswith(f"{part}_rotated/"):
            node.input[:] = [f"fault_{part}" if name == f"{part}_features" else name for name in node.input]
        if f"{part}_rotated" not in node.output:
            yield node
            continue
        names = [f"fault_{part}_{step}" for step in ("turned", "low", "exp", "high")]
        node.output[0] = names[0]
        yield node
        yield helper.make_node("Min", [names[0], "fault_0"], [names[1]])
        yield helper.make_node("Exp", [names[1]], [names[2]])
        yield helper.make_node("Relu", [names[0]], [names[3]])
        yield helper.make_node("Add", names[2:], [f"{part}_rotated"])


def _misplace_gate(model, how):
    """The gate's activation, or its product, becomes an Identity; ``late``: the output is multiplied instead."""
    [activation] = [node for node in model.graph.node if node.op_type == "Sigmoid"]
    [product] = [node for node in model.graph.node if activation.output[0] in node.input]
    changed = activation if how == "raw" else product
    changed.op_type = "Identity"
    del changed.input[1:]
    if how == "late":
        [last] = [node for node in model.graph.node if "attention_output" in node.output]
        last.output[0] = "fault_output"
        [output] = [value for value in model.graph.output if value.name == "attention_output"]
        model.graph.node.extend(
            [
                helper.make_node("Cast", ["fault_output"], ["fault_wide"], to=TensorProto.FLOAT),
                helper.make_node("Mul", ["fault_wide", activation.output[0]], ["fault_product"]),
                helper.make_node("Cast", ["fault_product"], ["attention_output"], to=output.type.tensor_type.elem_type),
            ]
        )


# --- MLX -------------------------------------------------------------------------------------


def plant_in_module(folder, fault: Fault, patch) -> None:
    """Change the MLX module of a bundle: its config.json, its tables, or the positions it is called with."""
    from portpe.runtimes.mlx.block import Attention
    from portpe.runtimes.mlx.runtime import MlxSession

    bundle = Bundle.open(folder, verify=False)
    if fault.settings is not None:
        config = folder / "mlx" / "config.json"
        data = json.loads(config.read_text())
        faulty_spec = fault.settings(bundle.spec)
        config.write_text(json.dumps(data | {"portpe": faulty_spec.to_dict(), "sliding_window": faulty_spec.window}))
        if fault.tables is not None:
            _hold(patch, _faulty_tables(bundle, fault))
    elif fault.on_keys is not None:
        finish_right = Attention._finish_rotated

        def finish(self, stages, looked_up):
            finish_right(self, stages, looked_up)
            stages["k_rotated"] = self.query_scale(stages["k_rotated"], looked_up)

        patch.setattr(Attention, "_finish_rotated", finish)
    elif fault.tables is not None:
        _hold(patch, fault.tables(bundle.spec, bundle.tables()))
    elif fault.features is not None:
        _mistake_features_of_module(patch, fault.features)
    elif fault.gate is not None:
        _misplace_gate_in(Attention, fault.gate, patch)
    else:
        run_right = MlxSession.run
        patch.setattr(
            MlxSession,
            "run",
            lambda self, inputs, *, stages=False: run_right(self, _misplaced(inputs, fault), stages=stages),
        )


def _mistake_features_of_module(patch, mistake):
    import mlx.core as mx

    from portpe.runtimes.mlx import linear_attention
    from portpe.runtimes.mlx.block import Attention

    right, late, quotients = linear_attention.features, Attention._turn_late, Attention._without_softmax
    if mistake == "without_one":
        patch.setattr(linear_attention, "features", lambda x: right(x) - 1)
    elif mistake == "normaliser_rotated":

        def mixed(self, stages, values, mask):
            of_rotated = stages | {f"{part}_features": stages[f"{part}_rotated"] for part in "qk"}
            context = quotients(self, of_rotated, values, mask)
            stages |= {name: of_rotated[name] for name in ("scores", "normaliser", "probs")}
            return context

        patch.setattr(Attention, "_without_softmax", mixed)
    else:

        def rotated_first(self, stages, keys, queries, places, lengths):
            with patch.context() as inner:
                inner.setattr(linear_attention, "features", lambda x: x.astype(mx.float32))
                late(self, stages, keys, queries, places, lengths)
            stages |= {f"{part}_rotated": right(stages[f"{part}_rotated"]) for part in "qk"}
            stages |= {"q_features": right(stages["q"]), "k_features": right(keys)}
            return stages["k_rotated"]

        patch.setattr(Attention, "_turn_late", rotated_first)


def _hold(patch, tables):
    """Give every module of MLX these tables."""
    from portpe.runtimes.mlx.block import Attention

    build_right = Attention.__init__
    patch.setattr(Attention, "__init__", lambda self, spec, **given: build_right(self, spec, tables=tables))


def _misplace_gate_in(attention, how, patch):
    if how == "raw":
        by_head = lambda rows, heads: rows.reshape(*rows.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # noqa: E731
        patch.setattr(
            attention, "_gated", lambda self, context, x: context * by_head(self.gate_proj(x), context.shape[1])
        )
        return
    seen, project = [], attention._output
    patch.setattr(attention, "_gated", lambda _self, context, x: [context, seen.append(x)][0])
    if how == "late":
        sigmoid = lambda rows: 1 / (1 + (-rows).exp())  # noqa: E731
        patch.setattr(
            attention, "_output", lambda self, context: project(self, context) * sigmoid(self.gate_proj(seen[-1]))
        )


def _misplaced(inputs, fault):
    if fault.positions == "offset_in_decode":
        return dataclasses.replace(inputs, position_ids=inputs.position_ids + min(inputs.past, 1))
    slots = np.arange(inputs.attention_mask.shape[1])[None].repeat(len(inputs.attention_mask), 0)
    return dataclasses.replace(inputs, position_ids=slots[:, inputs.past :], key_position_ids=slots)


# --- fixtures --------------------------------------------------------------------------------


def renew_digests(folder) -> None:
    """Fit the manifest to files that were changed; big files that kept their size are taken as unchanged."""
    manifest = json.loads((folder / "portpe.json").read_text())
    for name, entry in manifest["files"].items():
        size = (folder / name).stat().st_size
        if size < 2**23 or size != entry["bytes"]:
            entry |= {"bytes": size, "sha256": bundles.digest(folder / name)}
    (folder / "portpe.json").write_text(json.dumps(manifest))


@pytest.fixture
def planted(monkeypatch):
    """A context: the bundle in this folder with a fault in one runtime's artefact, its digests renewed."""

    @contextlib.contextmanager
    def get(folder, fault, runtime):
        small = [*(folder / "onnx").glob("*.onnx"), folder / "mlx" / "config.json", folder / "portpe.json"]
        before = {path: path.read_bytes() for path in small}
        try:
            with monkeypatch.context() as patch:
                if runtime == "mlx":
                    plant_in_module(folder, fault, patch)
                else:
                    plant_in_graphs(folder, fault)
                renew_digests(folder)
                yield Bundle.open(folder, verify=max(path.stat().st_size for path in folder.rglob("*")) < 2**23)
        finally:
            for path, content in before.items():
                path.write_bytes(content)

    return get


MARGINS: list[tuple[str, ...]] = []


@pytest.fixture(scope="session")
def margins():
    """Rows (size, runtime, fault, type, first divergence, error over bound) for the table at the end."""
    return MARGINS


def pytest_terminal_summary(terminalreporter):
    """How far beyond its bound each planted fault stands, where it is first seen."""
    if MARGINS:
        terminalreporter.section("planted faults: how many times its bound an error reaches")
        widths = [max(len(row[column]) for row in MARGINS) for column in range(len(MARGINS[0]))]
        for row in MARGINS:
            terminalreporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
