"""Hostile chat templates: none reaches Python, none hangs, none uses up memory."""

import resource
import time

import pytest

from nybble.errors import TemplateError
from nybble.tokenizer.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "x" * 2000}]
SECONDS = 8.0
"""The clock ends a template after 5 seconds; the rest is for slow machines."""
MEGABYTES = 300


def render(source: str) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>", file="toy.gguf").render(MESSAGES)


REACHING_PYTHON = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ messages[0].__init__.__globals__ }}",
    "{{ self.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ namespace.__init__ }}",
    "{{ namespace().__class__ }}",
    "{{ range.__class__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__globals__['os'] }}",
    "{{ loop.__class__ }}{% for x in [1] %}{{ loop._iterator }}{% endfor %}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ '{0.__class__}'.format_map(messages) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",
    "{{ messages | attr('__class__') }}",
    "{{ ['{0.__class__}'] | map('format', messages) | list }}",
    "{{ messages | map(attribute='__class__') | list | string }}{{ messages[0]['__class__'].x }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].pop('role') }}",
    "{{ '' .encode }}{{ ''.encode().decode }}",
    "{{ environment.globals }}",
    "{{ context.environment }}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ (0).bit_length() }}",
    "{{ (1.5).__class__ }}",
    "{{ missing.__class__.x }}",
    "{{ lipsum(1000000) }}",
]


@pytest.mark.parametrize("source", REACHING_PYTHON)
def test_python_is_out_of_reach(source: str) -> None:
    """T1 and T2: model files that run code, and the known ways out of the sandbox."""
    with pytest.raises(TemplateError):
        render(source)


LOOP = "{% for a in range(100000) %}"
END = "{% endfor %}"
HANGING = {
    "nested loops": LOOP * 5 + "x" + END * 5,
    "silent nested loops": LOOP * 5 + END * 5,
    "loops over text": "{% set s = 'a' * 100000 %}" + "{% for a in s %}" * 5 + END * 5,
    "loops over themselves": "{% set s = range(100000) | list %}{% for a in s for b in s %}{% endfor %}",
    "filtered loops": "{% for a in range(100000) if false %}{% endfor %}" * 3000,
    "huge range": "{{ range(10 ** 18) | list }}",
    "many ranges": "{% set n = namespace(l=[]) %}" + LOOP + "{% set n.l = n.l + [range(100000) | list] %}" + END,
    "long body": LOOP + "{% if a is odd %}{% set q = a %}{% endif %}" * 1000 + END,
    "doubling text": "{% set s = 'aaaaaaaa' %}" + "{% set s = s ~ s %}" * 60 + "{{ s }}",
    "doubling with plus": "{% set s = 'aaaaaaaa' %}" + "{% set s = s + s %}" * 60,
    "doubling in a set block": "{% set s = 'aaaaaaaa' %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60,
    "doubling lists": "{% set s = [1] %}" + "{% set s = s + s %}" * 60,
    "doubling tuples": "{% set s = (1,) %}" + "{% set s = s * 2 %}" * 60,
    "doubling replacement": "{% set s = 'aa' %}" + "{% set s = s.replace('a', 'aa') %}" * 60,
    "doubling filter": "{% set s = 'aa' %}" + "{% set s = s | replace('a', 'aa') %}" * 60,
    "doubling join": "{% set s = 'aa' %}" + "{% set s = s.join(['', '', '', '']) %}" * 60,
    "doubling join filter": "{% set s = 'aa' %}" + "{% set s = [s, s] | join(s) %}" * 60,
    "one large replacement": "{% set s = 'a' * 20000 %}{{ s.replace('a', s) }}",
    "one large join": "{% set s = 'a' * 20000 %}{{ s.join(s) }}",
    "doubling json": "{% set s = '\\\\' %}" + "{% set s = s | tojson %}" * 60,
    "multiplied text": "{{ 'a' * 10 ** 12 }}",
    "multiplied list": "{{ ([0] * 10 ** 12) | length }}",
    "product of text": "{{ 10 ** 12 * 'a' }}",
    "power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "power of a variable": "{% set a = 9 %}{{ a ** 99999999 }}",
    "squares": "{% set a = 99 %}" + "{% set a = a * a %}" * 60 + "{{ a }}",
    "large numbers from text": "{{ ('9' * 4000) | int * 2 }}{{ ('f' * 100000) | int(base=16) }}",
    "padded formats": "{{ '%1000000000d' % 1 }}",
    "padded by format": "{{ '{:1000000000}'.format(1) }}",
    "padded by format of a variable": "{% set f = '{:>{w}}'.format %}{{ f(1, w=1000000000) }}",
    "padded format filter": "{{ '%1000000000d' | format(1) }}",
    "centred": "{{ 'a' | center(1000000000) }}",
    "centred text": "{{ 'a'.center(1000000000) }}{{ 'a'.zfill(1000000000) }}{{ 'a'.ljust(1000000000) }}",
    "tabs": "{{ ('\\t' * 1000).expandtabs(1000000) }}",
    "indented": "{{ ('\\n' * 100000) | indent(1000000) }}",
    "indented by text": "{{ ('a\\n' * 1000) | indent('x' * 100000) }}",
    "indented json": "{{ [[[1]]] | tojson(indent=1000000000) }}",
    "deep json": "{% set s = [1] %}" + "{% set s = [s] %}" * 900 + "{{ s | tojson(indent=64) }}",
    "json separators": "{{ (range(10000) | list) | tojson(separators=('x' * 100000, ':')) }}",
    "rounded": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "wrapped": "{{ 'a' | wordwrap(1) }}",
    "batched": "{{ [1] | batch(1000000000, 0) | list }}",
    "sliced": "{{ [1] | slice(1000000000) | list }}",
    "summed lists": "{{ [[1], [2]] | sum(start=[]) }}",
    "shared lists printed": "{% set s = [1] %}" + "{% set s = [s, s] %}" * 60 + "{{ s }}",
    "shared dictionaries printed": "{% set s = {} %}" + "{% set s = {'a': s, 'b': s} %}" * 60 + "{{ s }}",
    "shared lists compared": "{% set s = [1] %}{% set t = [1] %}"
    + "{% set s = [s, s] %}{% set t = [t, t] %}" * 60
    + "{{ s == t }}",
    "shared tuples as keys": "{% set s = (1,) %}" + "{% set s = (s, s) %}" * 60 + "{{ {s: 1} }}",
    "shared lists by dict": "{% set s = [] %}" + "{% set s = dict(a=s, b=s) %}" * 60 + "{{ s | string }}",
    "shared through a namespace": "{% set s = namespace() %}"
    + "{% set t = s %}{% set s = namespace() %}{% set s.a = t %}{% set s.b = t %}" * 60
    + "{{ s }}",
    "wide lists compared": "{% set s = [1] %}"
    + "{% set s = [s, s] %}" * 14
    + "{% set s = s + s %}" * 14
    + "{% set t = s[:] %}{{ s == t }}" * 200,
    "wide lists compared by a loop": "{% set s = [1] %}"
    + "{% set s = [s, s] %}" * 14
    + "{% set s = s + s %}" * 14
    + "{% for a in range(200) %}{% set t = s[:] %}{{ loop.changed(t) }}{% endfor %}",
    "wide tuples as keys": "{% set s = (1,) %}"
    + "{% set s = (s, s) %}" * 14
    + "{% set s = s + s %}" * 14
    + "{{ {}.get(s) }}{{ dict([[s, 1]]) }}" * 200,
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "a recursive loop": "{% set s = [1, 2] %}{% for x in s recursive %}{{ loop(s) }}{% endfor %}",
    "calling itself": "{% macro m() %}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 18
    + LOOP * 3
    + END * 3
    + "{% endcall %}" * 18,
    "searching backwards": "{% set s = 'a' * 1000000 %}{% set t = 'b' + 'a' * 500000 %}{{ s.rfind(t) }}",
    "stripping": "{% set s = 'ab' * 500000 %}{% set t = range(50000) | join %}{{ s.strip(t) }}",
    "splitting": "{{ ('a ' * 1000000).split() | length }}" * 50,
    "slices kept": "{% set s = 'a' * 1000000 %}" + "".join(f"{{% set s{n} = s[{n}:] %}}" for n in range(1500)),
    "map over ranges": LOOP + "{{ range(100000) | map('string') | join | length }}" + END,
    "sorting": LOOP + "{% set q = range(100000) | sort(reverse=true) %}" + END,
    "unique": LOOP + "{% set q = range(100000) | unique | list %}" + END,
    "nested brackets": "{{ " + "[" * 20000 + "]" * 20000 + " }}",
    "long sums": "{{ " + "1 + " * 15000 + "1 }}",
    "nested blocks": "{% if true %}" * 3000 + "{% endif %}" * 3000,
    # Half a gigabyte: it would fit into memory, so only the budget can refuse it.
    "literal output": "{% for a in range(10000) %}" + "x" * 50000 + END,
    "literal output in a macro": "{% macro m() %}{% for a in range(10000) %}"
    + "x" * 50000
    + "{% endfor %}{% endmacro %}{% set q = m() %}",
}


