"""The unmodified `ollama`, langchain-ollama and litellm's `ollama_chat` against a running service. `python ollama_package.py MANNER`.

The first two have an environment with frameworks, the third one that of litellm.
"""

import base64
import json
import os
import sys
from typing import Literal

# litellm would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from common import ADDRESS, CALL, CALLED, CALLED_TWO, MODEL, PARAMETERS, QUESTION, TWO_CALLS, holds, refused, same, schema
from pydantic import BaseModel, Field

URL = f"http://{ADDRESS}"
GREEDY = {"temperature": 0}
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema(name)}} for name in PARAMETERS
]
# A PNG of 64 x 64 green pixels.
IMAGE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAT0lEQVR42u3PQQkAAAgEsItgJKMZ3Qi+hcEKLDX9WgQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE"
    "BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQELguRgQDEutLp7gAAAABJRU5ErkJggg=="
)


class Shelf(BaseModel):
    """A form with bounds: an answer is in it only if a grammar held it there."""

    name: str = Field(max_length=12)
    colour: Literal["ultramarine", "verdigris"]
    rows: int = Field(ge=40, le=49)


def client():
    import ollama

    return ollama.Client(host=URL)


def of_openai(**more):
    """The text of the same request through the other protocol."""
    from common import openai_client

    fields = {"model": MODEL, "messages": MESSAGES, "temperature": 0, **more}
    return openai_client().chat.completions.create(**fields).choices[0].message.content


def calls(message):
    return [(call.function.name, dict(call.function.arguments)) for call in message.tool_calls or []]


def ollama():
    import ollama as package

    ask = lambda **more: client().chat(**{"model": MODEL, "messages": MESSAGES, "options": GREEDY, **more})
    whole = ask()
    same("text", whole.message.content, of_openai())
    pieces = list(ask(stream=True))
    same("streamed text", "".join(piece.message.content for piece in pieces), whole.message.content)
    same("the end", (pieces[-1].done, pieces[-1].done_reason, whole.done_reason), (True, "stop", "stop"))
    same("counts", (pieces[-1].prompt_eval_count, pieces[-1].eval_count), (whole.prompt_eval_count, whole.eval_count))
    holds("durations", whole.total_duration >= whole.prompt_eval_duration > 0, whole)
    turns = [*MESSAGES, whole.message, {"role": "user", "content": "And three birds?"}]
    holds("a second turn", ask(messages=turns, options={**GREEDY, "num_predict": 16}).message.content, "no text")
    shelf = Shelf.model_validate_json(ask(format=Shelf.model_json_schema()).message.content)
    holds("an answer of the form", 40 <= shelf.rows <= 49, shelf)
    json.loads(ask(format="json", options={**GREEDY, "num_predict": 200}).message.content)
    cut = ask(options={**GREEDY, "num_predict": 3})
    same("a cut answer", (cut.done_reason, cut.eval_count), ("length", 3))
    generated = client().generate(model=MODEL, prompt=QUESTION, options=GREEDY)
    same("text of a prompt", generated.response, whole.message.content)
    streamed = client().generate(model=MODEL, prompt=QUESTION, options=GREEDY, stream=True)
    same("streamed text of a prompt", "".join(piece.response for piece in streamed), generated.response)
    same("a model that is loaded", client().generate(model=MODEL, prompt="", keep_alive=-1).done_reason, "load")

    listed = client().list().models[0]
    same("the model in the list", listed.model, f"{MODEL}:latest")
    same("by its name in the list", ask(model=listed.model).message.content, whole.message.content)
    shown = client().show(MODEL)
    holds("the context", shown.modelinfo[f"{shown.details.family}.context_length"] > 1000, shown)
    holds("abilities", "completion" in shown.capabilities, shown)
    same("a model that runs", client().ps().models[0].model, listed.model)

    error = refused("a bad option", package.ResponseError, lambda: ask(options={"temperature": 900}))
    same("its status", error.status_code, 400)
    holds("its words", "options.temperature" in error.error, error)
    error = refused("an embedding", package.ResponseError, lambda: client().embed(model=MODEL, input="a"))
    same("its status", error.status_code, 404)


def ollama_tools():
    ask = lambda messages, **more: client().chat(model=MODEL, messages=messages, tools=TOOLS, options=GREEDY, **more)
    turns = [{"role": "user", "content": TWO_CALLS}]
    answer = ask(turns)
    same("tool calls", calls(answer.message), CALLED_TWO)
    pieces = [piece for piece in ask(turns, stream=True) if piece.message.tool_calls]
    same("lines with calls", len(pieces), 1)
    same("streamed tool calls", calls(pieces[0].message), CALLED_TWO)
    # The package drops the ids of calls, and a result has the tool's name at most.
    for result in ({"tool_name": "get_weather"}, {}):
        again = ask([*turns, answer.message, {"role": "tool", "content": "mild", **result}])
        holds("an answer after the tool's", again.eval_count > 0, again)

    def move_stock(item: str, count: int, shelf: str) -> str:
        """move_stock

        Args:
            item: item
            count: count
            shelf: shelf
        """
        return "moved"

    answer = client().chat(model=MODEL, messages=[{"role": "user", "content": CALL}], tools=[move_stock], options=GREEDY)
    holds("a function as a tool", answer.eval_count > 0, answer)


