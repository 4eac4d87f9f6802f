#!/usr/bin/env python3
"""What holding an answer to a JSON schema costs, and what drafts give then: the embedded pair on its own prompts for JSON.

    bench-structured.py [--binaries target/release] [--rounds 7]

The prompts are those of demo/prompts.jsonl whose answer is an object on one line; the schema of each is made from that answer. In each round
every prompt is asked four times, in an order that moves on: plain and drafted, free and held to its schema. The speed of an answer is that
between its first and its last token. Printed: ratios with their 95 % intervals. Nothing else should run on the machine. Needs Python's
standard library alone.
"""
import argparse, json, math, os, pathlib, signal, statistics, subprocess, tempfile, time, urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
URL = "http://127.0.0.1:18062"
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]
MODES = [("plain", False), ("plain", True), ("speculative", False), ("speculative", True)]


def schema_of(value):
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_of(one) for key, one in value.items()}, "required": list(value),
                "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])} if value else {"type": "array"}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": kinds[type(value)]}


def prompts():
    found = []
    for line in (ROOT / "demo/prompts.jsonl").read_text().splitlines():
        prompt = json.loads(line)
        if prompt["kind"] == "json" and prompt["expected"].startswith('{"'):
            found.append((prompt["messages"], schema_of(json.loads(prompt["expected"]))))
    return found


def ask(messages, schema, route):
    body = {"model": "any", "messages": messages, "max_tokens": 300, "temperature": 0, "paceline": {"route": route}}
    if schema:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    request = urllib.request.Request(URL + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=300))
    timing = answer["paceline"]["timing"]
    return timing["total_ms"] - timing["ttft_ms"], answer["usage"]["completion_tokens"] - 1, answer["choices"][0]["message"]["content"]


def interval(values):
    mean = statistics.fmean(values)
    half = T95[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{mean:.2f} ({mean - half:.2f} to {mean + half:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target/release")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    asked = prompts()
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o700)
        settings = {"SUPERVISOR__RUNTIME_DIR": directory, "GATEWAY__HTTP": URL.removeprefix("http://"), "GATEWAY__GRPC": "127.0.0.1:0",
                    "TARGET__MODEL": "demo-target"}
        environment = os.environ | {f"PACELINE_{key}": value for key, value in settings.items()}
        log = open(pathlib.Path(directory) / "serve.txt", "wb")
        service = subprocess.Popen([arguments.binaries / "paceline", "serve"], env=environment, stdout=log, stderr=log)
        try:
            for _ in range(240):
                try:
                    status = json.load(urllib.request.urlopen(URL + "/status", timeout=5))
                    if status["service"]["link"]["state"] == "up":
                        break
                except (OSError, KeyError, TypeError, ValueError):
                    pass
                time.sleep(0.25)
            else:
                raise SystemExit((pathlib.Path(directory) / "serve.txt").read_text())
            for messages, schema in asked:
                ask(messages, schema, "plain")
            rounds, same = [], True
            for n in range(arguments.rounds):
                sums = {mode: [0.0, 0] for mode in MODES}
                for at, (messages, schema) in enumerate(asked):
                    texts = {}
                    for step in range(len(MODES)):
                        mode = MODES[(n + at + step) % len(MODES)]
                        ms, tokens, texts[mode] = ask(messages, schema if mode[1] else None, mode[0])
                        sums[mode][0] += ms
                        sums[mode][1] += tokens
                    same &= texts["plain", True] == texts["speculative", True] and texts["plain", False] == texts["speculative", False]
                rounds.append({mode: 1e3 * tokens / ms for mode, (ms, tokens) in sums.items()})
        finally:
            service.send_signal(signal.SIGINT)
            service.wait(60)
    ratio = lambda one, other: interval([each[one] / each[other] for each in rounds])
    print(f"{len(asked)} prompts, {arguments.rounds} rounds; both lanes the same: {same}")
    print(f"plain, held over free: {ratio(('plain', True), ('plain', False))}")
    print(f"drafted over plain, free: {ratio(('speculative', False), ('plain', False))}")
    print(f"drafted over plain, held: {ratio(('speculative', True), ('plain', True))}")


main()
