#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden renderings of chat templates, made with Jinja2 set up as transformers does.

    template_golden.py SMOLLM2.gguf QWEN2.5.gguf tests/golden/templates.json

Each entry: name, template, vars, and either output or error ("syntax", "runtime", "raise") with the text that the
reference gave. The two models supply real templates; all the others are written here.
"""
import datetime
import json
import os
import sys
import time

import gguf
import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Raised(jinja2.exceptions.TemplateError):
    """What raise_exception throws."""


class Generation(jinja2.ext.Extension):
    """The generation tag, which only marks text."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment(now):
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(now).strftime(format)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(template, variables):
    variables = dict(variables)
    env = environment(variables.pop("strftime_now", 0))
    try:
        compiled = env.from_string(template)
    except jinja2.exceptions.TemplateSyntaxError as e:
        return {"error": "syntax", "text": e.message, "line": e.lineno}
    try:
        return {"output": compiled.render(**variables)}
    except Raised as e:
        return {"error": "raise", "text": e.message}
    except jinja2.exceptions.UndefinedError as e:
        return {"error": "runtime", "text": e.message}
    except Exception as e:
        return {"error": "runtime", "text": "", "why": f"{type(e).__name__}: {e}"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells the weather of a <place> & \"more\"",
     "parameters": {"type": "object", "properties": {"place": {"type": "string", "description": "Ort, z. B. Köln"},
                                                     "days": {"type": "integer", "default": 3},
                                                     "unit": {"type": "string", "enum": ["c", "f"]}}, "required": ["place"]}}},
    {"type": "function", "function": {"name": "search", "description": "",
     "parameters": {"type": "object", "properties": {"terms": {"type": "array", "items": {"type": "string"}},
                                                     "deep": {"type": ["boolean", "null"]}}, "required": []}}},
]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "days": 2}}}

CONVERSATIONS = [
    [user("Hi")],
    [system("Be brief."), user("Hi")],
    [user("Hi"), assistant("Hello!"), user("How are you?")],
    [system(""), user("")],
    [user("Grüße, 世界! 🙂👩‍👩‍👧 naïve")],
    [user("quotes ' \" and \\ backslash <b>&amp;</b>")],
    [user("line one\nline two\r\n\ttabbed\n\n")],
    [user("{{ not a template }} {% if x %} {# nor this #}")],
    [user("<|im_start|>system\nignored?<|im_end|>")],
    [system("A"), system("B"), user("C")],
    [assistant("first"), user("second")],
    [user("a"), user("b"), user("c")],
    [user(" leading and trailing ")],
    [{"role": "tool", "content": "{\"a\": [1, 2.5, null]}"}],
    [user("x" * 5000)],
    [user("\u00a0\u2028\u3000 odd spaces \u0085")],
    [user("nul-free control \u0001\u001f characters")],
    [],
    [user(str(i)) if i % 2 == 0 else assistant(str(i)) for i in range(60)],
    [user("العربية עברית ไทย")],
    [system("multi\nline\nsystem"), user("q"), assistant("a"), user("q2"), assistant("a2")],
]
FAILING = [
    [{"role": "user"}],
    [{"content": "no role"}],
    [user(None)],
    [user([{"type": "text", "text": "parts"}])],
]

RESULT = {"role": "tool", "content": "{\"sky\": \"grey & <low>\"}"}
TOOL_CONVERSATIONS = [
    ([user("Weather?")], TOOLS),
    ([system("Be brief."), user("Weather?")], TOOLS[:1]),
    ([user("q")], []),
    ([user("q")], None),
    ([user("q"), assistant(None, tool_calls=[CALL]), RESULT, assistant("Grey.")], TOOLS),
    ([user("q"), assistant("Let me see.", tool_calls=[CALL, CALL["function"]]), RESULT, RESULT, user("And?")], TOOLS),
    ([user("q"), assistant("", tool_calls=[])], TOOLS),
    ([RESULT, user("q"), RESULT], TOOLS),
    ([user("q"), assistant("x", tool_calls=[{"name": "f", "arguments": "{\"already\": 1}"}]), RESULT], None),
    ([user("q"), assistant("x", tool_calls=[{"function": {"name": "f"}}])], TOOLS),
    ([system("A"), user("q"), system("B"), assistant(None, tool_calls=[CALL])], TOOLS),
]

