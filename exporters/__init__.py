"""Layer: exporters. An AttentionSpec and weights become artefacts: ONNX graphs and MLX folders."""

if __name__ != "portpe.exporters":
    raise ImportError("import portpe.exporters: the bare name exporters belongs to other distributions")
