"""The unmodified `litellm` and `instructor` against a running service. `python litellm_instructor.py MANNER`.

They have an environment of their own, because their newest releases want an older `openai`.
"""

import json
import os
import sys
from typing import Annotated, Literal

# The package would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from common import ADDRESS, CALL, CALLED, MODEL, QUESTION, holds, openai_client, refused, same, schema
from pydantic import BaseModel, Field

URL = f"http://{ADDRESS}/v1"


class Shelf(BaseModel):
    """A form with bounds: an answer is in it only if a grammar held it there."""

    name: str = Field(max_length=12)
    colour: Literal["ultramarine", "verdigris"]
    rows: int = Field(ge=40, le=49)
    boxes: list[Annotated[int, Field(ge=1, le=9)]] = Field(min_length=3, max_length=3)


def litellm():
    import litellm as package

    fields = {"api_base": URL, "api_key": "none", "temperature": 0, "num_retries": 0}
    messages = [{"role": "user", "content": QUESTION}]
    ask = lambda **more: package.completion(**{"model": f"openai/{MODEL}", "messages": messages, **fields, **more})
    whole = ask()
    text = whole.choices[0].message.content
    client = openai_client()
    expected = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    same("text", text, expected.choices[0].message.content)
    same("usage", whole.usage.total_tokens, expected.usage.total_tokens)
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    same("streamed text", "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), text)
    # The whole message as the package has it, with its own fields.
    turns = [*messages, whole.choices[0].message, {"role": "user", "content": "And three birds?"}]
    holds("a second turn", ask(messages=turns, max_tokens=16).choices[0].message.content, "no text")
    turns[1] = whole.choices[0].message.model_dump()
    holds("a second turn of its dump", ask(messages=turns, max_tokens=16).choices[0].message.content, "no text")
    shelf = Shelf.model_validate_json(ask(response_format=Shelf).choices[0].message.content)
    holds("an answer of the form", 40 <= shelf.rows <= 49, shelf)
    long = [{"role": "user", "content": "word " * 9000}]
    refused("a long prompt", package.ContextWindowExceededError, lambda: ask(messages=long))
    response = package.responses(model=f"openai/{MODEL}", input=QUESTION, store=False, **fields)
    same("text by Responses", response.output[0].content[0].text, text)
    message = package.completion(
        model=f"anthropic/{MODEL}", messages=messages, api_base=f"http://{ADDRESS}", api_key="none", temperature=0
    )
    same("text by Messages", message.choices[0].message.content, text)

    prompts = ["def add(a, b):", "One, two,"]
    complete = lambda prompt: package.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt=prompt, max_tokens=12, **fields
    )
    apart = [complete(prompt).choices[0].text for prompt in prompts]
    same("a list of prompts", [choice.text for choice in complete(prompts).choices], apart)


def litellm_tools():
    import litellm as package

    function = {"name": "move_stock", "description": "move_stock", "parameters": schema("move_stock")}
    fields = {"api_key": "none", "temperature": 0, "max_tokens": 96, "num_retries": 0}
    fields["tools"] = [{"type": "function", "function": function}]
    for model, base in ((f"openai/{MODEL}", URL), (f"anthropic/{MODEL}", f"http://{ADDRESS}")):
        turns = [{"role": "user", "content": CALL}]
        ask = lambda **more: package.completion(model=model, api_base=base, messages=turns, **fields, **more)
        message = ask().choices[0].message
        found = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
        same(f"tool calls by {base}", found, [CALLED])
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "moved"}
        turns += [message.model_dump(), result]
        again = ask()
        holds(f"an answer after the tool's by {base}", again.usage.completion_tokens > 0, again)


def client_of_instructor(mode):
    import instructor as package

    return package.from_openai(openai_client(), mode=mode)


def instructor():
    import instructor as package

    fields = {"model": MODEL, "temperature": 0, "response_model": Shelf, "max_retries": 0}
    messages = [{"role": "user", "content": "Describe a shelf."}]
    client = client_of_instructor(package.Mode.JSON_SCHEMA)
    shelf, answer = client.create_with_completion(messages=messages, **fields)
    holds("an answer of the form", isinstance(shelf, Shelf), answer)
    *_, last = client.create_partial(messages=messages, **fields)
    same("a streamed form", last.model_dump(), shelf.model_dump())


def instructor_tools():
    import instructor as package

    fields = {"model": MODEL, "temperature": 0, "response_model": Shelf, "max_retries": 0}
    messages = [{"role": "user", "content": "Describe a shelf."}]
    for mode in (package.Mode.TOOLS, package.Mode.TOOLS_STRICT, package.Mode.RESPONSES_TOOLS):
        shelf = client_of_instructor(mode).create(messages=messages, **fields)
        holds(f"a forced tool call of the form by {mode}", isinstance(shelf, Shelf), shelf)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
