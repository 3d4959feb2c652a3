"""Chat templates: a conversation as the text, and the token ids, that a model was trained to read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidParameter, ModelFileError, TemplateError
from .control_tokens import ControlTokens
from .vocabulary import read_list, read_special_id

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

MAXIMUM_SOURCE_CHARACTERS = 1 << 16
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "ipython"))
"""Roles a message may have; templates write them between control characters, so nothing else may stand there."""

_HINT = "run with --raw to send text without a template"
_FRAME_NAME = "<template>"

_MARKER_CHARACTERS = range(0xFDD0, 0xFDF0)
"""Noncharacters: Unicode keeps them for use inside programs."""


class TemplateSource(NamedTuple):
    """A template not compiled yet, which takes a while: see :class:`ChatTemplate`."""

    source: str
    bos: str
    eos: str
    file: str

    def compile(self) -> ChatTemplate:
        """Compile it. Raises TemplateError."""
        return ChatTemplate(self.source, bos=self.bos, eos=self.eos, file=self.file)


class ChatTemplate:
    """A compiled chat template. Rendering it is safe on any input: it ends, and it ends in text or TemplateError."""

    def __init__(self, source: str, *, bos: str, eos: str, file: str) -> None:
        """Compile ``source``; ``bos`` and ``eos`` are the spellings templates ask for, ``file`` is for messages.

        Raises TemplateError for templates that are too long, malformed or use what is not supported.
        """
        # Jinja takes tens of milliseconds to import, and not every command renders a template.
        from .template_sandbox import ChatEnvironment, PricedTemplate

        self._file = file
        self._variables = {"bos_token": bos, "eos_token": eos, "tools": None, "documents": None}
        if len(source) > MAXIMUM_SOURCE_CHARACTERS:
            raise self._error(f"is {len(source)} characters long; at most {MAXIMUM_SOURCE_CHARACTERS} are accepted")
        environment = ChatEnvironment()
        pricing = PricedTemplate()
        try:
            priced = pricing.visit(environment.parse(source)).set_environment(environment)
            self._template = environment.from_string(priced)
        except Exception as error:
            raise self._error(_described(error)) from error
        self.phrases = frozenset(pricing.phrases)
        """The text constants in the template's expressions: all it can look for in a message."""

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation; each message has a ``role``, a ``content`` and perhaps more texts.

        ``add_generation_prompt`` ends it where the assistant's next answer begins. Raises InvalidParameter for
        messages of another form, TemplateError if the template refuses the conversation, fails, or takes more time
        or memory than any chat template needs.
        """
        from .template_budget import spending

        for message in messages:
            _check_message(message)
        variables = {
            **self._variables,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with spending(variables):
                return "".join(self._template.generate(variables))
        except Exception as error:
            raise self._error(_described(error)) from error

    def _error(self, problem: str) -> TemplateError:
        return TemplateError(f"{self._file}: tokenizer.chat_template: {problem}; {_HINT}")


def template_from_gguf(metadata: Mapping[str, object], file: str) -> TemplateSource | None:
    """The template of a GGUF file, None if it has none. Raises ModelFileError if the tokens it needs are malformed."""
    source = metadata.get("tokenizer.chat_template")
    if source is None or source == "":
        return None
    if not isinstance(source, str):
        raise ModelFileError(file, "tokenizer.chat_template", f"is a {type(source).__name__}; expected text")
    tokens = read_list(metadata, "tokenizer.ggml.tokens", file, str) or []
    beginning, end = (read_special_id(metadata, name, file, len(tokens)) for name in ("bos", "eos"))
    bos, eos = ("" if token is None else tokens[token] for token in (beginning, end))
    return TemplateSource(source, bos, eos, file)


def conversation_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Ids of ``messages`` as ``template`` writes them, with one beginning of sequence if the model or template has it.

    Nothing a message says can become a control token, so it cannot end its turn or begin another. Raises as
    ``ChatTemplate.render``.

    How: in the messages, each character that can begin a control token is followed by a marker while the template
    runs, so the control tokens found in its output are those the template spelled itself; markers are then removed.
    Trimming and joining texts leaves the markers in place. Where a message holds a phrase that the template has as a
    constant, such as ``</think>``, the phrase is left whole, for the template to find.
    """
    for message in messages:
        _check_message(message)
    marker = _unused_character(messages)
    marked_characters = _marked_characters(tokenizer.control_tokens, template.phrases)
    marked = [
        {
            key: text if key == "role" else marked_characters.sub(lambda found: _mark(found[0], marker), text)
            for key, text in message.items()
        }
        for message in messages
    ]
    text = template.render(marked, add_generation_prompt=add_generation_prompt)
    segments = tokenizer.control_tokens.split(text)
    return tokenizer.encode_segments(
        [segment if isinstance(segment, int) else segment.replace(marker, "") for segment in segments],
        add_bos=True,
    )


def _mark(found: str, marker: str) -> str:
    # A pattern of one character is the beginning of a control token; longer ones are phrases.
    return found + marker if len(found) == 1 else found


def _unused_character(messages: Iterable[Mapping[str, str]]) -> str:
    used = set().union(*(text for message in messages for text in message.values()))
    for point in _MARKER_CHARACTERS:
        if chr(point) not in used:
            return chr(point)
    raise InvalidParameter("the conversation uses every noncharacter of Unicode from U+FDD0 to U+FDEF; leave one out")


def _marked_characters(control_tokens: ControlTokens, phrases: Iterable[str]) -> re.Pattern[str]:
    """Finds phrases that are safe to leave whole, else single characters that can begin a control token."""
    firsts = control_tokens.first_characters
    if not firsts:
        return re.compile(r"(?!)")
    safe = [phrase for phrase in phrases if not firsts.isdisjoint(phrase) and not control_tokens.may_arise_from(phrase)]
    # Longest first: of two phrases that begin alike, the template may look for either.
    return re.compile("|".join(map(re.escape, [*sorted(safe, key=len, reverse=True), *sorted(firsts)])))


def _check_message(message: Mapping[str, str]) -> None:
    """Raises InvalidParameter unless ``message`` has a known role and nothing but texts."""
    role = message.get("role")
    if role not in ROLES:
        raise InvalidParameter(f"a message has the role {role!r}; expected one of {', '.join(sorted(ROLES))}")
    for key in {"content", *message}:
        value = message.get(key)
        if not isinstance(value, str):
            raise InvalidParameter(f"the {key} of a {role} message is a {type(value).__name__}; expected text")


def _described(error: Exception) -> str:
    """What went wrong and, if it is known, in which line of the template."""
    line = getattr(error, "lineno", None)
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == _FRAME_NAME:
            line = frame.tb_lineno
        frame = frame.tb_next
    problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
    return f"line {line}: {problem}" if line is not None else problem
