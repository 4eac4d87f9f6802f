"""Frameworks over the `openai` package, unmodified, against a running service. `python frameworks.py MANNER`."""

import json
import os
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated

from common import ADDRESS, CALL, CALLED, MODEL, QUESTION, holds, openai_client, same
from pydantic import BaseModel, Field

URL = f"http://{ADDRESS}/v1"
PROMPTS = ["def add(a, b):", "One, two,", "The fox"]


class Colour(str, Enum):
    """Words that the model would not write by itself."""

    ULTRAMARINE = "ultramarine"
    VERDIGRIS = "verdigris"


class Shelf(BaseModel):
    """A form with bounds: an answer is in it only if a grammar held it there."""

    name: str = Field(max_length=12)
    colour: Colour
    rows: int = Field(ge=40, le=49)
    boxes: list[Annotated[int, Field(ge=1, le=9)]] = Field(min_length=3, max_length=3)


def model_of_pydantic_ai(kind):
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kinds = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
    return kinds[kind](MODEL, provider=OpenAIProvider(openai_client=asynchronous()))


def asynchronous():
    """A client that does not try again."""
    import openai

    return openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)


def pydantic_ai_forms():
    from pydantic_ai import Agent, NativeOutput

    for kind in ("chat", "responses"):
        agent = Agent(
            model_of_pydantic_ai(kind), output_type=NativeOutput(Shelf), retries=0, model_settings={"temperature": 0}
        )
        run = agent.run_sync("Describe a shelf.")
        holds(f"an answer of the form by {kind}", isinstance(run.output, Shelf), run)
        # The package asks again if an answer is not of the form.
        same(f"requests by {kind}", run.usage.requests, 1)
        again = agent.run_sync("Another one.", message_history=run.all_messages())
        holds(f"a second turn by {kind}", isinstance(again.output, Shelf), again)


def pydantic_ai_tools():
    from pydantic_ai import Agent, ToolOutput
    from pydantic_ai.usage import UsageLimits

    for kind in ("chat", "responses"):
        moved = []
        agent = Agent(model_of_pydantic_ai(kind), retries=0, model_settings={"temperature": 0, "max_tokens": 96})

        @agent.tool_plain
        def move_stock(item: str, count: int, shelf: str) -> str:
            """move_stock"""
            moved.append({"item": item, "count": count, "shelf": shelf})
            return "moved"

        run = agent.run_sync(CALL, usage_limits=UsageLimits(request_limit=4))
        same(f"the tool call by {kind}", moved[0], CALLED[1])
        holds(f"a request after the tool's answer by {kind}", run.usage.requests >= 2, run.usage)
        greedy = {"temperature": 0}
        forced = Agent(model_of_pydantic_ai(kind), output_type=ToolOutput(Shelf), retries=0, model_settings=greedy)
        run = forced.run_sync("Describe a shelf.")
        holds(f"a forced tool call of the form by {kind}", isinstance(run.output, Shelf), run)
        same(f"its requests by {kind}", run.usage.requests, 1)


def chat_of_langchain(**settings):
    from langchain_openai import ChatOpenAI

    fields = {"base_url": URL, "api_key": "none", "model": MODEL, "temperature": 0, "max_retries": 0}
    return ChatOpenAI(**{**fields, **settings})


def langchain():
    from langchain_openai import OpenAI

    client = openai_client()
    messages = [{"role": "user", "content": QUESTION}]
    expected = client.chat.completions.create(model=MODEL, messages=messages, temperature=0).choices[0].message.content
    chat = chat_of_langchain()
    whole = chat.invoke(QUESTION)
    same("text", whole.content, expected)
    same("streamed text", "".join(chunk.content for chunk in chat.stream(QUESTION)), expected)
    same("a batch of conversations", [answer.content for answer in chat.batch([QUESTION] * 3)], [expected] * 3)
    same("text by Responses", chat_of_langchain(use_responses_api=True).invoke(QUESTION).text, expected)
    # The whole message as the package has it.
    turns = [("user", QUESTION), whole, ("user", "And three birds?")]
    holds("a second turn", chat_of_langchain(max_tokens=16).invoke(turns).content, "no text")
    shelf = chat.with_structured_output(Shelf, method="json_schema").invoke("Describe a shelf.")
    holds("an answer of the form", isinstance(shelf, Shelf), shelf)

    # A batch is one request with a list of prompts.
    completions = OpenAI(base_url=URL, api_key="none", model=MODEL, temperature=0, max_tokens=12, max_retries=0)
    ask = lambda prompt: client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=12)
    apart = [ask(prompt).choices[0].text for prompt in PROMPTS]
    same("a batch of prompts", completions.batch(PROMPTS), apart)
    generated = completions.generate(PROMPTS).generations
    same("prompts in their order", [choices[0].text for choices in generated], apart)


