"""Renders the templates beside it with the reference implementation's own environment, as fixtures.json.

    python make.py            needs: transformers, jinja2 (their versions are written into the file)

Tests hold Paceline's rendering against it, character for character. Each case is a conversation as templates get it; what the reference
refuses is kept as the words it refused with. Dates are written as <strftime FORMAT>.
"""

import json
import pathlib

import jinja2
import transformers
from transformers.utils.chat_template_utils import _alias_reasoning_fields, _compile_jinja_template

HERE = pathlib.Path(__file__).parent
MADE_BY = f"make.py, transformers {transformers.__version__}, jinja2 {jinja2.__version__}"

SYSTEM = {"role": "system", "content": "Be brief.  "}
HELLO = {"role": "user", "content": " Grüß <b>dich</b> & \"you\"\n"}
ANSWER = {"role": "assistant", "content": "Hallo 🦀"}
MORE = {"role": "user", "content": "And now?"}
THOUGHT = {"role": "assistant", "content": "It is 4.", "reasoning_content": "2 + 2\nis 4"}
INLINE = {"role": "assistant", "content": "<think>\nso\n</think>\n\nIt is 5."}
READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file <of> the user's",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Wo liegt sie? \"hier\""},
                "lines": {"type": "array", "items": {"type": "integer", "minimum": 0}, "default": []},
                "deep": {"type": "boolean", "default": False},
            },
            "required": ["path"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "time", "description": "The time"}}


def call(number, name, arguments):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call(1, "read_file", {"path": "a/b.rs", "lines": [1, 2], "deep": True, "ratio": 0.5, "more": {"é": None}})],
}
CALLS = {
    "role": "assistant",
    "content": "Let me see.",
    "reasoning_content": "files first",
    "tool_calls": [call(1, "read_file", {"path": "x"}), call(2, "time", {})],
}
RESULT = {"role": "tool", "content": "fn main() {}\n", "tool_call_id": "call_1", "name": "read_file"}
RESULT_2 = {"role": "tool", "content": '{"hour": 12}', "tool_call_id": "call_2", "name": "time"}

CONVERSATIONS = {
    "one question": ([HELLO], None, {}),
    "a system message": ([SYSTEM, HELLO, ANSWER, MORE], None, {}),
    "earlier thoughts": ([HELLO, THOUGHT, MORE, INLINE, HELLO], None, {}),
    "a thought behind the question": ([HELLO, CALLS, RESULT, RESULT_2], [READ, TIME], {}),
    "tools": ([SYSTEM, HELLO], [READ, TIME], {}),
    "tools without a system message": ([HELLO], [READ], {}),
    "a call and its answer": ([SYSTEM, HELLO, CALL, RESULT, ANSWER, MORE], [READ], {}),
    "calls without tools": ([HELLO, CALL, RESULT], None, {}),
    "two calls and answers": ([SYSTEM, HELLO, CALLS, RESULT, RESULT_2], [READ, TIME], {}),
    "thinking on": ([HELLO], None, {"enable_thinking": True}),
    "thinking off": ([SYSTEM, HELLO], None, {"enable_thinking": False}),
    "a date": ([HELLO], None, {"date_string": "01 Jan 2026", "tools_in_user_message": False}),
    "tools in the system turn": ([HELLO], [READ], {"tools_in_user_message": False}),
    "an answer first": ([ANSWER, HELLO], None, {}),
    "only a system message": ([SYSTEM], None, {}),
    "an empty question": ([{"role": "user", "content": ""}], None, {}),
}
# Of published templates.
CORPUS = [
    "a system message",
    "a thought behind the question",
    "tools without a system message",
    "a call and its answer",
    "two calls and answers",
    "thinking off",
]
# Of templates that know an amount of thinking, or thoughts of earlier turns that stay.
LATER = [HELLO, THOUGHT, MORE, CALLS, RESULT, RESULT_2]
THINKING = {
    "little thinking": ([HELLO], None, {"reasoning_effort": "low"}),
    "some thinking": ([SYSTEM, HELLO], None, {"reasoning_effort": "medium"}),
    "much thinking beside tools": ([SYSTEM, HELLO], [READ], {"reasoning_effort": "xhigh"}),
    "an amount that no template knows": ([HELLO], None, {"reasoning_effort": "very high"}),
    "an amount without thinking": ([HELLO], None, {"reasoning_effort": "low", "enable_thinking": False}),
    "earlier thoughts that stay": (LATER, [READ, TIME], {"preserve_thinking": True}),
    "earlier thoughts that go": (LATER, [READ, TIME], {"preserve_thinking": False}),
}
IMAGE = {"type": "image"}


