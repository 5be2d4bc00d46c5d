"""Rows of the kinds of block: how values are weighed."""

from __future__ import annotations

from portpe.registry.rows import AttentionRow

ATTENTION_ROWS = (
    AttentionRow(
        kind="softmax",
        title="Softmax",
        formula="sum over j of softmax(scale q_i . k_j + bias)_j v_j, q and k rotated",
        source="Vaswani 2017, section 3.2.1",
    ),
    AttentionRow(
        kind="linear",
        title="Linear",
        formula="sum over j of (R_i phi(q_i)) . (R_j phi(k_j)) v_j / sum over j of phi(q_i) . phi(k_j), phi = elu + 1, "
        "R the rotation",
        source="Katharopoulos 2020, section 3.2; Su 2021, section 3.3, for the rotation",
    ),
)
