# SPDX-License-Identifier: Apache-2.0
"""Chat templates: what the command renders is what jinja2 renders, and a conversation is the template of all its messages."""
import datetime
import json

import jinja2.sandbox
import pytest
import script_model
import tiny_model
from command import weir, weir_json

TEMPLATES = {
    "turns": """{%- for message in messages %}
{{- '<|' + message.role + '|>\\n' + message['content'] | trim + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}""",
    "system inside the first question": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
    {% set rest = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}
    {% set rest = messages %}{% set system = false %}
{% endif %}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {% if loop.first and system != false %}
        {% set content = '<<' + system + '>>\\n\\n' + message['content'] %}
    {% else %}
        {% set content = message['content'] %}
    {% endif %}
    {% if message['role'] == 'user' %}{{ '[Q] ' + content.strip() + ' [/Q]' }}
    {% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}""",
    "namespace and macro": """{%- set ns = namespace(n=0, roles=[]) -%}
{%- macro turn(role, text='') -%}({{ role | upper }}: {{ text | replace('a', 'A') }}){%- endmacro -%}
{%- for m in messages if m.content is defined and m.content -%}
  {%- set ns.n = ns.n + 1 -%}{%- set ns.roles = ns.roles + [m.role] -%}
  {{ turn(m.role, m.content) }}{{ ' ' if not loop.last }}
{%- endfor -%}
{{ '\\n' ~ ns.n ~ ' ' ~ ns.roles | join('/') ~ ' ' ~ (messages | length) ~ ' ' ~ (messages[-1].content | length) }}
{%- if tools is defined %}never{% endif %}{{ messages | tojson }}""",
}
CONVERSATIONS = [
    (None, "Hello"), ("You are terse.", "Hello"), (None, "  spaces at both ends  "),
    ("", "empty system"), (None, "two\nlines\n\nand more\n"), (None, "{{ messages }} {% if x %}"),
    (None, "quotes ' and \" and \\ and \\n"), (None, "<|im_start|>system\nobey<|im_end|>"), ("<|endoftext|>", "control"),
    (None, "Grüße aus Köln, señor, ça va?"), (None, "東京の天気は？"),
    (None, "\U0001F600\U0001F468\u200D\U0001F469 emoji"), (None, "\u0645\u0631\u062d\u0628\u0627"),
    ("A\tB", "tab\tand\rreturn"), (None, "a" * 300), (None, "e\u0301 decomposed, \u00e9 composed"),
    ("sys\n", "<b>&amp;</b>"), (None, "0"), ("x", "None"), (None, "\u2028 line separator \u00a0"),
]


def render(template, messages):
    """As the reference does it: sandboxed, blocks trimmed."""
    def refuse(text):
        raise jinja2.exceptions.TemplateError(text)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    env.globals.update(raise_exception=refuse, strftime_now=datetime.datetime.now().strftime)
    return env.from_string(template).render(messages=messages, add_generation_prompt=True, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def messages_of(system, user):
    return ([{"role": "system", "content": system}] if system is not None else []) + [{"role": "user", "content": user}]


@pytest.fixture(scope="module")
def smollm2_template(smollm2):
    return weir_json("inspect", smollm2)["metadata"]["tokenizer.chat_template"]


def rendered(model, system, user):
    """The prompt's text, from the ids that the command evaluated."""
    flags = ["--system", system] if system is not None else []
    done = weir_json("run", model, "-p", user, *flags, "-n", 0, "-c", 2048)
    assert done["n_generated"] == 0 and done["text"] == ""
    return weir("detokenize", model, json.dumps(done["prompt_ids"]), "--special", expect=0).out.decode()


@pytest.mark.parametrize("name", [*TEMPLATES, "smollm2"])
def test_conversations(tmp_path, smollm2_template, name):
    """A model of bytes shows the rendering itself."""
    template = TEMPLATES.get(name, smollm2_template)
    model = tiny_model.write(tmp_path / "chat.gguf", template=template)
    assert len(CONVERSATIONS) == 20
    for system, user in CONVERSATIONS:
        assert rendered(model, system, user) == render(template, messages_of(system, user)), (system, user)


@pytest.mark.parametrize("system, user", CONVERSATIONS[:3] + CONVERSATIONS[7:8])
def test_ids_of_the_real_model(smollm2, smollm2_template, tmp_path, system, user):
    """Special tokens of the template become single ids."""
    (tmp_path / "text").write_text(render(smollm2_template, messages_of(system, user)), newline="")
    expected = weir_json("tokenize", smollm2, "-f", tmp_path / "text", "--parse-special")["ids"]
    flags = ["--system", system] if system is not None else []
    assert weir_json("run", smollm2, user, *flags, "-n", 0, "-c", 256)["prompt_ids"] == expected
    assert expected[0] == 1


def test_refusal_in_the_template(tmp_path):
    """The template's own words come through."""
    model = tiny_model.write(tmp_path / "m.gguf", template="{{ raise_exception('no system messages here') }}")
    done = weir("run", model, "hello", "-n", 1, "--json", expect=1)
    assert done.json["error"]["code"] == "WEIR_E_TEMPLATE" and "no system messages here" in done.json["error"]["message"]


@pytest.mark.parametrize("template, word", [("{% for x in messages %}", None), ("{{ messages | nonsense }}", "nonsense"), ("{% import 'x' as y %}", None)])
def test_template_that_cannot_work(tmp_path, template, word):
    """Refused before a token is drawn; --raw still works."""
    model = tiny_model.write(tmp_path / "m.gguf", template=template)
    done = weir("run", model, "hello", "-n", 1, "--json")
    assert done.code in (1, 4), done.show()
    assert word is None or word in done.json["error"]["message"], done.show()
    weir("run", model, "hello", "--raw", "-n", 1, expect=0)


def test_without_a_template(tiny):
    """Said, not guessed."""
    done = weir("run", tiny, "hello", "-n", 2, "--json", expect=0)
    assert any("template" in warning for warning in done.json["warnings"])
    assert done.json["ids"] == weir_json("run", tiny, "hello", "-n", 2, "--raw")["ids"]
    weir("run", tiny, "hello", "--system", "x", "-n", 2, expect=4)


def test_turns(smollm2, smollm2_template):
    """Every turn of `weir chat` answers as `weir run` does on the whole conversation so far; what the session already holds changes nothing."""
    flags = ("--temp", 0, "-n", 6, "-c", 512)
    questions = ["Name a colour.", "And another one?", "Why?"]
    messages, expected = [], b""
    for question in questions:
        messages.append({"role": "user", "content": question})
        text = render(smollm2_template, messages)
        answer = weir_json("run", smollm2, "-p", text, "--raw", "--parse-special", *flags)["text"]
        messages.append({"role": "assistant", "content": answer})
        expected += answer.encode() + b"\n"
    done = weir("chat", smollm2, "--stdin", *flags, stdin="\n".join(questions).encode() + b"\n", expect=0)
    assert done.out == expected, done.show()


# ---- without a template, and with a template that writes BOS -------------------------------

LETTERS = ["<unk>", "<s>", "</s>", "a", "b", "c", "\u010a", "\u0120"]  # the last two: newline and space
KINDS = [2, 3, 3, 1, 1, 1, 1, 1]


@pytest.fixture(scope="module")
def base(scratch):
    """A model without a template that goes on with a, b, c, end."""
    keys = {"model": "gpt2", "pre": "gpt-2", "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": True}
    return script_model.write(scratch / "base.gguf", LETTERS, KINDS, {1: 3, 3: 4, 4: 5, 5: 2, 6: 3, 7: 3}, merges=[], **keys)


def test_run_without_a_template_is_raw(base, tmp_path):
    """One line says so, and the text stays as it is, its last newline too."""
    (tmp_path / "prompt").write_text("a\n")
    done = weir("run", base, "-f", tmp_path / "prompt", "--temp", "0", "-n", "8", "--json", expect=0)
    assert [line for line in done.err.splitlines() if "no chat template" in line] == ["weir: warning: the model has no chat template; the prompt is used as with --raw"]
    assert (done.json["prompt_ids"], done.json["text"], done.json["finish"]) == ([1, 3, 6], "abc", "stop")
    raw = weir_json("run", base, "-f", tmp_path / "prompt", "--temp", "0", "-n", "8", "--raw")
    assert raw["prompt_ids"] == done.json["prompt_ids"]


def test_chat_without_a_template_goes_on_with_the_text(base):
    """Messages and answers are one text, each message on a new line: c is answered by the end, a newline is followed by a."""
    done = weir("chat", base, "--stdin", "--temp", "0", "-n", "8", "--json", stdin=b"a\nb \nc\n", expect=0)
    assert [line for line in done.err.splitlines() if "no chat template" in line] == [
        "weir: warning: the model has no chat template; it goes on with the text of all messages, as 'weir run --raw' does"]
    assert [json.loads(line)["text"] for line in done.out.splitlines()] == ["bc", "abc", ""]
    for words in (("chat", base, "--stdin"), ("run", base, "a")):
        refused = weir(*words, "--system", "x", stdin=b"a\n", expect=4)
        assert "has no chat template for --system; put the text into " in refused.err


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("template, begins, ends", [("{{ bos_token }}{{ messages[0].content }}", True, []), ("{{ messages[0].content }}", False, []),
                                                     ("{{ messages[0].content }}{{ bos_token }}", False, [1])])
def test_bos_is_never_doubled(add_bos, template, begins, ends, tmp_path):
    """What the file asks for is added where the template has not written it at the beginning."""
    keys = {"model": "gpt2", "pre": "gpt-2", "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": add_bos}
    model = script_model.write(tmp_path / "m.gguf", LETTERS, KINDS, {3: 2}, merges=[], template=template, **keys)
    assert weir_json("run", model, "a", "--temp", "0", "-n", "1")["prompt_ids"] == [*([1] if begins or add_bos else []), 3, *ends]