def shown(role, *parts):
    return {"role": role, "content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]}


# Of templates that show images.
IMAGES = {
    "an image and a question": ([shown("user", IMAGE, "What is it?")], None, {}),
    "images between texts": ([SYSTEM, shown("user", "This", IMAGE, "or", IMAGE, "?"), ANSWER, shown("user", IMAGE)], None, {}),
    "an image of the assistant": ([HELLO, shown("assistant", "Look:", IMAGE), MORE], None, {}),
    "an image of a tool": ([HELLO, CALL, {**shown("tool", IMAGE, "done"), "tool_call_id": "call_1"}], [READ], {}),
    "an image of the system": ([shown("system", "Be brief.", IMAGE), HELLO], None, {}),
}
# Expressions in which other engines differ from Jinja2. Each is rendered alone, with `none` as `tools` and a text as `text`.
EXPRESSIONS = [
    "{{ tools is iterable }}{{ missing is iterable }}{{ 'a' is iterable }}{{ {} is iterable }}{{ 3 is iterable }}",
    "{{ missing | length }}{{ missing | count }}{{ 'abc' | length }}{{ [1] | count }}",
    "{{ 'a\\nb\\n' | indent }}|{{ 'a\\n\\nb' | indent(2, true) }}|{{ 'a\\n\\nb\\n' | indent(width=1, blank=true) }}|{{ '' | indent }}",
    "{{ 'a\\nb' | indent('> ', first=true) }}|{{ 'a\\r\\nb' | indent }}",
    "{{ 'a b c'.split(' ', maxsplit=1) | join('/') }}|{{ 'a b c'.split(sep=' ') | join('/') }}|{{ ' a  b c '.split(none, 1) | join('/') }}",
    "{{ 'a b c'.split(maxsplit=1) | join('/') }}|{{ 'a b c'.rsplit(' ', maxsplit=1) | join('/') }}",
    "{{ 'aaa' | replace('a', 'b', 2) }}{{ 'aaa' | replace('a', 'b', count=1) }}{{ 'aaa' | replace('a', 'b') }}{{ 'aaa'.replace('a', 'b', 1) }}",
    "{{ '%s' % text }}|{{ '%s=%d' % ('a', 3) }}|{{ 'x' ~ '%s' % text.upper() ~ '%%' }}|{{ '%5.2f' % 1.5 }}|{{ 'a%sb' % [1][0] | string }}",
    "{{ \"they're bill's x-ray_foo\".title() }}|{{ \"they're bill's x-ray_foo (bar\" | title }}",
    "{{ 'the quick brown fox jumps' | truncate(12) }}|{{ 'a b c' | wordcount }}|{{ 'ab' | center(6) }}|",
    "{{ none }}{{ true }}{{ [none, 'a', true] }}{{ {'a': none} }}",
    "{{ 'a\\rb\\nc'.splitlines() | join('/') }}|{{ 'x'.isspace() }}{{ 'abc'.rindex('c') }}{{ 'abc'.index('b') }}{{ 'a'.zfill(3) }}|{{ 'ab'.center(6) }}|{{ 'ab'.ljust(4) }}|",
    "{{ (1, 2) }}{{ 'it\\'s' | list }}{{ {'a': 1}.items() | list }}{{ 7 // 2 }}{{ 7 / 2 }}{{ 2 ** 3 }}{{ 'a' * 3 }}",
    "{{ [1, 2, 3][-1] }}{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ [3, 1] | sort | first }}{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | list }}",
    "{{ 'A' if 'a' in {'a': 1} else 'B' }}{{ 'abc' | first }}{{ 'abc' | last }}{{ dict(a=1) }}",
    "{{ text | default('x') }}{{ missing | default('y') }}{{ '' | default('z', true) }}{{ tools | d('n', true) }}{{ tools or [] }}",
]
WORDS = {"words": ([{"role": "user", "content": "hello old world"}, {"role": "assistant", "content": "x"}], None, {})}


def render(source, conversation):
    messages, tools, arguments = conversation
    source = source.replace("\r\n", "\n")
    template = _compile_jinja_template(source)
    template.environment.globals["strftime_now"] = lambda pattern: f"<strftime {pattern}>"
    template = template.environment.from_string(source)
    messages = _alias_reasoning_fields(messages)
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>"}
    try:
        prompt = template.render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=True, **tokens, **arguments
        )
        return {"rendered": prompt}
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        return {"error": str(error)}


def expression(source):
    try:
        template = _compile_jinja_template(source)
        return {"source": source, "rendered": template.render(tools=None, text="te<x>t")}
    except Exception as error:
        return {"source": source, "error": f"{type(error).__name__}: {error}"}


def main():
    cases = []
    for path in sorted((HERE / "corpus").glob("*.jinja")):
        for name in CORPUS:
            messages, tools, arguments = CONVERSATIONS[name]
            case = {"template": f"corpus/{path.name}", "name": name, "messages": messages, "tools": tools, "arguments": arguments}
            cases.append(case | render(path.read_text(), CONVERSATIONS[name]))
    for path in sorted(HERE.glob("*.jinja")):
        source = path.read_text()
        conversations = WORDS if path.stem == "words" else CONVERSATIONS
        if "preserve_thinking" in source:
            conversations = conversations | THINKING
            if "'</think>' in content" not in source:
                # It shows thoughts of their own field alone. Paceline moves those in a text there before it renders.
                del conversations["earlier thoughts"]
        if "<|image_pad|>" in source:
            conversations = conversations | IMAGES
        for name, conversation in conversations.items():
            messages, tools, arguments = conversation
            case = {"template": path.name, "name": name, "messages": messages, "tools": tools, "arguments": arguments}
            cases.append(case | render(source, conversation))
    fixtures = {"made_by": MADE_BY, "cases": cases}
    expressions = {"made_by": MADE_BY, "cases": [expression(source) for source in EXPRESSIONS]}
    (HERE / "expressions.json").write_text(json.dumps(expressions, ensure_ascii=False, indent=1) + "\n")
    (HERE / "fixtures.json").write_text(json.dumps(fixtures, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
