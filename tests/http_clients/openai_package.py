"""The unmodified `openai` package against a running service. `python openai_package.py MANNER`."""

import json
import math
import sys

import openai
from common import (
    CALL,
    CALLED,
    CALLED_TWO,
    MODEL,
    PARAMETERS,
    QUESTION,
    STORY,
    TWO_CALLS,
    holds,
    openai_client,
    refused,
    same,
    schema,
)

client = openai_client()


def chat(text=QUESTION, **fields):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "temperature": 0, **fields})


def joined(chunks, index=0):
    """The text of one answer of a stream, and why it ended."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    ends = [choice.finish_reason for choice in choices if choice.finish_reason]
    same("ends of an answer", len(ends), 1)
    return "".join(choice.delta.content or "" for choice in choices), ends[0]


def models():
    served = client.models.list().data
    same("models", [model.id for model in served], [MODEL])
    same("the model by its name", client.models.retrieve(MODEL).id, MODEL)
    same("the model by a foreign name", client.models.retrieve("gpt-5").id, MODEL)
    holds("context length", served[0].context_length > 1000, served[0])


def chat_whole():
    answer = chat(max_completion_tokens=200)
    same("model", answer.model, MODEL)
    text = answer.choices[0].message.content
    holds("text", text, answer)
    same("finish_reason", answer.choices[0].finish_reason, "stop")
    usage = answer.usage
    same("total_tokens", usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
    holds("extension", answer.paceline["route"]["lane"] in ("plain", "speculative"), answer)
    same("text by a foreign model name", chat(model="gpt-5").choices[0].message.content, text)
    same("text of parts", chat([{"type": "text", "text": QUESTION}]).choices[0].message.content, text)

    short = chat(max_tokens=3)
    same("tokens of a short answer", (short.usage.completion_tokens, short.choices[0].finish_reason), (3, "length"))
    stop = text[4:8]
    cut = chat(stop=[stop, "never written"]).choices[0]
    same("text before a stop string", (cut.message.content, cut.finish_reason), (text[: text.index(stop)], "stop"))

    sampled = {"text": STORY, "temperature": 0.9, "max_tokens": 24}
    seeded = [chat(**sampled, seed=seed).choices[0].message.content for seed in (7, 7, 8)]
    same("text of the same seed", seeded[0], seeded[1])
    holds("text of another seed", seeded[2] != seeded[0], seeded)
    several = chat(**sampled, seed=7, n=3)
    same("indices", [choice.index for choice in several.choices], [0, 1, 2])
    same("the first of several", several.choices[0].message.content, seeded[0])
    holds("several answers", len({choice.message.content for choice in several.choices}) == 3, several)

    entries = chat(max_tokens=4, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    same("log-probabilities", len(entries), 4)
    holds("text of log-probabilities", text.startswith("".join(entry.token for entry in entries)), entries)
    for entry in entries:
        # Greedy: the chosen token is the most probable one.
        same("top", (len(entry.top_logprobs), entry.top_logprobs[0].logprob), (2, entry.logprob))
        holds("log-probability", -20 < entry.logprob <= 0 and math.isfinite(entry.logprob), entry)
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=1
    )
    holds("header of the lane", raw.headers.get("x-paceline-lane") in ("plain", "speculative"), raw.headers)
    holds("header of the id", raw.request_id and raw.request_id in raw.parse().id, raw.headers)


def chat_streamed():
    expected = chat().choices[0].message.content
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    same("streamed text", joined(chunks), (expected, "stop"))
    holds("more than one piece", len(chunks) > 4, chunks)
    same("one id", len({chunk.id for chunk in chunks}), 1)
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    same("one usage, in the last chunk", usages, [chunks[-1].usage])
    same("its choices", chunks[-1].choices, [])
    holds("its tokens", usages[0].completion_tokens > 0 and usages[0].prompt_tokens > 0, usages)
    holds("no usage unasked", not any(chunk.usage for chunk in chat(stream=True)), "usage")

    sampled = {"text": STORY, "temperature": 0.9, "max_tokens": 16, "seed": 7, "n": 2}
    whole = [choice.message.content for choice in chat(**sampled).choices]
    chunks = list(chat(**sampled, stream=True))
    same("streamed answers", [joined(chunks, index)[0] for index in (0, 1)], whole)

    logprobs = [
        entry
        for chunk in chat(max_tokens=4, logprobs=True, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    same("streamed log-probabilities", len(logprobs), 4)
    # A client that leaves early: the next one is served.
    stream = chat(STORY, stream=True)
    next(iter(stream))
    stream.close()
    same("after a client that left", chat().choices[0].message.content, expected)
    # The package's own assembly of a stream.
    messages = [{"role": "user", "content": QUESTION}]
    with client.chat.completions.stream(model=MODEL, messages=messages, temperature=0) as stream:
        same("assembled by the package", stream.get_final_completion().choices[0].message.content, expected)


def chat_cached():
    # 64 tokens are the least that the prefix cache keeps.
    long = "One, two, three, four, five, six, seven, eight. " * 30
    conversation = [{"role": "system", "content": long}, {"role": "user", "content": QUESTION}]
    ask = lambda: client.chat.completions.create(model=MODEL, messages=conversation, temperature=0, max_tokens=16)
    first = ask()
    same("cached at first", first.usage.prompt_tokens_details.cached_tokens, 0)
    reply = first.choices[0].message.model_dump()
    # The whole message as the package has it, as agents resend it.
    conversation += [reply, {"role": "user", "content": "And three birds?"}]
    second = ask().usage
    cached = second.prompt_tokens_details.cached_tokens
    holds("cached tokens of the second turn", first.usage.prompt_tokens // 2 < cached < second.prompt_tokens, second)


def tool(name):
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema(name)}}


def calls(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def chat_tools():
    tools = [tool(name) for name in PARAMETERS]
    answer = chat(CALL, tools=tools, max_tokens=96).choices[0]
    same("tool calls", calls(answer.message), [CALLED])
    same("finish_reason", answer.finish_reason, "tool_calls")
    same("text beside the tool call", (answer.message.content or "").strip(), "")
    two = chat(TWO_CALLS, tools=tools, max_tokens=128).choices[0].message
    same("two tool calls", calls(two), CALLED_TWO)
    holds("an id for each", len({call.id for call in two.tool_calls}) == 2, two)

    parts = {}
    chunks = list(chat(TWO_CALLS, tools=tools, max_tokens=128, stream=True))
    for chunk in chunks:
        for delta in (delta for choice in chunk.choices for delta in choice.delta.tool_calls or []):
            part = parts.setdefault(delta.index, {"name": "", "arguments": []})
            part["name"] += delta.function.name or ""
            part["arguments"].append(delta.function.arguments or "")
    streamed = [(part["name"], json.loads("".join(part["arguments"]))) for _, part in sorted(parts.items())]
    same("streamed tool calls", streamed, CALLED_TWO)
    holds("arguments in pieces", all(len(part["arguments"]) > 1 for part in parts.values()), parts)
    same("streamed end", joined(chunks)[1], "tool_calls")

    plain = chat(CALL, tools=tools, tool_choice="none", max_tokens=96).choices[0].message
    holds("text in the place of tool calls", not plain.tool_calls and "move_stock" in plain.content, plain)
    conversation = [
        {"role": "user", "content": CALL},
        answer.message.model_dump(),
        {"role": "tool", "tool_call_id": answer.message.tool_calls[0].id, "content": "moved"},
    ]
    again = client.chat.completions.create(model=MODEL, messages=conversation, tools=tools, max_tokens=8)
    holds("an answer after the tool's", again.usage.prompt_tokens > 0, again)
    forced = chat(CALL, tools=tools, tool_choice="required", max_tokens=128).choices[0].message
    holds("a forced tool call", forced.tool_calls and forced.tool_calls[0].function.name in PARAMETERS, forced)
    other = {"type": "function", "function": {"name": "other"}}
    error = refused("another tool", openai.BadRequestError, lambda: chat(CALL, tools=tools, tool_choice=other))
    same("its field", error.param, "tool_choice")


def completions():
    ask = lambda prompt, **fields: client.completions.create(
        **{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12, **fields}
    )
    prompt = "<|im_start|>user\nList three fruits.<|im_end|>\n<|im_start|>assistant\n"
    whole = ask("def add(a, b):")
    text = whole.choices[0].text
    same("tokens", (whole.usage.completion_tokens <= 12, bool(text)), (True, True))
    streamed = "".join(chunk.choices[0].text for chunk in ask("def add(a, b):", stream=True) if chunk.choices)
    same("streamed text", streamed, text)
    stop = text[2:5]
    same("text before a stop string", ask("def add(a, b):", stop=stop).choices[0].text, text[: text.index(stop)])
    sampled = {"temperature": 0.9, "seed": 7}
    same("the same seed", ask(prompt, **sampled).choices[0].text, ask(prompt, **sampled).choices[0].text)
    same("answers", len(ask(prompt, **sampled, n=2).choices), 2)
    same("token ids as the prompt", ask([5, 6, 7], max_tokens=2).usage.prompt_tokens, 3)
    logprobs = ask("def add(a, b):", max_tokens=4, logprobs=2).choices[0].logprobs
    same("log-probabilities", (len(logprobs.tokens), len(logprobs.token_logprobs)), (4, 4))
    holds("their tokens", text.startswith("".join(logprobs.tokens)), logprobs)
    several = ask(["def add(a, b):", "One, two,"])
    same("a list of prompts", [choice.index for choice in several.choices], [0, 1])
    apart = [text, ask("One, two,").choices[0].text]
    same("their texts", [choice.text for choice in several.choices], apart)
    error = refused("echo", openai.BadRequestError, lambda: ask(prompt, echo=True))
    same("its field", error.param, "echo")


def responses():
    ask = lambda **fields: client.responses.create(
        **{"model": MODEL, "input": QUESTION, "temperature": 0, "store": False, **fields}
    )
    whole = ask()
    expected = chat().choices[0].message.content
    same("text", whole.output_text, expected)
    same("status", whole.status, "completed")
    same("tokens", whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens)
    short = ask(max_output_tokens=16, input=STORY)
    same("a short answer", (short.status, short.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    turns = [{"role": "user", "content": QUESTION}, *whole.output]
    turns.append({"role": "user", "content": [{"type": "input_text", "text": "And three birds?"}]})
    holds("a second turn", ask(input=turns, instructions="Answer briefly.").output_text, "no text")

    events = list(ask(stream=True))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    same("streamed text", deltas, expected)
    kinds = [event.type for event in events]
    same("the first event", kinds[0], "response.created")
    same("the last event", kinds[-1], "response.completed")
    same("numbers", [event.sequence_number for event in events], list(range(len(events))))
    same("its text", events[-1].response.output_text, expected)
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, store=False) as stream:
        same("assembled by the package", stream.get_final_response().output_text, expected)

    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    logprobs = ask(**wanted).output[0].content[0].logprobs
    same("tokens with log-probabilities", bytes(sum((at.bytes for at in logprobs), [])).decode(), expected)
    same("alternatives", {len(at.top_logprobs) for at in logprobs}, {2})
    same("the likeliest", [at.top_logprobs[0].logprob for at in logprobs], [at.logprob for at in logprobs])
    deltas = [event for event in ask(stream=True, **wanted) if event.type == "response.output_text.delta"]
    streamed = [at.logprob for delta in deltas for at in delta.logprobs]
    same("streamed log-probabilities", streamed, [at.logprob for at in logprobs][: len(streamed)])
    holds("of all tokens of the text", len(streamed) + 1 >= len(logprobs), len(streamed))

    error = refused("tokens", openai.BadRequestError, lambda: ask(max_output_tokens=0))
    same("its field", error.param, "max_output_tokens")
    error = refused("state", openai.BadRequestError, lambda: ask(previous_response_id="resp_1"))
    same("its field", error.param, "previous_response_id")


def parsed():
    """Forms that the package reads, and the package's own messages of them, sent back as they are."""
    from pydantic import BaseModel, Field

    class Shelf(BaseModel):
        name: str = Field(max_length=12)
        rows: int = Field(ge=40, le=49)

    conversation = [{"role": "user", "content": "Describe a shelf."}]
    fields = {"model": MODEL, "temperature": 0, "response_format": Shelf}
    message = client.chat.completions.parse(messages=conversation, **fields).choices[0].message
    holds("a parsed answer", 40 <= message.parsed.rows <= 49, message)
    with client.chat.completions.stream(messages=conversation, **fields) as stream:
        streamed = stream.get_final_completion().choices[0].message
    same("a streamed one", streamed.parsed, message.parsed)
    for sent in (message, streamed, message.model_dump()):
        turns = [*conversation, sent, {"role": "user", "content": "Another one."}]
        again = client.chat.completions.parse(messages=turns, **fields).choices[0].message
        holds("a turn after it", isinstance(again.parsed, Shelf), again)
    response = client.responses.parse(model=MODEL, input=conversation, text_format=Shelf, temperature=0, store=False)
    same("by Responses", response.output_parsed, message.parsed)
    for output in (response.output, [item.model_dump() for item in response.output]):
        turns = [*conversation, *output, {"role": "user", "content": "Another one."}]
        again = client.responses.parse(model=MODEL, input=turns, text_format=Shelf, temperature=0, store=False)
        holds("a turn after it by Responses", isinstance(again.output_parsed, Shelf), again)


