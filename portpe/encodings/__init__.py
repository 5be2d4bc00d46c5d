"""What a positional encoding is: frozen, validated data; no arithmetic beyond its own defaults.

Four sites, after the hook that a block calls: an *embedding* encoding is added to the
hidden states, a *rotary* encoding turns queries and keys, a query *temperature* multiplies queries, a *bias*
encoding is added to the scores. A rotary encoding takes its frequencies from a *schedule*. One module a site.
"""

from portpe.encodings.axes import (
    AlternatingAxes,
    AnyAxes,
    AxialAxes,
    AxisLayout,
    InterleavedAxes,
    SectionedAxes,
)
from portpe.encodings.bias import AlibiEncoding, BiasEncoding
from portpe.encodings.buckets import AxisBucketsEncoding, BucketsEncoding, DistanceBuckets, GatedBucketsEncoding
from portpe.encodings.decay import XposDecay
from portpe.encodings.embedding import (
    EmbeddingEncoding,
    EmbeddingPart,
    LearnedAxesEncoding,
    LearnedEncoding,
    LearnedGridEncoding,
    SinusoidalEncoding,
    SinusoidalGridEncoding,
)
from portpe.encodings.functions import FireEncoding, KerpleEncoding, SandwichEncoding
from portpe.encodings.gated import ForgetEncoding
from portpe.encodings.grid import GridNetworkEncoding, GridPart, GridTableEncoding, GridVectorsEncoding
from portpe.encodings.parts import (
    LARGEST_INT,
    BiasPart,
    Encoding,
    Factors,
    Flag,
    NonNegativeInt,
    NonNegativeReal,
    Part,
    PositiveInt,
    PositiveReal,
    Shapes,
    Sizes,
)
from portpe.encodings.relative import (
    CopeEncoding,
    DebertaEncoding,
    DistanceBankEncoding,
    ShawEncoding,
    TransformerXlEncoding,
)
from portpe.encodings.rotary import FixedRegime, Pairing, PerSequenceRegime, Regime, RotaryEncoding
from portpe.encodings.schedules import (
    AnySchedule,
    DefaultSchedule,
    DynamicSchedule,
    DynamicYarnSchedule,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    ProportionalSchedule,
    Schedule,
    YarnSchedule,
)
from portpe.encodings.temperature import (
    LogarithmicTemperature,
    PowerTemperature,
    QueryTemperature,
    SteppedTemperature,
)

__all__ = [
    "LARGEST_INT",
    "AlibiEncoding",
    "AlternatingAxes",
    "AnyAxes",
    "AnySchedule",
    "AxialAxes",
    "AxisBucketsEncoding",
    "AxisLayout",
    "BiasEncoding",
    "BiasPart",
    "BucketsEncoding",
    "CopeEncoding",
    "DebertaEncoding",
    "DefaultSchedule",
    "DistanceBankEncoding",
    "DistanceBuckets",
    "DynamicSchedule",
    "DynamicYarnSchedule",
    "EmbeddingEncoding",
    "EmbeddingPart",
    "Encoding",
    "Factors",
    "FireEncoding",
    "FixedRegime",
    "Flag",
    "ForgetEncoding",
    "GatedBucketsEncoding",
    "GridNetworkEncoding",
    "GridPart",
    "GridTableEncoding",
    "GridVectorsEncoding",
    "InterleavedAxes",
    "KerpleEncoding",
    "LearnedAxesEncoding",
    "LearnedEncoding",
    "LearnedGridEncoding",
    "LinearSchedule",
    "Llama3Schedule",
    "LogarithmicTemperature",
    "LongropeSchedule",
    "NonNegativeInt",
    "NonNegativeReal",
    "NtkByPartsSchedule",
    "NtkSchedule",
    "Pairing",
    "Part",
    "PerSequenceRegime",
    "PositiveInt",
    "PositiveReal",
    "PowerTemperature",
    "ProportionalSchedule",
    "QueryTemperature",
    "Regime",
    "RotaryEncoding",
    "SandwichEncoding",
    "Schedule",
    "SectionedAxes",
    "Shapes",
    "ShawEncoding",
    "SinusoidalEncoding",
    "SinusoidalGridEncoding",
    "Sizes",
    "SteppedTemperature",
    "TransformerXlEncoding",
    "XposDecay",
    "YarnSchedule",
]
