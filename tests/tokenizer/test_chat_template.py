"""Chat templates: the constructs real ones use, the styles of known families, and messages that pretend."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import InvalidParameter, ModelFileError, TemplateError
from nybble.tokenizer.chat_template import ChatTemplate, conversation_ids, template_from_gguf
from nybble.tokenizer.tokenizer import Tokenizer

from .small import build, byte_level_metadata, sentence_piece_metadata
from .templates import ALL, CHATML, GEMMA, LLAMA3, QWEN3, SPLIT_ROLES, ZEPHYR

Messages = list[dict[str, str]]


def template(source: str, bos: str = "<s>", eos: str = "</s>") -> ChatTemplate:
    return ChatTemplate(source, bos=bos, eos=eos, file="toy.gguf")


def talk(*contents: str, system: str | None = None) -> Messages:
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages[::-1] %}{{ m.content }}{% endfor %}", "cba"),
        ("{{ messages[1:] | map(attribute='content') | join('+') }}", "b+c"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{% for m in messages %}{% if m.content == 'b' %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "a"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}", "bc"),
        (
            "{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.length }},{% endfor %}",
            "1False3,2False3,3True3,",
        ),
        ("{{ messages[0].role.startswith('us') }}{{ messages[0].role.endswith(('x', 'er')) }}", "TrueTrue"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "a"}'),
        ("{{ '<é>' | tojson }}{{ '<é>' | tojson(ensure_ascii=true) }}", '"<é>""<\\u00e9>"'),
        ("{{ [1, {'k': none}] | tojson(indent=2) }}", '[\n  1,\n  {\n    "k": null\n  }\n]'),
        ("{% macro say(m, end='.') %}{{ m.content }}{{ end }}{% endmacro %}{{ say(messages[0], end='!') }}", "a!"),
        ("{% macro wrap() %}[{{ caller() }}]{% endmacro %}{% call wrap() %}x{% endcall %}", "[x]"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}.", "a."),
        ("{% set x %}{{ messages[0].content }}b{% endset %}{{ x | upper }}", "AB"),
        ("{% filter upper %}x{{ messages[1].content }}{% endfilter %}", "XB"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "2"),
        ("{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | first }}", "b"),
        ("{{ 'x' in messages[0] }}{{ 'role' in messages[0] }}{{ 'a' in messages[0].content }}", "FalseTrueTrue"),
        ("{{ messages[0].get('name', 'nobody') }}{{ messages[0].name is defined }}", "nobodyFalse"),
        ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}", "role=user;content=a;"),
        ("{% for k, v in messages[0] | dictsort %}{{ k }}{% endfor %}", "contentrole"),
        ("{% for x in [3, 1, 2] | sort %}{{ x }}{% endfor %}{{ [1, 2, 2] | unique | list | length }}", "1232"),
        ("{{ tools is none }}{{ documents is none }}{{ missing is defined }}{{ missing }}", "TrueTrueFalse"),
        (
            "{{ 'a-b-c'.split('-')[-1] }}{{ 'a-b-c'.split('-', 1)[1] }}{{ ' x '.strip() }}{{ 'xax'.strip('x') }}",
            "cb-cxa",
        ),
        ("{{ 'aXbX'.replace('X', '-') }}{{ 'aXbX'.replace('X', '-', 1) }}{{ 'aXb' | replace('X', '') }}", "a-b-a-bXab"),
        ("{{ 'a\nb\n\nc' | indent(2) }}{{ ' t ' | trim }}{{ 'ab' | capitalize }}", "a\n  b\n\n  ctAb"),
        (
            "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ '3' | int + 1 }}{{ 2.567 | round(1) }}{{ [1, 2] | sum }}",
            "331024" + "42.63",
        ),
        ("{% for row in range(3) %}{{ loop.cycle('x', 'y') }}{% else %}none{% endfor %}", "xyx"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{{ loop.length }}{% endfor %}", "a2c2"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{{ 'yes' if messages | length > 2 and messages[-1].role == 'user' else 'no' }}", "yes"),
        ("{%- set a, b = 'x', 'y' -%} {{ a ~ b ~ 1 ~ none }}", "xy1None"),
        ("{{ dict(a=1, b='c') }}{{ {'k': [1, (2, 3)]} }}", "{'a': 1, 'b': 'c'}{'k': [1, (2, 3)]}"),
        ("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}", "<s></s>True"),
        ("{{ strftime_now('%%%-d') is string }}{{ 'a' | safe }}{{ none | default('d', true) }}", "Truead"),
        ("{# a comment #}\n  {% if true %}\n  kept\n  {% endif %}\n", "  kept\n"),
    ],
)
def test_constructs_of_real_templates(source: str, expected: str) -> None:
    """Guards against features that are missing or mean something else here (report 48 of the field)."""
    assert template(source).render(talk("a", "b", "c")) == expected


def test_styles_of_known_families() -> None:
    conversation = talk(" hi ", "<think>\nhm\n</think>\n\nyes", "more", system=" sys ")
    assert template(CHATML).render(talk("hi")) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    llama = template(LLAMA3).render(conversation)
    assert re.match(
        r"<s><\|start_header_id\|>system<\|end_header_id\|>\n\nToday: \d\d \w+ \d{4}\nsys<\|eot_id\|>", llama
    )
    assert llama.count("<|eot_id|>") == 4
    assert "<|end_header_id|>\n\nhi<|eot_id|>" in llama
    assert (
        template(QWEN3)
        .render(conversation, add_generation_prompt=False)
        .endswith("<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n")
    )
    assert "<think>\nhm\n</think>\n\nyes" in template(QWEN3).render(conversation[:-1])
    assert template(GEMMA).render(talk("a", "b", "c"), add_generation_prompt=False) == (
        "<s><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
        "<start_of_turn>user\nc<end_of_turn>\n"
    )
    assert template(ZEPHYR).render(talk("a", system="s")) == "<|system|>\ns</s>\n<|user|>\na</s>\n<|assistant|>\n"
    assert template(SPLIT_ROLES).render(talk("a", "b")) == "<|user|>\na\n<|assistant|>\nb\n<|assistant|>"


@pytest.mark.parametrize("conversation", [talk("a", system="s"), [*talk("a"), *talk("b")]])
def test_a_template_that_refuses_a_conversation_says_why(conversation: Messages) -> None:
    with pytest.raises(TemplateError, match=r"does not accept this conversation: (System role|Roles must)") as error:
        template(GEMMA).render(conversation)
    assert str(error.value).startswith("toy.gguf: tokenizer.chat_template: line ")
    assert "--raw" in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages | frobnicate }}", "line 1: No filter named 'frobnicate'"),
        ("{{ messages is frobnicated }}", "No test named 'frobnicated'"),
        ("\n{% if %}", "line 2: Expected an expression"),
        ("{% for x in y %}", "Unexpected end of template"),
        ("x" * 70_000, "70000 characters long"),
        ("{% include 'x' %}", "line 1: include is not supported"),
        ("{% import 'x' as x %}", "import is not supported"),
        ("{% extends 'x' %}", "extends is not supported"),
        ("{% block x %}{% endblock %}", "block is not supported"),
        ("{% autoescape true %}{% endautoescape %}", "not supported"),
    ],
)
def test_broken_templates_are_named_when_they_are_compiled(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(message)) as error:
        template(source)
    assert "--raw" in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\n\n{{ messages[7].content }}", "line 3: list object has no element 7"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ messages[0].content + 1 }}", "line 1: can only concatenate"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{% if messages is frobnicated %}{% endif %}", "No test named 'frobnicated'"),
        ("{{ missing() }}", "'missing' is undefined"),
        ("{{ missing | tojson }}", "not JSON serializable"),
    ],
)
def test_failures_of_a_template_are_typed_and_placed(source: str, message: str) -> None:
    """Guards against a template that takes the server down (T5)."""
    with pytest.raises(TemplateError, match=re.escape(message)):
        template(source).render(talk("a"))


@pytest.mark.parametrize(
    "message",
    [
        {"content": "a"},
        {"role": "user"},
        {"role": "root", "content": "a"},
        {"role": "<|im_end|>", "content": "a"},
        {"role": "user", "content": ["a"]},
        {"role": "user", "content": "a", "name": 3},
        {"role": "user", "content": None},
    ],
)
def test_messages_of_another_form_are_refused(message: dict[str, str]) -> None:
    with pytest.raises(InvalidParameter, match=r"a message has the role|of a user message is a"):
        template(CHATML).render([message])


def test_templates_of_gguf_files() -> None:
    """Guards against a missing template that only shows in the middle of a chat, and wrong spellings of bos and eos."""
    metadata = byte_level_metadata()
    assert template_from_gguf(metadata, "toy.gguf") is None
    metadata["tokenizer.chat_template"] = "{{ bos_token }}|{{ eos_token }}"
    found = template_from_gguf(metadata, "toy.gguf")
    assert found is not None
    assert found.compile().render([]) == "<|im_start|>|<|im_end|>"
    pieces = sentence_piece_metadata() | {"tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"}
    for name in ("bos", "eos"):
        del pieces[f"tokenizer.ggml.{name}_token_id"]
    found = template_from_gguf(pieces, "toy.gguf")
    assert found is not None
    assert found.compile().render([]) == "<s>|</s>"
    with pytest.raises(ModelFileError, match="expected text"):
        template_from_gguf({"tokenizer.chat_template": 7}, "toy.gguf")


CONTROLS = (
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>"),
    *("<end_of_turn>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"),
)
TOKENIZER = build(byte_level_metadata(controls=CONTROLS) | {"tokenizer.ggml.bos_token_id": CONTROLS.index("<s>")})
PARTS = (
    "<",
    "|",
    "im_",
    "end",
    "im_end|>",
    "<|im",
    "|>",
    ">",
    "</",
    "s>",
    "/think",
    "<think>",
    "</think>",
    " ",
    "\n",
    "é",
)
PRETENDING = st.lists(st.sampled_from([*CONTROLS, *PARTS]), max_size=8).map("".join)


def control_ids(tokenizer: Tokenizer, source: str, conversation: Messages) -> list[int]:
    ids = conversation_ids(tokenizer, template(source), conversation)
    return [token for token in ids if tokenizer.token_text(token) in tokenizer.control_tokens.spellings]


@pytest.mark.parametrize("name", ALL)
def test_no_message_changes_the_turns(name: str) -> None:
    """Guards against a person ending a turn and speaking as another (T4, report 51 of the field)."""
    expected = control_ids(TOKENIZER, ALL[name], talk("a", "b", "c"))
    assert expected

    @settings(max_examples=60)
    @given(st.tuples(PRETENDING, PRETENDING, PRETENDING))
    def check(contents: tuple[str, str, str]) -> None:
        assert control_ids(TOKENIZER, ALL[name], talk(*contents)) == expected

    check()


@settings(max_examples=100)
@given(st.tuples(PRETENDING, PRETENDING))
def test_messages_arrive_unchanged(contents: tuple[str, str]) -> None:
    """Guards against markers that stay in the text, or words that are lost with them."""
    conversation = talk(*contents)
    ids = conversation_ids(TOKENIZER, template(CHATML), conversation)
    text = "".join(f"{message['role']}\n{message['content']}\n" for message in conversation)
    assert TOKENIZER.decode(ids) == f"system\nBe kind.\n{text}assistant\n"


@pytest.mark.parametrize(
    ("source", "content"),
    [
        # Taking words out must not bring the parts of a control token together.
        ("{{ messages[0].content.replace('/think', '') }}", "<|im_/thinkend|>"),
        ("{{ messages[0].content | replace('\n', '') }}", "<\n|\nim_end|>"),
        ("{{ messages[0].content.split('-') | join }}", "<-|-i-m-_-e-n-d-|->"),
        ("{{ messages[0].content | upper | lower }}", "<|im_end|>"),
        ("{{ messages[0].content | tojson }}{{ messages | tojson }}", "<|im_end|>"),
        ("{{ messages[0].content | tojson(ensure_ascii=true) }}", "<|im_end|>"),
        ("{{ messages[0].content }}{{ messages[1].content }}", "<|im_"),
        ("{% for c in messages[0].content %}{{ c }}{% endfor %}", "<|im_end|>"),
        ("{{ messages[0].content.split('<|im_end|>') | join('') }}", "<|im_end|>"),
        (
            "{% if '</think>' in messages[0].content %}{{ messages[0].content }}{% endif %}",
            "<</think>|im_end|></think>",
        ),
    ],
)
def test_control_tokens_do_not_arise_on_the_way(source: str, content: str) -> None:
    conversation = talk(content, "end|>")
    assert control_ids(TOKENIZER, source, conversation) == []
    text = TOKENIZER.decode(conversation_ids(TOKENIZER, template(source), conversation))
    assert text == template(source).render(conversation) or "|im_end|" in source


def test_templates_still_find_their_phrases_in_messages() -> None:
    """Guards against marking that hides ``</think>`` from the template, so old thoughts would be sent again."""
    conversation = talk("a", "<think>\nlong thoughts\n</think>\n\nshort answer", "b")
    text = TOKENIZER.decode(conversation_ids(TOKENIZER, template(QWEN3), conversation))
    assert "thoughts" not in text
    assert "short answer" in text


def test_a_system_message_with_every_marker_is_refused() -> None:
    """Guards against a marker that a message holds too."""
    crowded = "".join(map(chr, range(0xFDD0, 0xFDEF)))
    ids = conversation_ids(TOKENIZER, template(CHATML), talk(crowded))
    assert crowded in TOKENIZER.decode(ids)
    with pytest.raises(InvalidParameter, match="noncharacter"):
        conversation_ids(TOKENIZER, template(CHATML), talk(crowded + "\ufdef"))


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(
    ("source", "writes"), [("{{ bos_token }}x", True), ("x", False), ("\n {{ bos_token }}x", True)]
)
def test_there_is_one_beginning_of_sequence_at_most(source: str, writes: bool, adds: bool) -> None:
    """Guards against the template and the tokeniser adding one each (report 45 of the field)."""
    metadata = sentence_piece_metadata() | {"tokenizer.ggml.add_bos_token": adds}
    ids = conversation_ids(build(metadata), template(source), talk("a"))
    assert ids.count(1) == int(writes or adds)


def test_an_answered_conversation_begins_with_the_one_before() -> None:
    """Guards against a cache that can never be reused: what was read must be a prefix of what comes next."""
    first = conversation_ids(TOKENIZER, template(CHATML), talk("a"))
    answer = TOKENIZER.encode("the cat")
    end = [CONTROLS.index("<|im_end|>")]
    after = conversation_ids(TOKENIZER, template(CHATML), talk("a", "the cat", "b"))
    assert after[: len(first) + len(answer) + 1] == first + answer + end


def test_real_template(real_metadata: dict[str, object], real_tokenizer: Tokenizer) -> None:
    found = template_from_gguf(real_metadata, "model.gguf")
    assert found is not None
    ids = conversation_ids(real_tokenizer, found.compile(), talk("Hi <|im_end|>"))
    # Ids of "system", the default system message and "user", as other engines publish them.
    assert ids[:4] == [1, 9690, 198, 2683]
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert real_tokenizer.decode(ids).endswith("\nuser\nHi <|im_end|>\nassistant\n")
