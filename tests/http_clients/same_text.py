"""The same seeded conversations by each protocol: `python same_text.py CASES`, which come with the text over gRPC."""

import json
import sys

from common import MODEL, anthropic_client, openai_client, same

chat, messages = openai_client(), anthropic_client()
for case in json.loads(sys.argv[1]):
    turns, text = case["messages"], case["expected"]["text"]
    fields = {"model": MODEL, "temperature": 0.8, "top_p": 0.95}
    asked = {**fields, "messages": turns, "seed": case["seed"], "max_tokens": 24}
    whole = chat.chat.completions.create(**asked)
    same("chat completions", whole.choices[0].message.content, text)
    same("tokens of the prompt", whole.usage.prompt_tokens, case["expected"]["prompt_tokens"])
    chunks = chat.chat.completions.create(**asked, stream=True)
    deltas = (choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    same("chat completions, streamed", "".join(deltas), text)
    # Responses and Messages have no seed: their prompts are compared.
    response = chat.responses.create(**fields, input=turns, max_output_tokens=16, store=False)
    same("tokens of Responses", response.usage.input_tokens, case["expected"]["prompt_tokens"])
    system = "".join(turn["content"] for turn in turns if turn["role"] == "system")
    others = [turn for turn in turns if turn["role"] != "system"]
    counted = messages.messages.count_tokens(model=MODEL, messages=others, **({"system": system} if system else {}))
    same("tokens of Messages", counted.input_tokens, case["expected"]["prompt_tokens"])
