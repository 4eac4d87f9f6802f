#!/usr/bin/env python3
"""What prompt lookup gives SmolLM2: answers that quote their prompt, and answers that do not.

    bench-lookup.py [--binaries target/release] [--rounds 7] [--prompts 20] [--tokens 64]

A service with SmolLM2 (scripts/smollm2.sh) and drafter.model = "lookup" is started. Quoting prompts have 300 words of this project's
documents twice, and their first 60 words once more, which the model goes on with. The others are questions with answers in prose. Each
prompt is asked in the plain lane and as routed, in turn, in an order that changes from round to round. The speed of an answer is that
between its first and its last token.
Printed: for each round the ratio of total times, and the mean with its 95 % interval. Nothing else should run on the machine. Needs Python's standard library alone.
"""
import argparse, json, math, os, pathlib, signal, statistics, subprocess, tempfile, time, urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
URL = "http://127.0.0.1:18061"
WORDS, BEGUN = 300, 60
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]
TOPICS = ["the sea", "bridges", "winter", "bread", "a lighthouse", "chess", "rivers", "glass", "trains", "gardens", "maps", "clocks",
          "sailing", "libraries", "mountains", "honey", "paper", "violins", "deserts", "rain"]


def quoting(count):
    names = ["access", "limits", "memory", "operations", "monitoring", "troubleshooting", "sampling", "clients"]
    text = " ".join((ROOT / f"docs/{name}.md").read_text() for name in names)
    words = [word for word in text.split() if not set(word) & set("|`<>#")]
    prompts = []
    for at in range(count):
        part = words[at * WORDS:(at + 1) * WORDS]
        if len(part) < WORDS:
            raise SystemExit(f"expected {count} texts of {WORDS} words, found {at}")
        whole = " ".join(part)
        prompts.append(f"{whole}\n\n{whole}\n\n{' '.join(part[:BEGUN])}")
    return prompts


def ask(prompt, tokens, route):
    body = {"model": "any", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "paceline": {"route": route}}
    request = urllib.request.Request(URL + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=300))
    timing, counts = answer["paceline"]["timing"], answer["paceline"]["speculation"]
    return {"ms": timing["total_ms"] - timing["ttft_ms"], "tokens": answer["usage"]["completion_tokens"] - 1, **counts,
            "text": answer["choices"][0]["text"]}


def interval(values):
    mean = statistics.fmean(values)
    half = T95[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{mean:.2f} ({mean - half:.2f} to {mean + half:.2f})"


def measure(name, prompts, rounds, tokens):
    ratios, total = [], {"plain": [0.0, 0], "auto": [0.0, 0]}
    counts = {"cycles": 0, "drafted": 0, "accepted": 0}
    for prompt in prompts:
        ask(prompt, 2, "plain")
    for n in range(rounds):
        ms = {"plain": 0.0, "auto": 0.0}
        for at, prompt in enumerate(prompts):
            texts = {}
            for route in ["plain", "auto"] if (n + at) % 2 else ["auto", "plain"]:
                one = ask(prompt, tokens, route)
                ms[route] += one["ms"]
                total[route][0] += one["ms"]
                total[route][1] += one["tokens"]
                texts[route] = one["text"]
                if route == "auto":
                    counts = {key: counts[key] + one[key] for key in counts}
            if texts["plain"] != texts["auto"]:
                raise SystemExit(f"{name}, prompt {at}: the lanes differ")
        ratios.append(ms["plain"] / ms["auto"])
        print(f"{name}, round {n + 1}: {ratios[-1]:.3f}", flush=True)
    speed = {route: tokens / ms * 1e3 for route, (ms, tokens) in total.items()}
    print(f"{name}: {interval(ratios)} of plain; {speed['plain']:.0f} tokens a second plain, {speed['auto']:.0f} routed; {counts}")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--binaries", default="target/release")
    for name, default in [("rounds", 7), ("prompts", 20), ("tokens", 64)]:
        options.add_argument(f"--{name}", type=int, default=default)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = pathlib.Path(directory, "run")
        run.mkdir(mode=0o700)
        environment = {**os.environ, "PACELINE_CONFIG": "", "PACELINE_SUPERVISOR__RUNTIME_DIR": str(run), "PACELINE_TARGET__MODEL": "smollm2",
                       "PACELINE_DRAFTER__MODEL": "lookup", "PACELINE_GATEWAY__HTTP": URL.removeprefix("http://"),
                       "PACELINE_GATEWAY__GRPC": "127.0.0.1:18051"}
        program = ROOT / options.binaries / "paceline"
        service = subprocess.Popen([program, "serve"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            status = [program, "status", "--json"]
            for _ in range(240):
                found = subprocess.run(status, env=environment, capture_output=True, text=True)
                if found.returncode == 0 and json.loads(found.stdout)["link"]["state"] == "up":
                    break
                time.sleep(0.5)
            else:
                raise SystemExit("the service did not become ready")
            measure("quoting", quoting(options.prompts), options.rounds, options.tokens)
            chat = "<|im_start|>user\nWrite a short text about {}.<|im_end|>\n<|im_start|>assistant\n"
            measure("prose", [chat.format(topic) for topic in TOPICS[:options.prompts]], options.rounds, options.tokens)
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)


if __name__ == "__main__":
    main()