def parsed_tools():
    """Tool calls that the package reads, and the package's own messages of them, sent back as they are."""
    from pydantic import BaseModel

    class MoveStock(BaseModel):
        item: str
        count: int
        shelf: str

    tools = [openai.pydantic_function_tool(MoveStock, name="move_stock")]
    conversation = [{"role": "user", "content": CALL}]
    fields = {"model": MODEL, "temperature": 0, "tools": tools, "max_tokens": 96}
    message = client.chat.completions.parse(messages=conversation, **fields).choices[0].message
    same("parsed arguments", message.tool_calls[0].function.parsed_arguments.model_dump(), CALLED[1])
    with client.chat.completions.stream(messages=conversation, **fields) as stream:
        streamed = stream.get_final_completion().choices[0].message
    for sent in (message, streamed, message.model_dump(exclude_none=True)):
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "moved"}
        call = sent["tool_calls"][0]["id"] if isinstance(sent, dict) else sent.tool_calls[0].id
        turns = [*conversation, sent, {**result, "tool_call_id": call}]
        again = client.chat.completions.parse(messages=turns, **fields)
        holds("an answer after the tool's", again.usage.completion_tokens > 0, again)
    tools = [openai.pydantic_function_tool(MoveStock, name="move_stock")["function"]]
    tools = [{"type": "function", **tool} for tool in tools]
    response = client.responses.parse(model=MODEL, input=CALL, tools=tools, temperature=0, store=False)
    call = next(item for item in response.output if item.type == "function_call")
    same("by Responses", json.loads(call.arguments), CALLED[1])
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "moved"}
    for output in (response.output, [item.model_dump() for item in response.output]):
        turns = [*conversation, *output, result]
        again = client.responses.parse(model=MODEL, input=turns, tools=tools, max_output_tokens=16, store=False)
        holds("an answer after the tool's by Responses", again.usage.output_tokens > 0, again)


