"""As much of aiter as its MoE stage 1 needs, in numpy: the names, the signatures and the split-K fault."""

import enum

QuantType = enum.Enum("QuantType", ["No", "per_Tensor", "per_Token", "per_1x32", "per_1x128", "per_128x128"])
ActivationType = enum.Enum("ActivationType", ["Silu", "Gelu"])
