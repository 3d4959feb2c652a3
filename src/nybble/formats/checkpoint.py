"""What every reader yields: metadata and named tensors that view the mapped file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..quant.tensor import Tensor
from .file_identity import FileIdentity

if TYPE_CHECKING:
    from .onnx_model import OnnxModel

MetadataValue = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model file.

    ``metadata`` uses GGUF's keys (``general.architecture``, ``llama.block_count``, ``tokenizer.ggml.tokens``).
    ``tensors`` uses GGUF's names (``blk.0.attn_q.weight``). Nothing is decoded yet. ``graph`` is that of an ONNX model,
    which has its weights too; ``tensors`` is then empty.
    ``release`` tells the operating system that no page of the file is needed in memory at the moment.
    ``files`` are all that were read; none if what was read has no file.
    ``turns_halves``: rows of q and k are in the order for a RoPE that turns (i, i + head_dim/2), as transformers has
    them, also where GGUF files of the architecture have another.
    """

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, Tensor]
    file_bytes: int
    release: Callable[[], None] = field(default=lambda: None)
    files: tuple[FileIdentity, ...] = ()
    graph: OnnxModel | None = None
    turns_halves: bool = False

    @property
    def architecture(self) -> str:
        """Name of the model family, as the file spells it."""
        return str(self.metadata["general.architecture"])
