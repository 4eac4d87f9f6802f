"""The unmodified packages while the target is killed under their streams: `python killed.py PACKAGE`.

The program streams each answer once undisturbed. Then it writes `ready`, waits for a line, and streams the answer
again. At the first piece it writes `begun`, upon which the target is killed, and reads on. `ended` says how often the
request was submitted again. A stream that ended before the kill is tried again.
"""

import json
import sys

from common import MODEL, anthropic_client, holds, openai_client, same

# Of a stream that has to meet the kill.
TRIES = 5
# The embedded target answers it with 187 tokens.
PROMPT = "Tell a long story."
TURNS = [{"role": "user", "content": PROMPT}]
ITEM = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "count"],
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
}
# The arguments are long enough to be cut by the kill.
PARAMETERS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["items"],
    "properties": {"items": {"type": "array", "items": ITEM, "minItems": 8, "maxItems": 10}},
}


def extension(answer):
    """How often the request was submitted again, by the fields that the packages do not know."""
    return (getattr(answer, "paceline", None) or {}).get("resumed", 0)


def complete(arguments):
    """Arguments of a tool call that came whole."""
    holds("items", len(json.loads(arguments)["items"]) >= 8, arguments)
    return arguments


def chat(first, **fields):
    text, thought, calls, ends, tokens, resumed = "", "", {}, [], 0, 0
    asked = {"model": MODEL, "messages": TURNS, "max_tokens": 300, "temperature": 0, **fields}
    stream = openai_client().chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        for choice in chunk.choices:
            first()
            text += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                name, arguments = calls.get(call.index, ("", ""))
                calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
            ends += [choice.finish_reason] if choice.finish_reason else []
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        resumed = max(resumed, extension(chunk))
    if "tools" in fields:
        complete(calls[0][1])
    return (text, thought, calls, ends, tokens), resumed


def chat_text(first):
    return chat(first, extra_body={"ignore_eos": True})


def chat_reasoning(first):
    (text, thought, *rest), resumed = chat(first, reasoning_effort="low", extra_body={"ignore_eos": True})
    holds("a thought", thought, text)
    return (text, thought, *rest), resumed


def chat_tools(first):
    function = {"name": "store", "parameters": PARAMETERS, "strict": True}
    tools = [{"type": "function", "function": function}]
    return chat(first, tools=tools, tool_choice="required", parallel_tool_calls=False, reasoning_effort="none")


def response(first, **fields):
    deltas, last = {}, None
    asked = {"model": MODEL, "input": PROMPT, "max_output_tokens": 300, "temperature": 0, "store": False, **fields}
    for event in openai_client().responses.create(**asked, stream=True):
        if event.type.endswith(".delta"):
            first()
            deltas[event.type] = deltas.get(event.type, "") + event.delta
        if event.type in ("response.completed", "response.incomplete"):
            last = event.response
    holds("an end", last, deltas)
    output = [item.model_dump(exclude={"id", "call_id"}) for item in last.output]
    texts = lambda item: [part.get("text") for part in item.get("content") or []]
    parts = [(item["type"], texts(item), item.get("arguments")) for item in output]
    return (deltas, parts, last.status, last.usage.output_tokens), extension(last)


def responses_text(first):
    return response(first, reasoning={"effort": "none"})


def responses_reasoning(first):
    (deltas, *rest), resumed = response(first, reasoning={"effort": "low"})
    holds("a thought", any("reasoning" in kind for kind in deltas), deltas)
    return (deltas, *rest), resumed


def responses_tools(first):
    tools = [{"type": "function", "name": "store", "parameters": PARAMETERS, "strict": True}]
    (deltas, parts, *rest), resumed = response(
        first, tools=tools, tool_choice="required", parallel_tool_calls=False, reasoning={"effort": "none"}
    )
    same("kinds of items", [kind for kind, _, _ in parts], ["function_call"])
    complete(parts[0][2])
    return (deltas, parts, *rest), resumed


def message(first, **fields):
    resumed = 0
    asked = {"model": MODEL, "max_tokens": 300, "messages": TURNS, "extra_body": {"temperature": 0}, **fields}
    with anthropic_client().messages.stream(**asked) as stream:
        for event in stream:
            if event.type == "content_block_delta":
                first()
            if event.type == "message_delta":
                resumed = max(resumed, extension(event))
        final = stream.get_final_message()
    blocks = [block.model_dump(include={"type", "text", "thinking", "name", "input"}) for block in final.content]
    return (blocks, final.stop_reason, final.usage.output_tokens), resumed


def messages_text(first):
    return message(first, thinking={"type": "disabled"})


def messages_reasoning(first):
    (blocks, *rest), resumed = message(first, thinking={"type": "enabled", "budget_tokens": 1024})
    same("the first block", blocks[0]["type"], "thinking")
    return (blocks, *rest), resumed


def messages_tools(first):
    tools = [{"name": "store", "input_schema": PARAMETERS, "strict": True}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    (blocks, *rest), resumed = message(first, tools=tools, tool_choice=choice, thinking={"type": "disabled"})
    same("kinds of blocks", [block["type"] for block in blocks], ["tool_use"])
    holds("items", len(blocks[0]["input"]["items"]) >= 8, blocks)
    return (blocks, *rest), resumed


CASES = {
    "openai": [chat_text, chat_reasoning, chat_tools, responses_text, responses_reasoning, responses_tools],
    "anthropic": [messages_text, messages_reasoning, messages_tools],
}


def say(line):
    print(line, flush=True)


class Begun:
    """Writes `begun` at the first piece."""

    def __init__(self):
        self.said = False

    def __call__(self):
        if not self.said:
            self.said = True
            say("begun")


def killed(case):
    expected, _ = case(lambda: None)
    for _ in range(TRIES):
        say("ready")
        sys.stdin.readline()
        found, resumed = case(Begun())
        same(case.__name__, found, expected)
        say(f"ended {case.__name__}: submitted again {resumed} times")
        if resumed:
            return
    raise AssertionError(f"{case.__name__}: in {TRIES} tries no stream met a kill")


if __name__ == "__main__":
    for one in CASES[sys.argv[1]]:
        killed(one)
