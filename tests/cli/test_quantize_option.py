"""``portpe export --quantize`` from the command line to the reports."""

import json


def test_a_quantised_bundle_from_export_to_parity(portpe, written, tmp_path):
    folder = tmp_path / "b"
    done = portpe("export", written(), "-o", folder, "--quantize", "int4", "--quantize", "int8", "--form", "standard")
    assert done.status == 0, done
    assert done.err == ""
    lines = done.out.strip().splitlines()[-2:]
    for line, kind in zip(lines, ("float32_int4", "float32_int8"), strict=True):
        assert line.startswith(f"{kind}: its weights move the output by ")
    done = portpe("parity", folder, "--quick", "--runtime", "onnxruntime")
    assert done.status == 0, done
    for line in lines:
        assert line in " ".join(done.out.split())
    report = json.loads((folder / "report.json").read_text())
    assert set(report["quantization"]) == {"float32_int4", "float32_int8"}
    assert {check["dtype"] for check in report["checks"]} == {"float32", "float32_int4", "float32_int8"}
    if (folder / "report.html").is_file():
        assert "What quantisation costs" in (folder / "report.html").read_text()


def test_no_golden_values_no_error(portpe, written, tmp_path):
    done = portpe("export", written(), "-o", tmp_path / "b", "--quantize", "int8", "--no-golden")
    assert done.status == 0, done
    assert "float32_int8: what its weights cost is not measured, because there are no golden values" in done.out


def test_bad_values(refused, written, tmp_path):
    line = refused("export", written(), "-o", tmp_path / "b", "--quantize", "int3")
    assert line == "portpe: quantize must be one of int4, int8, got 'int3'"
    line = refused("export", written(), "-o", tmp_path / "b", "--quantize", "int4", "--dtype", "bf16")
    assert line == "portpe: quantize int4 needs dtype float32 or float16, got bfloat16; export that one apart"
    assert not (tmp_path / "b").exists()