def ollama_images():
    ask = lambda **more: client().chat(
        model=MODEL,
        messages=[{"role": "user", "content": "What is in the image?", "images": [IMAGE]}],
        options={**GREEDY, "num_predict": 12},
        **more,
    )
    whole = ask()
    holds("an answer about an image", whole.message.content, whole)
    same("streamed", "".join(piece.message.content for piece in ask(stream=True)), whole.message.content)
    holds("what the model sees", "vision" in client().show(MODEL).capabilities, "no vision")
    generated = client().generate(
        model=MODEL, prompt="What is in the image?", images=[IMAGE], options={**GREEDY, "num_predict": 12}
    )
    same("the same of a prompt", generated.response, whole.message.content)


def langchain():
    from langchain_core.messages import HumanMessage
    from langchain_ollama import ChatOllama, OllamaLLM

    fields = {"model": MODEL, "base_url": URL, "temperature": 0, "validate_model_on_init": True}
    chat = ChatOllama(**fields)
    whole = chat.invoke(QUESTION)
    same("text", whole.content, of_openai())
    same("streamed text", "".join(chunk.content for chunk in chat.stream(QUESTION)), whole.content)
    same("counts", whole.usage_metadata["output_tokens"], whole.response_metadata["eval_count"])
    shelf = chat.with_structured_output(Shelf, method="json_schema").invoke("Describe a shelf.")
    holds("an answer of the form", isinstance(shelf, Shelf), shelf)
    same("text of a prompt", OllamaLLM(**fields).invoke(QUESTION), whole.content)

    turns = [HumanMessage(QUESTION), whole, HumanMessage("And three birds?")]
    short = ChatOllama(**fields, num_predict=16)
    holds("a second turn", short.invoke(turns).content, "no text")


def langchain_tools():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_ollama import ChatOllama

    @tool
    def move_stock(item: str, count: int, shelf: str) -> str:
        """move_stock"""
        return "moved"

    chat = ChatOllama(model=MODEL, base_url=URL, temperature=0, num_predict=96).bind_tools([move_stock])
    answer = chat.invoke(CALL)
    same("tool calls", [(call["name"], call["args"]) for call in answer.tool_calls], [CALLED])
    result = ToolMessage("moved", tool_call_id=answer.tool_calls[0]["id"])
    again = chat.invoke([HumanMessage(CALL), answer, result])
    holds("an answer after the tool's", again.usage_metadata["output_tokens"] > 0, again)


def litellm():
    import litellm as package

    fields = {"api_base": URL, "temperature": 0, "num_retries": 0}
    ask = lambda **more: package.completion(**{"model": f"ollama_chat/{MODEL}", "messages": MESSAGES, **fields, **more})
    whole = ask()
    text = whole.choices[0].message.content
    same("text", text, of_openai())
    chunks = list(ask(stream=True))
    same("streamed text", "".join(chunk.choices[0].delta.content or "" for chunk in chunks), text)
    same("the end", chunks[-1].choices[0].finish_reason, "stop")
    turns = [*MESSAGES, whole.choices[0].message, {"role": "user", "content": "And three birds?"}]
    holds("a second turn", ask(messages=turns, max_tokens=16).choices[0].message.content, "no text")
    shelf = Shelf.model_validate_json(ask(response_format=Shelf).choices[0].message.content)
    holds("an answer of the form", 40 <= shelf.rows <= 49, shelf)
    holds("penalties of 0", ask(frequency_penalty=0, max_tokens=4).choices, "nothing")
    refused("a bad option", Exception, lambda: ask(temperature=900))
    plain = package.completion(model=f"ollama/{MODEL}", messages=MESSAGES, max_tokens=8, **fields)
    holds("text of a prompt", plain.choices[0].message.content, plain)


def litellm_tools():
    import litellm as package

    tools = [tool for tool in TOOLS if tool["function"]["name"] == "move_stock"]
    turns = [{"role": "user", "content": CALL}]
    fields = {"model": f"ollama_chat/{MODEL}", "api_base": URL, "temperature": 0, "max_tokens": 96, "num_retries": 0}
    ask = lambda **more: package.completion(messages=turns, tools=tools, **fields, **more)
    found = lambda calls: [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    message = ask().choices[0].message
    same("tool calls", found(message.tool_calls), [CALLED])
    streamed = [chunk.choices[0].delta.tool_calls for chunk in ask(stream=True)]
    same("streamed tool calls", [found(calls) for calls in streamed if calls], [[CALLED]])
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "moved"}
    turns += [message.model_dump(), result]
    again = ask()
    holds("an answer after the tool's", again.usage.completion_tokens > 0, again)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
