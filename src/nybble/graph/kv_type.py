"""How the KV cache keeps keys and values."""

from __future__ import annotations

import enum

from ..errors import InvalidParameter, UnsupportedFeature

LARGEST_HEAD_OF_CODES = 512
"""With larger heads, sums of products of int8 codes could leave 32 bits."""


class KVType(enum.Enum):
    """FP32 keeps what it is given; FP16 and BF16 take half the bytes; INT8 are codes with an fp32 scale for each head
    and token: a quarter.

    What a type cannot hold becomes NaN and is reported: in FP16 beyond 65504, in BF16 beyond 3.39e38.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"

    @classmethod
    def parse(cls, name: str) -> KVType:
        """The type called ``name``; raises :class:`InvalidParameter` naming those there are."""
        try:
            return cls(name)
        except ValueError:
            names = ", ".join(kv.value for kv in cls)
            raise InvalidParameter(f"KV cache type {name!r} is not one of {names}") from None

    def check_head(self, head_dim: int) -> None:
        """Raises :class:`UnsupportedFeature` if heads of ``head_dim`` features cannot be kept."""
        if self is KVType.INT8 and head_dim > LARGEST_HEAD_OF_CODES:
            raise UnsupportedFeature(
                f"an int8 KV cache takes heads of at most {LARGEST_HEAD_OF_CODES} features; this model's have "
                f"{head_dim}: choose fp32, fp16 or bf16"
            )
