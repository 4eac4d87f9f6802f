"""The unmodified `anthropic` package against a running service. `python anthropic_package.py MANNER`."""

import sys

import anthropic
from common import (
    CALL,
    CALLED,
    CALLED_TWO,
    MODEL,
    PARAMETERS,
    QUESTION,
    STORY,
    TWO_CALLS,
    anthropic_client,
    holds,
    openai_client,
    refused,
    same,
    schema,
)

client = anthropic_client()
# The package has no argument for it.
GREEDY = {"temperature": 0}


def ask(text=QUESTION, **fields):
    messages = [{"role": "user", "content": text}]
    return client.messages.create(
        **{"model": "claude-sonnet", "max_tokens": 128, "messages": messages, "extra_body": GREEDY, **fields}
    )


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def messages_whole():
    answer = ask()
    messages = [{"role": "user", "content": QUESTION}]
    chat = openai_client().chat.completions.create(model=MODEL, messages=messages, temperature=0)
    same("text, as in chat completions", text_of(answer), chat.choices[0].message.content)
    same("model", answer.model, MODEL)
    same("end", (answer.role, answer.type, answer.stop_reason), ("assistant", "message", "end_turn"))
    same("tokens, as in chat completions", answer.usage.output_tokens, chat.usage.completion_tokens)
    short = ask(STORY, max_tokens=3)
    same("a short answer", (short.stop_reason, short.usage.output_tokens), ("max_tokens", 3))
    text = text_of(answer)
    stop = text[4:8]
    cut = ask(stop_sequences=[stop])
    same("a stop string", (cut.stop_reason, cut.stop_sequence), ("stop_sequence", stop))
    same("text before it", text_of(cut), text[: text.index(stop)])
    system = ask(system=[{"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}])
    holds("tokens of a system prompt", prompt_tokens(system.usage) > prompt_tokens(answer.usage), system)


def messages_streamed():
    expected = ask()
    with client.messages.stream(
        model=MODEL, max_tokens=128, messages=[{"role": "user", "content": QUESTION}], extra_body=GREEDY
    ) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    same("streamed text", "".join(pieces), text_of(expected))
    holds("more than one piece", len(pieces) > 1, pieces)
    same("assembled by the package", (text_of(final), final.stop_reason), (text_of(expected), "end_turn"))
    same("its tokens", final.usage.output_tokens, expected.usage.output_tokens)
    events = list(ask(stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    same("the first events", kinds[:3], ["message_start", "content_block_start", "content_block_delta"])
    same("the last events", kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
    start = events[0].message.usage
    same("tokens in message_start", prompt_tokens(start), prompt_tokens(expected.usage))
    # A client that leaves early: the next one is served.
    stream = ask(STORY, stream=True)
    next(iter(stream))
    stream.close()
    same("after a client that left", text_of(ask()), text_of(expected))


def count_tokens():
    long = "One, two, three, four, five, six, seven, eight. " * 30
    conversation = [{"role": "user", "content": QUESTION}]
    create = lambda: client.messages.create(
        model=MODEL, max_tokens=8, system=long, messages=conversation, extra_body=GREEDY
    )
    count = lambda: client.messages.count_tokens(model=MODEL, system=long, messages=conversation).input_tokens
    first = create()
    same("counted tokens", prompt_tokens(first.usage), count())
    same("cached at first", first.usage.cache_read_input_tokens, 0)
    conversation += [
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [{"type": "text", "text": "And three birds?"}]},
    ]
    second = create()
    same("counted tokens of the second turn", prompt_tokens(second.usage), count())
    holds("cached tokens", second.usage.cache_read_input_tokens > first.usage.input_tokens // 2, second.usage)
    holds("tokens that are not cached", second.usage.input_tokens < first.usage.input_tokens // 2, second.usage)


def messages_tools():
    tools = [{"name": name, "description": name, "input_schema": schema(name)} for name in PARAMETERS]
    found = lambda message: [(block.name, block.input) for block in message.content if block.type == "tool_use"]
    answer = ask(CALL, tools=tools)
    same("tool calls", (found(answer), answer.stop_reason), ([CALLED], "tool_use"))
    two = [{"role": "user", "content": TWO_CALLS}]
    with client.messages.stream(model=MODEL, max_tokens=128, messages=two, tools=tools, extra_body=GREEDY) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    same("streamed tool calls", (found(final), final.stop_reason), (CALLED_TWO, "tool_use"))
    holds("more pieces than tool calls", len(pieces) > len(CALLED_TWO), pieces)
    use = next(block for block in answer.content if block.type == "tool_use")
    turns = [
        {"role": "user", "content": CALL},
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "moved"}]},
    ]
    again = client.messages.create(model=MODEL, max_tokens=8, messages=turns, tools=tools)
    counted = client.messages.count_tokens(model=MODEL, messages=turns, tools=tools).input_tokens
    same("counted tokens with a tool's answer", prompt_tokens(again.usage), counted)
    forced = ask(CALL, tools=tools, tool_choice={"type": "any"})
    holds("a forced tool call", found(forced) and found(forced)[0][0] in PARAMETERS, forced)
    other = {"type": "tool", "name": "other"}
    error = refused("another tool", anthropic.BadRequestError, lambda: ask(CALL, tools=tools, tool_choice=other))
    holds("its field", "tool_choice" in str(error), error)


def models():
    served = client.models.list()
    same("models", [(model.id, model.type) for model in served.data], [(MODEL, "model")])
    same("the list's end", (served.has_more, served.first_id, served.last_id), (False, MODEL, MODEL))
    holds("a name", served.data[0].display_name, served)
    one = client.models.retrieve(MODEL)
    same("the model by its name", (one.id, one.type, one.display_name), (MODEL, "model", served.data[0].display_name))


def tool_runner():
    """The package's loop of tool calls. It asks for a thread first, and goes on without one."""
    for stream in (False, True):
        moved = []

        @anthropic.beta_tool
        def move_stock(item: str, count: int, shelf: str) -> str:
            """move_stock"""
            moved.append({"item": item, "count": count, "shelf": shelf})
            return "moved"

        asked = {"model": MODEL, "max_tokens": 96, "messages": [{"role": "user", "content": CALL}], "extra_body": GREEDY}
        runner = client.beta.messages.tool_runner(**asked, tools=[move_stock], max_iterations=2, stream=stream)
        answers = [turn.get_final_message() if stream else turn for turn in runner]
        same("the tool call", moved[0], CALLED[1])
        same("turns", len(answers), 2)
        same("the first turn's end", answers[0].stop_reason, "tool_use")
        holds("an answer after the tool's", answers[1].usage.output_tokens > 0, answers)


def errors():
    error = refused("a field", anthropic.BadRequestError, lambda: ask(extra_body={"guided_regex": "a*"}))
    same("its class", error.body["error"]["type"], "invalid_request_error")
    holds("its field", "guided_regex" in str(error), error)
    error = refused("a long prompt", anthropic.BadRequestError, lambda: ask("word " * 9000))
    holds("the words that clients search", "prompt is too long" in str(error), error)
    error = refused("tokens", anthropic.BadRequestError, lambda: ask(max_tokens=0))
    holds("its field", "max_tokens" in str(error), error)
    refused("a path", anthropic.NotFoundError, lambda: client.messages.batches.list())
    refused("a stream's refusal", anthropic.BadRequestError, lambda: list(ask(stream=True, extra_body={"temperature": -1})))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