@pytest.mark.parametrize("name", HANGING)
def test_nothing_hangs_or_fills_memory(name: str) -> None:
    """T3: endless loops, huge ranges, values that double; each is one typed error, soon, in little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    with pytest.raises(TemplateError) as error:
        render(HANGING[name])
    assert time.monotonic() - start < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEGABYTES
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_failed_rendering_leaves_the_next_one_its_budget() -> None:
    """Guards against an attack on one request that starves the others (T5)."""
    hostile = ChatTemplate(
        "{% if messages[0].content == 'hang' %}{{ range(100000) | list | string * 1000 }}{% endif %}fine",
        bos="",
        eos="",
        file="toy.gguf",
    )
    for _ in range(3):
        with pytest.raises(TemplateError):
            hostile.render([{"role": "user", "content": "hang"}])
        assert hostile.render(MESSAGES) == "fine"


def test_long_conversations_are_within_the_budget() -> None:
    """Guards against limits that honest use meets: 400 turns, a megabyte of text, a template that copies a lot."""
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 500} for n in range(400)]
    source = (
        "{% set ns = namespace(text='', kept=[]) %}"
        "{% for m in messages %}{% set kept = messages[loop.index:] %}{% set c = m.content | trim %}"
        "{{ '<|im_start|>' + m.role + '\\n' + c.replace('word', 'term').strip() + '<|im_end|>' + '\\n' }}"
        "{% if m.role == 'tool' %}{{ kept | tojson }}{% endif %}{% endfor %}"
    )
    text = ChatTemplate(source, bos="", eos="", file="toy.gguf").render(turns)
    assert text.count("term") == 400 * 500
