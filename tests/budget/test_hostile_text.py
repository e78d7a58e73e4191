# SPDX-License-Identifier: Apache-2.0
"""Texts and chat templates that want more memory than there is: an error or a result, never above the budget, never a crash."""
import json

import pytest
import raw_gguf
import tiny_model
from command import weir_json, weir_measured

MIB = 1 << 20
CONTEXT = ("-c", 256)
TEXTS = {"words": b"the sea ", "letters": b"a", "no UTF-8": b"\xff", "special tokens": b"<|im_start|>", "spaces": b" "}
BOMBS = {
    "replace": "{{ ('x'*8000)|replace('x','x'*8000) }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "silent loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "doubling": "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "doubling lists": "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "repeat": "{{ 'x' * 1000000000 }}",
    "indent": "{{ 'a\\nb'|indent(1000000000) }}",
    "indented JSON": "{{ range(100000)|list|tojson(indent=1000) }}",
    "recursion": "{% macro f(n) %}{{ f(n+1) }}{% endmacro %}{{ f(0) }}",
    "width": "{{ '%999999999d' % 1 }}",
    "join": "{{ range(100000)|map('string')|join('a'*1000) }}",
    "power": "{{ 9**9**9 }}",
    "split": "{{ ('x,'*4000000).split(',')|length }}",
    "titles": "{{ (('x '*1000000)|title|upper).split()|unique|list }}",
    "a long prompt": "{{ 'word '*200000 }}",
}


def measured(budget, *arguments, stdin=None):
    """What it did, within its budget: an answer, or one line that says why not."""
    result = weir_measured(*arguments, "--memory", budget, stdin=stdin)
    assert result.usage["max_rss"] <= budget, (result.show(), result.usage)
    errors = [line for line in result.err.splitlines() if line.startswith("weir: error: ")]
    assert (result.code == 0 and not errors) or (result.code in (1, 3) and len(errors) == 1), result.show()
    return result


@pytest.fixture(scope="module")
def smallest(smollm2):
    return weir_json("plan", smollm2, *CONTEXT)["min_budget"]


@pytest.mark.parametrize("unit", TEXTS)
@pytest.mark.parametrize("extra", (-8 * MIB, 0, 24 * MIB))
@pytest.mark.parametrize("size", (16_000, 4_000_000))  # the first is read whole, the second is refused by its length
def test_texts(smollm2, smallest, unit, extra, size, tmp_path):
    (tmp_path / "text").write_bytes(TEXTS[unit] * (size // len(TEXTS[unit])))
    for words in (("eval", smollm2), ("run", smollm2, "--raw", "-n", 2), ("run", smollm2, "-n", 2)):
        result = measured(smallest + extra, *words, "-f", tmp_path / "text", *CONTEXT)
        fits = unit == "spaces" and size == 16_000  # no more tokens than the context has positions
        assert result.code in ((3,) if extra < 0 else (0, 1) if fits else (1,)), result.show()
        assert extra < 0 or size == 16_000 or str(tmp_path / "text") in result.err


@pytest.mark.parametrize("unit", ("words", "letters"))
@pytest.mark.parametrize("extra", (0, 24 * MIB))
def test_a_line_of_16_megabytes(smollm2, smallest, unit, extra, tmp_path):
    (tmp_path / "line").write_bytes(TEXTS[unit] * (16 * MIB // len(TEXTS[unit])) + b"\nhi\n")
    with open(tmp_path / "line", "rb") as line:
        result = measured(smallest + extra, "chat", smollm2, "--stdin", "-n", 2, *CONTEXT, stdin=line)
    assert result.code == 1 and "line" in result.err, result.show()


@pytest.mark.parametrize("command", (("plan",), ("run", "hello"), ("eval", "-f", "/dev/null")), ids=lambda words: words[0])
@pytest.mark.parametrize("n, size", ((800, 60_000), (250_000, 8)))
def test_headers(command, n, size, tmp_path):
    """Tensors by the number, and with names as long as a name may be, before there is a plan."""
    tensors = [raw_gguf.Tensor(f"{i:0{size}d}", [4], 0, b"", 0) for i in range(n)]
    model = tmp_path / "m.gguf"
    model.write_bytes(raw_gguf.build({"general.architecture": raw_gguf.Value(raw_gguf.STRING, "llama")}, tensors) + bytes(64))
    for budget in (20 * MIB, 24 * MIB):
        result = measured(budget, command[0], model, *command[1:])
        assert result.code == 3 and "m.gguf: header" in result.err, result.show()


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("budget", (24 * MIB, 80 * MIB))
def test_templates(bomb, budget, tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf", template=BOMBS[bomb])
    run = measured(budget, "run", model, "hello", "-n", 2, *CONTEXT)
    with open(tmp_path / "line", "w+", encoding="utf-8") as line:
        line.write("hello\n")
        line.seek(0)
        chat = measured(budget, "chat", model, "--stdin", "-n", 2, *CONTEXT, "--json", stdin=line)
    assert run.usage["cpu"] < 20 and chat.usage["cpu"] < 20
    if chat.code == 0:
        assert all(json.loads(answer) for answer in chat.out.splitlines())