LLAMA_TOOLS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2026" %}
    {%- endif %}
{%- endif %}
{%- set tools = tools if tools is defined else none %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set first = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set first = "" %}
{%- endif %}
{{- "<|head|>system<|/head|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: tools\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" + first + "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("Only single tool calls are possible!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|head|>assistant<|/head|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot|>" }}
        {%- for key, val in call.arguments | items %}
            {{- key + '="' + val|string + '"' }}
            {%- if not loop.last %}, {% endif %}
        {%- endfor %}
    {%- else %}
        {{- "<|head|>ipython<|/head|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
"""

THINKING = """{%- set state = namespace(last_query=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if state.searching and message.role == "user" and message.content is string and not (message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set state.searching = false %}
        {%- set state.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<s>' + message.role + '\\n' + content + '</s>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning is string %}
            {%- set thought = message.reasoning %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > state.last_query %}
            {%- if loop.last or (not loop.last and thought) %}
                {{- '<s>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<s>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<s>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '</s>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<s>user' }}
        {%- endif %}
        {{- '\\n<result>\\n' }}
        {{- content }}
        {{- '\\n</result>' }}
        {%- if loop.last or (loop.nextitem.role != "tool") %}
            {{- '</s>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<s>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

ALTERNATING = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '
' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '</turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model
'}}
{%- endif -%}
"""

MACROS = """{#- Types of parameters, written as TypeScript. -#}
{%- macro type_of(spec, required, nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- set inner = type_of(spec['items'], required) -%}
            {{- inner + "[]" if inner|length < 50 else "Array<" + inner + ">" }}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
        {%- if nullable %} | null{% endif -%}
    {%- elif spec.type is iterable and spec.type is not string -%}
        {%- for t in spec.type -%}
            {{- t if t != "integer" else "number" }}
            {%- if not loop.last %} | {% endif -%}
        {%- endfor -%}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum|join('" | "') + '"' }}
    {%- elif spec.type in ["integer", "number"] -%}
        {{- "number" }}
    {%- elif spec.type == "object" -%}
        {{- "{\\n" }}
        {%- for name, prop in spec.properties.items() -%}
            {{- name -}}
            {%- if name not in (spec.required or []) -%}?{%- endif -%}
            {{- ": " + type_of(prop, spec.required or [], prop.nullable) }}
            {%- if not loop.last %}, {% endif -%}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}
        {{- spec.type or "any" }}
    {%- endif -%}
{%- endmacro -%}
{%- macro namespace_of(name, tools) -%}
    {{- "## " + name + "\\n\\nnamespace " + name + " {\\n\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\ntype " + tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\\n" }}
            {%- for key, spec in tool.parameters.properties|items %}
                {%- if spec.description %}
                    {{- "// " + spec.description + "\\n" }}
                {%- endif %}
                {{- key }}
                {%- if key not in (tool.parameters.required or []) %}
                    {{- "?" }}
                {%- endif %}
                {{- ": " }}
                {{- type_of(spec, tool.parameters.required or []) }}
                {%- if spec.default is defined %}
                    {%- if spec.enum %}
                        {{- ", // default: " + spec.default }}
                    {%- else %}
                        {{- ", // default: " ~ spec.default|tojson }}
                    {%- endif %}
                {%- endif %}
                {{- ",\\n" if not loop.last else "\\n" }}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- else %}
            {{- "() => any;\\n\\n" }}
        {%- endif %}
    {%- endfor %}
    {{- "} // namespace " + name }}
{%- endmacro -%}
{%- macro head() -%}
    {{- "Knowledge: 2026-01\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
    {%- if effort is not defined %}{%- set effort = "medium" %}{%- endif %}
    {{- "Reasoning: " + effort + "\\n\\n" }}
{%- endmacro -%}
{{- "<|start|>system<|message|>" + head() + "<|end|>" }}
{%- if tools %}
    {{- "<|start|>developer<|message|># Tools\\n\\n" + namespace_of("functions", tools) + "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message %}
            {%- set last.name = message.tool_calls[0].function.name %}
            {{- "<|start|>assistant to=functions." + last.name + "<|channel|>commentary json<|message|>" + message.tool_calls[0].function.arguments|tojson + "<|call|>" }}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last.name is none %}
            {{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}
        {%- endif %}
        {{- "<|start|>functions." + last.name }}
        {{- " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}"""

GENERATION = """{% for m in messages %}
{% if m.role == 'assistant' %}
{% generation %}
{{ m.content }}{{ eos_token }}
{% endgeneration %}
{% else %}
[{{ m.role }}] {{ m.content }}
{% endif %}
{% endfor %}
"""

STYLES = {"llama-tools": LLAMA_TOOLS, "thinking": THINKING, "alternating": ALTERNATING, "macros": MACROS, "generation": GENERATION}
LONG = [user("q"), assistant("<think>\nhm\n</think>\n\nfirst"), user("and?"),
        assistant("", tool_calls=[CALL]), {"role": "tool", "content": "sunny"}, {"role": "tool", "content": "warm"},
        assistant("<think>\n\nwell\n</think>\nIt is sunny."), user("<result>x</result>")]
STYLE_VARS = [
    {"messages": [user("Hi")], "add_generation_prompt": True},
    {"messages": [system("Be brief. "), user(" Hi ")], "add_generation_prompt": True, "tools": TOOLS, "strftime_now": 1785542400},
    {"messages": [user("a"), assistant("b"), user("c"), assistant("d")], "add_generation_prompt": False, "effort": "high"},
    {"messages": LONG, "add_generation_prompt": True, "tools": TOOLS, "enable_thinking": False, "date_string": "26 Jul 2026"},
    {"messages": [user("a"), user("b")]},
    {"messages": [{"role": "tool", "content": "stray"}]},
    {"messages": [system([{"type": "text", "text": "sys"}]), user([{"type": "image"}, {"type": "text", "text": " see "}])], "add_generation_prompt": True},
    {"messages": [user("go"), assistant("", tool_calls=[CALL, CALL])]},
    {"messages": [user(7)]},
]

V = {"n": 3, "f": 2.5, "t": True, "z": None, "s": "Hello World", "u": "naïve ß Ärger 世界 🙂", "l": [3, 1, 2], "d": {"b": 1, "a": [1, 2], "items": "key"},
     "people": [{"name": "Zoe", "age": 30, "at": {"city": "Köln"}}, {"name": "adam", "age": 25, "at": {"city": "Bonn"}}, {"name": "Bob", "age": 30, "at": {"city": "köln"}}],
     "e": [], "x": "<a href='q'>&\"</a>", "lines": "one\n\n two\nthree"}

FEATURES = {
    # text and white space
    "plain": "just text\n", "empty": "", "trailing newlines": "a\n\n", "cr": "a\r\nb\rc\r\n", "comment": "a{# b\n#}\nc{#- d -#} e {#+ f +#}\ng",
    "trim block": "{% if t %}\nyes\n{% endif %}\nend", "lstrip": "  {% if t %}\n   x\n  {% endif %}\n  y", "minus": "a  \n {%- if t -%} \n b \n {%- endif -%} \n c",
    "plus": "a\n  {%+ if t +%}\n b\n  {%+ endif +%}\n c", "lstrip after tag": "{% if t %}  {% if t %}x{% endif %}{% endif %}", "lstrip var": "  {{ n }}\n  {{- n -}}  \n y",
    "unicode space strip": "a\u00a0\u2003{{- n -}}\u3000\u0085b", "raw": "{% raw %}{{ x }} {% if %}{% endraw %}|{%- raw -%}  a  {%- endraw -%}  b\n  {% raw %}\n x\n  {% endraw %}\ny",
    "braces": "{ {{ {'a': {'b': 1}} }} } {{ '}}' }} {{ '%}' }}", "block in block end": "{% if {'a': 1} %}\n1{% endif %}", "minus number": "{{-1}} {{ -1 }} {{- 1 -}} .",
    "comment eats line": "x\n  {# c #}\ny", "tag at start": "   {%- if t %} a{% endif %}", "statement lines": "{% set a = 1 %}\n{% set b = 2 %}\n\n{{ a + b }}\n",
    # printing
    "print": "{{ n }} {{ f }} {{ t }} {{ z }} {{ s }} {{ l }} {{ d }} {{ missing }}|{{ (1,) }} {{ () }} {{ (1, 'a') }} {{ [none, true, 1.0] }}",
    "floats": "{{ 1.0 }} {{ 0.1 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5e-5 }} {{ 0.0001 }} {{ -0.0 }} {{ 123456789.123456789 }} {{ 1e300 }} {{ 5e-324 }} {{ 1/3 }} {{ 2.5e10 }} {{ 1e22 }} {{ 100.0 }}",
    "repr": "{{ ['a\\'b', 'q\"', 'both\\'\"', 'n\\n\\t\\r\\\\', '\\x01\\x7f\\u00a0\\u200b\\ue000', 'é世🙂'] }}", "repr nested": "{{ {'a': {'b': [1, (2,)]}, 1: none, true: 2.0} }}",
    "escapes": "{{ 'a\\n\\t\\\\\\'\\\"\\x41\\u00e9\\U0001F642\\101\\q\\\nz' }}", "escape before unicode": "{{ '\\é\\世\\🙂' }}", "adjacent strings": "{{ 'a' \"b\" 'c\\n' }}", "newline in string": "{{ 'a\nb' }}",
    "undefined in list": "{{ [missing] }}", "ints": "{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 9223372036854775807 }} {{ 00 }}",
    "tuple statement": "{% set a = 1, 2 %}{{ a }}{{ 1, 2 }}",
    # expressions
    "arithmetic": "{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
    "bool arithmetic": "{{ true + 1 }} {{ true / 2 }} {{ -true }} {{ +2.5 }}", "concat": "{{ 1 ~ 'a' ~ none ~ 2.0 ~ [1] ~ missing }} {{ 1 ~ 2 * 2 }}",
    "string arithmetic": "{{ 'ab' * 3 }} {{ 2 * [1, 2] }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'x' * -1 }}|",
    "compare": "{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) == [1] }} {{ 'a' != 'b' }} {{ none == none }} {{ missing == other }} {{ {'a': 1} == {'a': 1.0} }}",
    "in": "{{ 1 in [1] }} {{ 'ell' in s }} {{ 'a' in d }} {{ 'q' not in d }} {{ 2 in (1, 2) }} {{ 1 in missing }} {{ not 1 in [2] }} {{ '' in 'a' }} {{ 'a' in 'abc' == true }}",
    "logic": "{{ true and false }} {{ 0 or 'x' }} {{ '' and 1 }}| {{ not none }} {{ not (1 and 0) or 2 }} {{ 1 and 2 or 3 }} {{ missing or 'd' }} {{ not not 1 }}",
    "inline if": "{{ 'a' if t else 'b' }} {{ 'a' if z }}| {{ 'a' if z else 'b' if z else 'c' }} {{ ('x' if t) ~ 1 }} {{ 1 if t if z else 2 }}",
    "precedence": "{{ 'p' + 2 ~ 3 + '4' }} {{ 1 if 0 or 1 and not 0 else 2 }} {{ -1|abs }} {{ (-3)|abs + 1 }} {{ 'a,b' .split(',')|join('-') ~ '!' }} {{ 2 * 3 ~ 4 }} {{ 1 - 1 - 1 }} {{ not 1 == 2 }}",
    "subscript": "{{ l[0] }} {{ l[-1] }} {{ d['a'][1] }} {{ d.a[0] }} {{ people.0.name }} {{ u[2] }} {{ s[-1] }} {{ l[9] }}| {{ d['none'] }}| {{ (1, 2)[1] }} {{ l[true] }}",
    "slices": "{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ s[2:5] }} {{ u[::-1] }} {{ s[::2] }} {{ s[-3:] }} {{ l[5:] }} {{ s[10:2:-3] }} {{ l[::-2] }} {{ (1, 2, 3)[1:] }} {{ l[:2][0] }} {{ l[-2:none:1] }} {{ u[5:8] }} {{ ''[::-1] }}",
    "method first": "{{ d.items is callable }} {{ d['items'] }} {{ {}['items'] is defined }} {{ {}.items is defined }}", "literals": "{{ [1, 2,] }} {{ {'a': 1,} }} {{ (1, 2,) }} {{ True }} {{ None }} {{ {} }} {{ [] }} {{ {1: 2, 1: 3} }}",
    # statements
    "if chain": "{% for i in range(4) %}{% if i == 0 %}a{% elif i == 1 %}b{% elif i == 2 %}c{% else %}d{% endif %}{% endfor %}",
    "for": "{% for x in l %}{{ x }},{% endfor %} {% for c in 'äb' %}[{{ c }}]{% endfor %} {% for k in d %}{{ k }} {% endfor %}{% for x in missing %}no{% endfor %}",
    "for unpack": "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}{% for (a, b) in [[1, 2]] %}{{ a }}{{ b }}{% endfor %}",
    "for if": "{% for x in [1, 2, 3, 4, 5] if x is odd %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ '' if loop.last else ',' }}{% endfor %}",
    "for if late": "{% set ns = namespace(stop=0) %}{% for x in [1, 2, 3, 4] if ns.stop < 2 %}{{ x }}{% set ns.stop = ns.stop + 1 %}{% endfor %}",
    "for else": "{% for x in e %}a{% else %}none{% endfor %} {% for x in l %}{{ x }}{% else %}no{% endfor %} {% for x in l if x > 9 %}a{% else %}filtered{% endfor %}",
    "break continue": "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}", "break else": "{% for x in l %}{% break %}{% else %}E{% endfor %}{% for x in l %}{% continue %}{% else %}C{% endfor %}",
    "loop": "{% for x in ['a', 'b', 'c'] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.cycle('x', 'y') }};{% endfor %}",
    "loop changed": "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}", "nested loop": "{% for a in [1, 2] %}{% set outer = loop %}{% for b in 'xy' %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "scope": "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if t %}{% set x = 9 %}{% endif %}{{ x }}", "scope over variables": "{{ n }}{% for i in [1] %}{% set n = 7 %}{{ n }}{% endfor %}{{ n }}",
    "set later": "{{ n }}{% for i in [1] %}{{ n }}{% endfor %}{% set n = 7 %}{{ n }}{% for i in [1] %}{{ s is defined }}{% endfor %}{% set s = 1 %}{{ s }}", "set later in macro": "{% macro q() %}{{ f is defined }}{{ t }}{% endmacro %}{{ q() }}{% if t %}{% set t = 5 %}{% endif %}{{ q() }}{% set f = 1 %}{{ q() }}",
    "set later in loop": "{% for i in [1, 2] %}{% for j in [1] %}[{{ n }}]{% endfor %}{% set n = i %}{{ n }}{% endfor %}{{ n }}", "spare arguments": "{{ 'x' % [1] }}{{ 'x' % missing }}{{ '%s' % missing }}|{{ '%s' % [1] }}{{ 'x' % {} }}",
    "loop outside": "{% for x in l %}{% endfor %}{{ loop is defined }}", "namespace": "{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }} {{ ns['b'] }} {{ ns.c is defined }} {{ namespace({'q': 2}).q }} {{ ns }}",
    "set tuple": "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set ns = namespace() %}{% set ns.x, c = 'xy' %}{{ ns.x }}{{ c }}", "set block": "{% set a %}x {{ n }}\n  y{% endset %}[{{ a }}]{% set b | upper | trim %} abc {% endset %}[{{ b }}] {{ a is string }}",
    "macro": "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(1, c='z') }} {{ f(a=5, b=6) }} {{ f() }} {{ f(1)|length }}",
    "macro default": "{% macro f(a, b=a ~ '!') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{% set q = 5 %}{% macro g() %}{{ q }}{% endmacro %}{% set q = 6 %}{{ g() }}", "macro recursive": "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "macro extra": "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}{% macro g() %}{{ caller is defined }}{% endmacro %}{{ g() }}", "macro scope": "{% macro f() %}{% set q = 1 %}{{ q }}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}{{ q }}",
    "call block": "{% macro box(title) %}[{{ title }}: {{ caller() }}]{% endmacro %}{% call box('T') %}body {{ n }}{% endcall %}", "call block with arguments": "{% macro each(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) each(l) %}<{{ x }}>{% endcall %}",
    "filter block": "{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b') | indent(2) %}aa\naa{% endfilter %}", "with": "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "generation tag": "a{% generation %}{% set q = 1 %}{{ n }}{{ q }}{% endgeneration %}b{{ q is defined }}",
    # tests
    "tests types": "{% for v in [n, f, t, z, s, l, d, (1,), missing, range(2), d.keys(), l|map('abs')] %}{{ v is defined }}{{ v is undefined }}{{ v is none }}{{ v is string }}{{ v is number }}{{ v is integer }}{{ v is float }}{{ v is boolean }}{{ v is mapping }}{{ v is sequence }}{{ v is iterable }}{{ v is true }}{{ v is false }}{{ v is callable }}\n{% endfor %}",
    "tests values": "{{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 1 is eq 1 }} {{ 1 is equalto(2) }} {{ 1 is in [1, 2] }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 'Ab' is lower }} {{ 1 is not none }} {{ 1 is not in [1] }} {{ none is not defined }} {{ 5 is gt 3 and 2 is le 2 }} {{ '1' is upper }}",
    # filters
    "trim": "[{{ '  a b  '|trim }}] [{{ 'xxaxx'|trim('x') }}] [{{ '\u00a0\u3000a\u2003'|trim }}] [{{ 5|trim }}]", "case": "{{ u|upper }} {{ u|lower }} {{ u|title }} {{ u|capitalize }} {{ 'hello wORLD-foo (bar'|title }} {{ 'ǆ ǅ ﬁ ŉ İ ΑΣ ΑΣΑ ᾳ'|upper }} {{ 'Ǆ İ ΑΣ ΑΣΑ Σ ΑΣ.'|lower }} {{ 'ǆab ß'|capitalize }} {{ true|upper }} {{ none|lower }}",
    "length": "{{ u|length }} {{ l|count }} {{ d|length }} {{ missing|length }} {{ ''|length }} {{ d.items()|length }}", "default": "{{ missing|default('x') }} {{ missing|d }}| {{ ''|default('y') }} {{ ''|default('y', true) }} {{ none|default('n') }} {{ 0|default(5, boolean=true) }} {{ missing.a|default('q') if missing else 'safe' }}",
    "join": "{{ l|join }} {{ l|join(', ') }} {{ people|join('/', attribute='name') }} {{ [1, none, 'a', missing]|join('-') }} {{ 'abc'|join('.') }} {{ d|join(',') }} {{ []|join(1) }}|{{ ['a', 'b']|join(1) }}",
    "first last": "{{ l|first }} {{ l|last }} {{ s|first }} {{ u|last }} {{ e|first }}| {{ e|last is defined }} {{ d|first }} {{ d|last }}", "list": "{{ 'äb'|list }} {{ d|list }} {{ range(3)|list }} {{ d.values()|list }} {{ (1, 2)|list }} {{ missing|list }}",
    "int float": "{{ '42'|int }} {{ ' -7 '|int }} {{ '42.9'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.99|int }} {{ -3.99|int }} {{ true|int }} {{ none|int }} {{ '0x1f'|int(0, 16) }} {{ 'ff'|int(base=16) }} {{ '1_000'|int }} {{ '1e3'|int }} {{ '3.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ ' 1e3 '|float }} {{ 'inf'|float }} {{ '-.5'|float }} {{ '5.'|float }} {{ '.'|float }} {{ 'NaN'|float }} {{ [1]|float }}",
    "string abs": "{{ 5|string ~ 1 }} {{ [1]|string|length }} {{ -5|abs }} {{ -2.5|abs }} {{ missing|string }}|", "replace": "{{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'|replace('', '-') }} {{ 5|replace(5, 6) }} {{ 'äöä'|replace('ä', 'ae') }} {{ 'abc'|replace('', '-', 2) }} {{ 'aXbX'|replace('X', '') }}",
    "indent": "{{ lines|indent }}|{{ lines|indent(2, true) }}|{{ lines|indent('>', blank=true) }}|{{ lines|indent(width=1, first=true, blank=true) }}|{{ 'a\r\nb\u2028c'|indent(1) }}|{{ 'a\n'|indent }}|", "map": "{{ people|map(attribute='name')|join(',') }} {{ l|map('string')|list }} {{ ['a ']|map('trim')|first }} {{ people|map(attribute='at.city')|list }} {{ people|map(attribute='nope', default='?')|join }} {{ ['a', 'b']|map('replace', 'a', 'x')|list }} {{ l|map('float')|map('int')|list }} {{ e|map('upper')|list }} {{ [[1, 2], [3, 4]]|map(attribute=0)|list }} {{ [[1, 2], [3, 4]]|map('last')|list }}",
    "select": "{{ [0, 1, '', 'a', none]|select|list }} {{ [0, 1, '']|reject|list }} {{ range(6)|select('odd')|list }} {{ range(6)|reject('odd')|list }} {{ [1, 2, 3]|select('in', [1, 3])|list }} {{ [1, 2, 3]|select('>', 1)|list }} {{ ['a', 1]|select('string')|list }} {{ (l|select('odd')) is true }} {{ 'y' if l|select('equalto', 99) else 'n' }}",
    "selectattr": "{{ people|selectattr('age', 'equalto', 30)|map(attribute='name')|list }} {{ people|rejectattr('age', 'gt', 26)|map(attribute='name')|list }} {{ people|selectattr('nope')|list }} {{ people|selectattr('at.city', 'eq', 'Bonn')|list|length }} {{ people|selectattr('nope', 'defined')|list }} {{ people|rejectattr('nope', 'defined')|list|length }}",
    "iterator once": "{% set g = l|map('abs') %}{{ g|list }}{{ g|list }}{{ 1 in g }}", "unique": "{{ [1, 2, 1, 'a', 'A', 1.0]|unique|list }} {{ ['a', 'A']|unique(true)|list }} {{ people|unique(attribute='age')|map(attribute='name')|list }}", "sort": "{{ l|sort }} {{ ['b', 'A', 'a', 'B']|sort }} {{ ['b', 'A', 'a', 'B']|sort(case_sensitive=true) }} {{ l|sort(reverse=true) }} {{ people|sort(attribute='name')|map(attribute='name')|list }} {{ people|sort(attribute='age,name')|map(attribute='name')|list }} {{ people|sort(true, attribute='age')|map(attribute='name')|list }} {{ d|sort }} {{ 'hello'|sort|join }}",
    "reverse": "{{ l|reverse|list }} {{ s|reverse }} {{ u|reverse }} {{ (1, 2)|reverse|list }} {{ d|reverse|list }} {{ e|reverse|list }}", "sum": "{{ l|sum }} {{ l|sum(start=10) }} {{ people|sum('age') }} {{ people|sum(attribute='age', start=0.5) }} {{ [[1], [2]]|sum(start=[]) }} {{ e|sum }}", "round": "{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 42.55|round(1, 'floor') }} {{ 42.55|round(1, 'ceil') }} {{ 5|round }} {{ 5|round(1) }} {{ 1.005|round(2) }} {{ -0.4|round }} {{ 1234.5678|round(3) }} {{ 2.1|round(0, 'ceil') }} {{ 7|round(0, 'floor') }} {{ 1e30|round(2) }} {{ 42.55|round|int }}",
    "min max": "{{ l|min }} {{ l|max }} {{ ['b', 'A']|min }} {{ ['b', 'A']|max }} {{ (people|max(attribute='age')).name }} {{ e|min }}| {{ ['b', 'A']|min(true) }} {{ people|map(attribute='age')|min }}", "groupby": "{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{% endfor %}{% for city, who in people|groupby('at.city') %}{{ city }}{{ who|length }} {% endfor %}{% for k, v in people|groupby('nope', default='?') %}{{ k }}{{ v|length }}{% endfor %} {{ [{'a': 1}]|groupby('a') }}",
    "dictsort": "{{ d|dictsort }} {{ {'b': 2, 'A': 1, 'c': 0}|dictsort }} {{ {'b': 2, 'A': 1}|dictsort(true) }} {{ {'b': 2, 'A': 1, 'c': 0}|dictsort(by='value') }} {{ {'b': 2, 'A': 1}|dictsort(reverse=true) }}{% for k, v in {'y': 1, 'x': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}", "batch": "{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 0)|list }} {{ []|batch(3)|list }} {{ 'abc'|batch(5)|list }} {{ [1, 2, 3, 4]|batch(2, 'x')|list }}",
    "items": "{{ d|items|list }} {% for k, v in d|items %}{{ k }}{{ v }}{% endfor %} {{ missing|items|list }}", "escape": "{{ x|e }} {{ x|escape|e }} {{ x|safe }} {{ (x|e) + '<b>' }} {{ '<i>' + (x|safe) }} {{ (x|e) ~ '<b>' }} {{ (x|e)|upper }} {{ 5|e }} {{ none|e }} {{ [x|safe] }} {{ (x|safe)[1:3] + '<' }} {{ '<'|e|length }}",
    "format": "{{ '%s-%d-%5.1f|%-5s|%05d|%x|%%' % ('a', 3, 2.25, 'b', 42, 255) }} {{ '%s' % 5 }} {{ '%s!'|format('x') }} {{ '%r %i %+d' % ('q', 3.9, 5) }} {{ '{} {1} {a}'.replace('{}', '{0}').format(1, 2, a='z') }} {{ '{}{{}}{}'.format('x', [1]) }} {{ '%.2s' % 'abc' }} {{ '%3s|%-3s|' % ('é', 'é') }} {{ '%X' % 48879 }} {{ '%.3f' % 2 }} {{ '%s' % none }} {{ '%s %s' % (1, [2]) }}",
    "tojson": "{{ d|tojson }} {{ u|tojson }} {{ x|tojson }} {{ [1, 2.0, true, none, 'a\"\\\\\\n\\t\\x01\\x7f/\\b\\f', (1, 2)]|tojson }} {{ {}|tojson }} {{ []|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ {1: 2, none: 3, true: 4, 2.5: 5}|tojson }} {{ 1e100|tojson }}", "tojson indent": "{{ d|tojson(indent=2) }}\n{{ [[], {}, [1, [2]]]|tojson(indent=1) }} {{ [1]|tojson(indent=0) }} {{ d|tojson(indent='\t') }} {{ people|tojson(indent=4) }}",
    "tojson options": "{{ {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true) }} {{ [1, {'a': 2}]|tojson(separators=(',', ':')) }} {{ [1, 2]|tojson(indent=2, separators=(' ;', ' = ')) }}",
    # methods
    "strip": "[{{ ' a '.strip() }}] [{{ 'xya'.lstrip('yx') }}] [{{ 'a\\n\\n'.rstrip('\\n') }}] [{{ 'äaä'.strip('ä') }}] [{{ ' a '.lstrip() }}]", "split": "{{ 'a,b,,c'.split(',') }} {{ ' a  b\u2003c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b  c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a--b--c'.split('--') }} {{ 'a b c'.split(sep=' ')[-1] }} {{ 'aXbXc'.rsplit('X') }} {{ 'a b'.split(maxsplit=0) }} {{ '  a b '.rsplit(none, 0) }}",
    "affixes": "{{ s.startswith('Hell') }} {{ s.endswith('d') }} {{ s.startswith(('x', 'H')) }} {{ ''.startswith('') }} {{ 'abc'.removeprefix('ab') }} {{ 'abc'.removesuffix('bc') }} {{ 'abc'.removesuffix('x') }}", "find": "{{ 'äbäb'.find('b') }} {{ 'äbäb'.rfind('b') }} {{ 'abc'.find('z') }} {{ 'abc'.index('c') }} {{ 'aaaa'.count('aa') }} {{ 'äb'.count('') }} {{ 'abab'.replace('a', 'x', 1) }} {{ 'abc'.rfind('') }}",
    "str methods": "{{ 'ab cD'.upper() }} {{ 'AB'.lower() }} {{ \"they're bill's\".title() }} {{ 'x y ǆz 1a'.title() }} {{ 'hELLO wORLD'.capitalize() }} {{ ', '.join(['a', 'b']) }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'a\\nb'.splitlines(true) }} {{ 'ab'.isalpha() }} {{ '1²'.isdigit() }} {{ 'a1Ⅳ½'.isalnum() }} {{ ' \\t'.isspace() }} {{ 'aB'.islower() }} {{ 'AB1'.isupper() }} {{ ''.isalpha() }} {{ 'ªaⅰ'.islower() }} {{ 'ⅠǅA'.isupper() }}",
    "dict methods": "{{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.keys() }} {{ d.values() }} {{ d.items() }} {{ d.keys()|list }} {{ 'a' in d.keys() }} {{ 1 in d.values() }} {{ {'a': 1}.copy() }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('p', 1)]) }} {{ {}.keys()|length }} {{ d.items()|first }}", "list methods": "{{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }} {{ (1, 2).index(2) }} {{ l.copy() }}",
    "range": "{{ range(3) }} {{ range(1, 4)|list }} {{ range(10, 0, -3)|list }} {{ range(5)[1:3] }} {{ range(5)[-1] }} {{ range(0)|list }} {{ 3 in range(5) }} {{ range(3)|sum }} {{ range(0, 10, 2) }} {{ range(4)[::-1]|list }}", "strftime": "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y %H:%M:%S %A %B %j %% %f%z%Z|') }}{{ strftime_now('') }}",
    "function names": "{{ range is defined }} {{ namespace is callable }} {{ raise_exception is defined }} {{ strftime_now is defined }}",
    # errors
    "raise": "{{ raise_exception('Roles must alternate: ' ~ n) }}", "raise in branch": "{% if n > 2 %}{{ raise_exception('too \"many\" <ümlaut>') }}{% endif %}", "raise not taken": "{% if n > 9 %}{{ raise_exception('no') }}{% endif %}ok",
    "undefined attribute": "a\n{{ missing.attr }}", "undefined deeper": "{{ d.nope.deeper }}", "undefined none": "{{ z.nope.deeper }}", "undefined call": "{{ missing() }}", "undefined method": "{{ s.nope() }}", "undefined item": "{{ l[10].x }}", "undefined add": "{{ missing + 1 }}", "undefined slice": "{{ missing[1:] }}", "undefined loop": "{% for x in l %}{{ loop.previtem.x }}{% endfor %}", "undefined parameter": "{% macro f(a) %}{{ a.b }}{% endmacro %}{{ f() }}", "undefined tojson": "{{ missing|tojson }}", "undefined int": "{{ missing|int }}",
    "barred append": "{{ l.append(1) }}", "barred update": "{% set q = d.update({'a': 1}) %}", "barred defined": "{{ l.append is defined }}", "type add": "{{ 1 + 'a' }}", "type concat none": "{{ 'a' + none }}", "type compare": "{{ 1 < 'a' }}", "type iterate": "{% for x in 5 %}{% endfor %}", "type call": "{{ s() }}", "type join": "{{ ''.join([1]) }}", "zero": "{{ 1 / 0 }}", "zero mod": "{{ 1 % 0 }}", "unpack few": "{% for a, b in [[1]] %}{% endfor %}", "unpack many": "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "length of number": "{{ 5|length }}", "length of iterator": "{{ l|map('abs')|length }}", "last of iterator": "{{ l|map('abs')|last }}", "generator item": "{{ (l|map('abs'))[0] }}|", "unhashable": "{{ {[1]: 2} }}", "unhashable unique": "{{ [[1], [2]]|unique|list }}", "sort mixed": "{{ [1, 'a']|sort }}", "index missing": "{{ 'abc'.index('z') }}", "macro too many": "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "macro unknown keyword": "{% macro f(a) %}{% endmacro %}{{ f(q=2) }}", "filter argument": "{{ s|trim(1, 2) }}", "not a namespace": "{% set q = {} %}{% set q.a = 1 %}", "range too big": "{{ range(100001)|list }}", "empty separator": "{{ 'a'.split('') }}", "spare argument": "{{ 'x' % 1 }}", "block gives a number": "{% filter length %}abc{% endfilter %}", "in number": "{{ 1 in 5 }}", "in string": "{{ 1 in 'a' }}", "step zero": "{{ l[::0] }}", "items of list": "{{ l|items|list }}",
    "syntax end": "{% if t %}", "syntax tag": "{{ n", "syntax comment": "a {# b", "syntax raw": "{% raw %}x", "syntax expression": "{{ 1 + }}", "syntax brackets": "{{ (1 }}", "syntax mismatch": "{{ [1) }}", "syntax stray end": "{% endif %}", "syntax nesting": "{% if t %}{% for x in l %}{% endif %}{% endfor %}", "syntax empty": "{{ }}", "syntax string": "{{ 'a }}", "syntax keyword order": "{{ f(a=1, 2) }}", "syntax assign": "{% set 1 = 2 %}", "syntax default order": "{% macro f(a=1, b) %}{% endmacro %}", "syntax character": "{{ 1 ! 2 }}", "syntax two tests": "{{ 1 is odd is even }}", "syntax filter then dot": "{{ s|upper.x(1) }}",
    "syntax two values": "{{ 1 2 }}", "syntax for": "{% for x %}{% endfor %}", "syntax line": "a\nb\n{{ 'x' 1 }}\n", "syntax escape": "{{ '\\x4' }}", "syntax set true": "{% set true = 1 %}",
}


def main():
    os.environ["TZ"] = "UTC"
    time.tzset()
    smollm2, qwen, out = sys.argv[1:]
    real, tooled = (gguf.GGUFReader(model).fields["tokenizer.chat_template"].contents() for model in (smollm2, qwen))
    cases = []

    def add(name, template, variables):
        cases.append({"name": name, "template": template, "vars": variables, **render(template, variables)})

    for i, messages in enumerate(CONVERSATIONS + FAILING):
        for prompt in (True, False):
            add(f"real {i} {prompt}", real, {"messages": messages, "add_generation_prompt": prompt, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    for i, messages in enumerate(CONVERSATIONS + FAILING):
        add(f"qwen {i}", tooled, {"messages": messages, "add_generation_prompt": i % 3 > 0, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})
    for i, (messages, tools) in enumerate(TOOL_CONVERSATIONS):
        add(f"qwen tools {i}", tooled, {"messages": messages, "tools": tools, "add_generation_prompt": i % 2 == 0, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})
    for style, template in STYLES.items():
        for i, variables in enumerate(STYLE_VARS):
            add(f"{style} {i}", template, {"bos_token": "<bos>", "eos_token": "<eos>", "strftime_now": 0, **variables})
    for name, template in FEATURES.items():
        add(name, template, {**V, "strftime_now": 1785456000.25})
    with open(out, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=True) for c in cases) + "\n]\n")
    kinds = [c.get("error", "output") for c in cases]
    print({k: kinds.count(k) for k in sorted(set(kinds))})


if __name__ == "__main__":
    main()
