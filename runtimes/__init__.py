"""Layer: runtimes. Artefacts become numbers: PyTorch, ONNX Runtime, the ONNX reference evaluator, MLX."""

if __name__ != "portpe.runtimes":
    raise ImportError("import portpe.runtimes: the bare name runtimes belongs to other distributions")
