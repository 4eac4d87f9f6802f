#!/usr/bin/env python3
"""Compares the decode steps of two builds, request by request.

    python3 scripts/bench-builds.py BINARIES OTHER_BINARIES [--model smollm2] [--tokens 100] [--pairs 12]

Both folders have the programs of a release build. Their services run side by side, without a drafter, and are asked in turn for
the same greedy answer, so that what else the machine does meets both. Prints for each of seven rounds the median of the pairs'
ratios, and the median of the rounds: the speed of the first build over that of the second, without the time to the first token.
`paceline bench --against` measures whole lanes, a minute each; on a machine with neighbours that is too far apart.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROUNDS = 7


class Service:
    """A running service of one build."""

    def __init__(self, binaries, model, port, stack):
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="steps-"))
        command = [binaries / "paceline", "serve", "--model", model, "--drafter", "off", "--http", f"127.0.0.1:{port}"]
        command += ["--set", f"supervisor.runtime_dir={runtime}", "--set", f"gateway.grpc=127.0.0.1:{port + 1}"]
        env = {**os.environ, "PACELINE_RUNTIME_DIR": runtime}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(self.stop)
        self.model, self.address = model, f"http://127.0.0.1:{port}/v1/chat/completions"

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def step(self, number, tokens):
        """Seconds a token after the first of an answer."""
        body = {"model": self.model, "messages": [{"role": "user", "content": f"Write a long story, number {number}."}],
                "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(self.address, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            times = [time.perf_counter() for line in answer if line.startswith(b"data: {")]
        return (times[-1] - times[0]) / tokens

    def wait(self):
        for _ in range(300):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                return self.step(0, 8)
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise SystemExit(f"{self.process.args[0]}: expected a service within a minute, found none; run this command by hand")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("binaries", type=Path, nargs=2)
    p.add_argument("--model", default="smollm2")
    p.add_argument("--tokens", type=int, default=100)
    p.add_argument("--pairs", type=int, default=12)
    a = p.parse_args()
    with contextlib.ExitStack() as stack:
        services = [Service(binaries.resolve(), a.model, 18_061 + 2 * at, stack) for at, binaries in enumerate(a.binaries)]
        for service in services:
            service.wait()
        rounds = []
        for at in range(ROUNDS):
            ratios = []
            for pair in range(a.pairs):
                number = at * a.pairs + pair
                order = services if pair % 2 else services[::-1]
                took = {service.address: service.step(number, a.tokens) for service in order}
                ratios.append(took[services[1].address] / took[services[0].address])
            rounds.append(statistics.median(ratios))
            print(f"round {at + 1}: {rounds[-1]:.3f}", flush=True)
        margin = 2.447 * statistics.stdev(rounds) / ROUNDS**0.5
        print(f"{a.model}: {statistics.median(rounds):.3f} times as fast; 95 % of the mean {statistics.mean(rounds):.3f} ± {margin:.3f}")


if __name__ == "__main__":
    main()
