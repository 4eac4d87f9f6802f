"""Sends requests that schemathesis makes from an OpenAPI file: `python fuzz.py FILE CASES`.

A third of the requests has a body that fits its schema, a third one that does not, and a third is a request that is
served with up to three of the fields that were made. Before them each number of each request is sent at the ends of its
range, which are served, and just outside of them, which are refused. Fails on an answer whose status or body is not in the file, on an
answer that dropped a field, on 5xx without a reason that may pass, and on a request that is not answered. The requests
are the same in each run.
"""

import collections
import sys

import hypothesis
import requests
import schemathesis
from common import ADDRESS, QUESTION
from hypothesis import strategies

document, cases = sys.argv[1], int(sys.argv[2])
schema = schemathesis.openapi.from_path(document)
schema.config.update(base_url=f"http://{ADDRESS}")
operations = [result.ok() for result in schema.get_all_operations()]
conformance = schemathesis.checks.CHECKS.get_one("response_schema_conformance")
session = requests.Session()
# No proxy stands before the service.
session.trust_env = False
statuses = collections.Counter()

MESSAGES = [{"role": "user", "content": QUESTION}]
SERVED = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": QUESTION, "max_tokens": 4},
    "/v1/responses": {"input": QUESTION, "max_output_tokens": 4},
    "/v1/messages": {"messages": MESSAGES, "model": "m", "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": MESSAGES, "model": "m"},
}


def fields(operation):
    """The fields of an operation's body, if the file has them."""
    content = operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    name = content.get("$ref", "").rpartition("/")[2]
    return schema.raw_schema["components"]["schemas"][name]["properties"] if name else None


def send(case):
    operation = case.operation
    response = case.call(session=session, timeout=30)
    code = response.status_code
    statuses[f"{operation.method} {operation.path} {code}"] += 1
    said = f"{case.as_curl_command()}\n{code}: {response.text[:2000]}"
    assert str(code) in operation.definition.raw["responses"], f"expected a status of the file, found another\n{said}"
    if code in (503, 504):
        assert response.json()["error"].get("message"), f"expected a reason, found none\n{said}"
    assert code < 500 or code in (503, 504), f"expected no fault of the service\n{said}"
    streamed = "text/event-stream" in response.headers.get("content-type", "")
    if not streamed:
        case.validate_response(response, checks=[conformance])
    if "requestBody" in operation.definition.raw and code == 200 and isinstance(case.body, dict):
        known = fields(operation)
        dropped = [] if known is None else [name for name in case.body if name not in known]
        assert not dropped, f"expected a refusal of {dropped}, found an answer\n{said}"


def send_beside_served(case, picked):
    made = list(case.body.items()) if isinstance(case.body, dict) else []
    made = [made[at % len(made)] for at in picked] if made else []
    case.body = {**dict(made), **SERVED[case.operation.path]}
    send(case)


def numbers(operation):
    """The numbers of an operation's body: name, lowest and highest value, and whether the lowest one is served."""
    for name, field in fields(operation).items():
        for form in field.get("oneOf", [field]):
            kind = form.get("type")
            if {"integer", "number"} & set(kind if isinstance(kind, list) else [kind]):
                lowest = form.get("minimum", form.get("exclusiveMinimum"))
                yield name, lowest, form["maximum"], "minimum" in form


def send_extremes(operation):
    """Sends each number of a body at the ends of its range and just outside."""
    for name, lowest, highest, has_lowest in numbers(operation):
        step = 1 if isinstance(lowest, int) and isinstance(highest, int) and highest > 2 else 0.01
        outside = [lowest - step, highest + step] + ([] if has_lowest else [lowest])
        for value in [highest] + ([lowest] if has_lowest else []) + outside:
            body = {**SERVED[operation.path], name: value}
            response = session.post(f"http://{ADDRESS}{operation.path}", json=body, timeout=30)
            code = response.status_code
            statuses[f"{operation.method} {operation.path} {code}"] += 1
            said = f"{operation.path} {name} = {value}\n{code}: {response.text[:2000]}"
            assert str(code) in operation.definition.raw["responses"], f"expected a status of the file, found another\n{said}"
            assert code < 500, f"expected no fault of the service\n{said}"
            assert value not in outside or code == 400, f"expected a refusal, found another answer\n{said}"


def run(operation, mode, count, **more):
    settings = hypothesis.settings(
        max_examples=max(count, 1),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    check = send_beside_served if more else send
    try:
        settings(hypothesis.given(case=operation.as_strategy(generation_mode=mode), **more)(check))()
    except hypothesis.errors.Unsatisfiable:
        # A request without a body and parameters cannot be wrong.
        assert "requestBody" not in operation.definition.raw, operation.label


def main():
    fits, does_not = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    bodies = [operation for operation in operations if "requestBody" in operation.definition.raw]
    # A question of the page needs the page's origin: gateway/tests/page_chat.rs has those.
    posts = [operation for operation in bodies if operation.path != "/status/chat"]
    assert {operation.path for operation in posts} == set(SERVED), "each path has a request that is served"
    share = -(-cases // (3 * len(posts)))
    for operation in posts:
        send_extremes(operation)
    for operation in operations:
        run(operation, fits, share)
        run(operation, does_not, share)
        if operation in posts:
            run(operation, fits, share, picked=strategies.lists(strategies.integers(0, 1000), max_size=3))
    for line, count in sorted(statuses.items()):
        print(f"{count:6} {line}")
    assert sum(statuses.values()) >= cases, f"expected {cases} requests, found {sum(statuses.values())}"
    for operation in posts:
        assert statuses[f"post {operation.path} 200"], f"expected an answer of {operation.path}, found refusals alone"


if __name__ == "__main__":
    main()
