"""Blocks and graph forms consume addends, rotations and biases: none of them knows which encoding made one."""

import ast
from pathlib import Path

import pytest

from portpe.exporters.onnx.capabilities import FORMS
from portpe.registry import ENCODINGS, SCHEDULES

ROOT = Path(__file__).parent.parent
BLOCKS = (
    "portpe/reference/block.py",
    "exporters/onnx/block.py",
    "exporters/onnx/fused.py",
    *(f"exporters/onnx/{form}.py" for form in FORMS),
    "runtimes/mlx/block.py",
)
SITES = {"none", "embedding", "rotary", "bias"}  # a block has one attribute for each of its hooks
KINDS = {row.kind for row in ENCODINGS.values()} - SITES
CLASSES = {row.spec_class.__name__ for row in (*ENCODINGS.values(), *SCHEDULES.values()) if row.spec_class is not None}


def words(path: Path) -> set[str]:
    """Every name, attribute, import and string of a module, docstrings left aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.update(node.name.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found.add(node.value)
    return found


@pytest.mark.parametrize("block", BLOCKS)
def test_no_block_names_an_encoding(block):
    named = words(ROOT / block) & (KINDS | CLASSES)
    assert not named, f"{block} names {sorted(named)}"


def test_what_the_check_looks_for_is_found_where_it_stands():
    """The site files do name kinds, or the check above would pass for want of anything to find."""
    assert {"alibi", "buckets"} & words(ROOT / "exporters/onnx/bias/__init__.py")
    assert {"RotaryEncoding"} & words(ROOT / "portpe/reference/rotary.py")
