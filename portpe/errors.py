"""The one exception for bad input."""


class SpecError(ValueError):
    """Bad input: a config, a spec, a checkpoint, a bundle or a position that breaks a rule.

    The message is one line that names the field, the rule and the value, and where
    there is a way out, the way out:
    ``SpecError("rope_scaling.factor must be > 0, got -2.0")``.
    """


class NoAttentionError(SpecError):
    """The layer asked for is no attention (Mamba, a convolution), so that it has no spec; others of the stack have."""