def langchain_tools():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def move_stock(item: str, count: int, shelf: str) -> str:
        """move_stock"""
        return "moved"

    for responses in (False, True):
        chat = chat_of_langchain(use_responses_api=responses, max_tokens=96).bind_tools([move_stock])
        found = lambda answer: [(call["name"], call["args"]) for call in answer.tool_calls]
        answer = chat.invoke(CALL)
        same("tool calls", found(answer), [CALLED])
        pieces = list(chat.stream(CALL))
        same("streamed tool calls", found(sum(pieces[1:], pieces[0])), [CALLED])
        result = ToolMessage("moved", tool_call_id=answer.tool_calls[0]["id"])
        again = chat.invoke([HumanMessage(CALL), answer, result])
        holds("an answer after the tool's", again.usage_metadata["output_tokens"] > 0, again)
        forced = chat_of_langchain(use_responses_api=responses).with_structured_output(Shelf, method="function_calling")
        shelf = forced.invoke("Describe a shelf.")
        holds("a forced tool call of the form", isinstance(shelf, Shelf), shelf)


def agents_of_openai():
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )

    set_tracing_disabled(True)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        moved = []

        @function_tool
        def move_stock(item: str, count: int, shelf: str) -> str:
            """move_stock"""
            moved.append({"item": item, "count": count, "shelf": shelf})
            return "moved"

        settings = ModelSettings(temperature=0, max_tokens=96, tool_choice="required")
        model = kind(model=MODEL, openai_client=asynchronous())
        agent = Agent(name="stock", model=model, model_settings=settings, tools=[move_stock])
        run = Runner.run_sync(agent, CALL, max_turns=4)
        # The package marks the tool as strict; without a forced tool call in the second turn the model answers.
        same(f"the tool call by {kind.__name__}", moved[0], CALLED[1])
        holds(f"a turn after the tool's by {kind.__name__}", len(run.raw_responses) >= 2, run)
        form = Agent(name="shelf", model=model, model_settings=ModelSettings(temperature=0), output_type=Shelf)
        run = Runner.run_sync(form, "Describe a shelf.", max_turns=1)
        holds(f"an answer of the form by {kind.__name__}", isinstance(run.final_output, Shelf), run)


def llm():
    with tempfile.TemporaryDirectory() as home:
        model = {"model_id": "paceline", "model_name": MODEL, "api_base": URL}
        models = [{**model, "supports_schema": True, "supports_tools": True}]
        # JSON is YAML.
        Path(home, "extra-openai-models.yaml").write_text(json.dumps(models))
        environment = {**os.environ, "LLM_USER_PATH": home}

        def ask(*arguments):
            command = [sys.executable, "-m", "llm", *arguments, "-m", "paceline", "-o", "temperature", "0"]
            ran = subprocess.run(command, env=environment, capture_output=True, text=True)
            same(f"exit code of {arguments}: {ran.stderr}", ran.returncode, 0)
            return ran.stdout.strip()

        messages = [{"role": "user", "content": QUESTION}]
        answer = openai_client().chat.completions.create(model=MODEL, messages=messages, temperature=0)
        same("text", ask(QUESTION, "--no-stream"), answer.choices[0].message.content.strip())
        same("streamed text", ask(QUESTION), answer.choices[0].message.content.strip())
        holds("a second turn", ask("And three birds?", "-c", "-o", "max_tokens", "16"), "no text")
        # The package does not close the objects of a schema.
        label, rows = {"type": "string", "maxLength": 12}, {"type": "integer", "minimum": 40, "maximum": 49}
        form = {"type": "object", "properties": {"label": label, "rows": rows}, "required": ["label", "rows"]}
        shelf = json.loads(ask("Describe a shelf.", "--schema", json.dumps(form)))
        same("the fields of the schema alone", sorted(shelf), ["label", "rows"])
        holds("a number in its bounds", 40 <= shelf["rows"] <= 49, shelf)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
