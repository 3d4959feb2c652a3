"""The entry point: runs a command, and turns whatever happens into an exit code and at most one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from ..errors import InvalidParameter, NybbleError
from .exit_codes import FAILURE, INTERRUPTED, SUCCESS, USAGE
from .output import prepare_streams, print_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``nybble`` with ``arguments`` (by default those of the process); returns its exit code.

    0: done. 1: failed, for a reason told in one line on standard error. 2: wrong usage. 130: interrupted.
    """
    prepare_streams()
    output = sys.stdout
    try:
        code = _run(arguments)
        output.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = FAILURE  # whoever read the output had enough; nobody is left to be told
    except InvalidParameter as error:
        code = _fail(error, USAGE)
    except NybbleError as error:
        code = _fail(error, FAILURE)
    except OSError as error:
        code = _fail(_described(error), FAILURE)
    except MemoryError:
        code = _fail("out of memory; use a smaller model, or lower the context length (--context)", FAILURE)
    _abandon_unless_writable(output)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    # Imported here so that Ctrl-C during the import is quiet as well.
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "run":
        from .quick_arguments import quick_arguments

        if (parameters := quick_arguments(arguments[1:])) is not None:
            from .answering import answer_prompt

            return answer_prompt(**parameters)
    from typer.main import get_command

    from .app import app

    try:
        get_command(app).main(args=arguments, prog_name="nybble")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else FAILURE
    return SUCCESS


def _fail(problem: object, code: int) -> int:
    print_error(problem)
    return code


def _described(error: OSError) -> str:
    # Errors of files have the name of theirs; those of the standard streams have none.
    return f"{error.filename or 'standard input or output'}: {error.strerror or error}"


def _abandon_unless_writable(stream: TextIO) -> None:
    """Python flushes the stream once more when it ends, and would complain about what was told already."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
