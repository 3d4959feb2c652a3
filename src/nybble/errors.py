"""Every error a user can cause, each one readable line.

The command line prints ``str(error)`` and exits with 1; nothing here is ever shown as a traceback.
Messages name the file, the tensor or key, what was expected, what was found, and what to do.
"""

from __future__ import annotations


class NybbleError(Exception):
    """Base of all errors raised on purpose by nybble."""


class ModelFileError(NybbleError):
    """A model file is malformed, truncated or contradicts itself.

    ``where`` names the place inside the file (a key, a tensor, a byte offset).
    """

    def __init__(self, file: object, where: str, problem: str) -> None:
        self.file = str(file)
        self.where = where
        self.problem = problem
        place = f"{self.file}: {where}" if where else self.file
        super().__init__(f"{place}: {problem}")


class UnsupportedFeature(NybbleError):
    """The model is well formed but needs something nybble does not have; refused rather than guessed."""


class ModelNotFound(NybbleError):
    """No model by that name; the message lists every place that was looked at."""


class DownloadFailed(NybbleError):
    """A model could not be fetched or did not match its checksum."""


class ContextOverflow(NybbleError):
    """A prompt is longer than the context; the message has both counts."""

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length
        super().__init__(
            f"the prompt is {prompt_tokens} tokens but the context holds {context_length}; "
            "shorten the prompt or raise the context length (--context)"
        )


class InsufficientMemory(NybbleError):
    """Loading would need more memory than is available; refused before anything is allocated."""


class InvalidParameter(NybbleError, ValueError):
    """A parameter given by the caller is outside its legal range."""


class TemplateError(NybbleError):
    """A chat template is broken, unsafe, or exceeded its limits."""


class NumericalError(NybbleError):
    """Logits were NaN or infinite; the message names the first op that produced one."""


class BenchmarkFailed(NybbleError):
    """Something could not be measured: a worker process ended early, or another engine is missing or failed."""


class KernelUnavailable(NybbleError):
    """A kernel or instruction set was asked for that this CPU or build does not have."""
