"""Layer: bench. Time, memory and export cost of the forms and their peers, against the limits of the machine."""

if __name__ != "portpe.bench":
    raise ImportError("import portpe.bench: the bare name bench belongs to other distributions")