def responses_tools():
    tools = [{"type": "function", "name": name, "parameters": schema(name), "strict": False} for name in PARAMETERS]
    ask = lambda **fields: client.responses.create(
        **{"model": MODEL, "input": CALL, "temperature": 0, "store": False, "tools": tools, **fields}
    )
    found = lambda output: [
        (item.name, json.loads(item.arguments)) for item in output if item.type == "function_call"
    ]
    whole = ask()
    same("tool calls", found(whole.output), [CALLED])
    same("two tool calls", found(ask(input=TWO_CALLS).output), CALLED_TWO)
    events = list(ask(stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    same("streamed arguments", json.loads("".join(deltas)), CALLED[1])
    same("streamed tool calls", found(events[-1].response.output), [CALLED])
    call = next(item for item in whole.output if item.type == "function_call")
    turns = [{"role": "user", "content": CALL}, *whole.output]
    turns.append({"type": "function_call_output", "call_id": call.call_id, "output": "moved"})
    holds("an answer after the tool's", ask(input=turns, max_output_tokens=16).usage.output_tokens > 0, "none")


def errors():
    error = refused("a field", openai.BadRequestError, lambda: chat(extra_body={"guided_regex": "a*"}))
    same("its field and reason", (error.param, error.body["reason"]), ("guided_regex", "INVALID_ARGUMENT"))
    error = refused("a value", openai.BadRequestError, lambda: chat(temperature=-1))
    same("its field", error.param, "temperature")
    unserved = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "not": {}}}}
    error = refused("a schema", openai.BadRequestError, lambda: chat(response_format=unserved))
    same("its field", error.param, "response_format.json_schema.schema")
    holds("its keyword", "not" in str(error), error)
    error = refused("a long prompt", openai.BadRequestError, lambda: chat("word " * 9000))
    same("its code", error.code, "context_length_exceeded")
    error = refused("tools", openai.BadRequestError, lambda: chat(tools=[tool("move_stock")]))
    same("its reason", error.body["reason"], "NO_TOOLS")
    error = refused("a path", openai.NotFoundError, lambda: client.files.list())
    holds("its words", "/v1/files" in str(error), error)
    refused("a stream's refusal", openai.BadRequestError, lambda: list(chat(stream=True, n=0)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
