"""Two specs compared: which fields differ, and from which position on the numbers do.

A difference of cos, sin, an embedding or a bias shows in a type once it exceeds the type's unit roundoff. Where it
depends on trained numbers, both layers are taken to hold the same ones, and the answer says so.
"""

from portpe.diff.comparison import Comparison, Difference, compare
from portpe.diff.search import HORIZON, ROUNDOFF

__all__ = ["HORIZON", "ROUNDOFF", "Comparison", "Difference", "compare"]
