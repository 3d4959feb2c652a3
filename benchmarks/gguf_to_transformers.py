"""A GGUF model as a folder of transformers in fp32, which exporters of other engines start from.

python gguf_to_transformers.py MODEL.gguf FOLDER; needs torch, transformers, accelerate and gguf.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Write the folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = Path(sys.argv[1])
    of_file = {"gguf_file": source.name}
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **of_file)
    # It must not say that it is quantised: exporters would refuse it.
    model.config.dtype = torch.float32
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(sys.argv[2])
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, **of_file)
    tokenizer.save_pretrained(sys.argv[2])


if __name__ == "__main__":
    main()
