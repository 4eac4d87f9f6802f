"""What the programs here share: the service's address, a way to say what was expected, and the questions."""

import os

# `host:port`, and the name of the served model.
ADDRESS = os.environ["PACELINE_HTTP"]
MODEL = os.environ["PACELINE_MODEL"]

QUESTION = "List three fruits."
STORY = "Write a short story about a fox."
# The embedded pair answers it with a tool call; the second one asks for two.
CALL = "Call the tools to move 46 bricks to shelf RB-839."
TWO_CALLS = (
    "Call the tools to get the weather in Denver in celsius, then send Marco Dozoda the message senior travel green."
)
PARAMETERS = {
    "move_stock": {"item": "string", "count": "integer", "shelf": "string"},
    "get_weather": {"city": "string", "unit": "string"},
    "send_message": {"to": "string", "text": "string"},
}
CALLED = ("move_stock", {"item": "bricks", "count": 46, "shelf": "RB-839"})
CALLED_TWO = [
    ("get_weather", {"city": "Denver", "unit": "celsius"}),
    ("send_message", {"to": "Marco Dozoda", "text": "senior travel green"}),
]


def schema(name):
    """The JSON schema of a tool's arguments."""
    properties = {field: {"type": kind} for field, kind in PARAMETERS[name].items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def same(what, found, expected):
    """Fails if two values differ."""
    assert found == expected, f"{what}: expected {expected!r}, found {found!r}"


def holds(what, condition, found):
    """Fails if something does not hold of what was found."""
    assert condition, f"{what}: found {found!r}"


def refused(what, kind, ask):
    """The error of this kind that a request ends with."""
    try:
        answer = ask()
    except kind as error:
        return error
    raise AssertionError(f"{what}: expected {kind.__name__}, found {answer!r}")


def openai_client(**settings):
    """A client that does not try again, so that each error is the answer to one request."""
    import openai  # It takes a second, which programs without it save.

    return openai.OpenAI(base_url=f"http://{ADDRESS}/v1", **{"api_key": "none", "max_retries": 0, **settings})


def anthropic_client(**settings):
    """The same for Messages."""
    import anthropic

    return anthropic.Anthropic(base_url=f"http://{ADDRESS}", **{"api_key": "none", "max_retries": 0, **settings})
