#!/usr/bin/env python3
"""Paceline beside the servers a user could take instead: mlx-lm, mlx-vlm and vllm-mlx (alone and with --continuous-batching).

    bench-peers.py --binaries DIR --vllm VENV/bin/vllm-mlx --target demo=demo/target --target 100m=DIR --drafter demo=demo/drafter \\
                   --blas libopenblas.so.0 --out DIR COMMAND

    serve     starts every server for every target and keeps them until it is interrupted (SIGINT, SIGTERM)
    measure   rounds against servers that `serve` keeps; can be called again and again, rounds count on
    table     prints what --out holds
    all       the three in one

Run it with the Python that has mlx-lm, mlx-vlm, grpcio, grpcio-tools and tokenizers. vllm-mlx pins another mlx-lm, so it comes from an
environment of its own. Servers without work must not take CPU: this is checked before each measurement (`settle`), as all are up at
the same time. In each cell the servers come in turn, in an order that moves on from round to round, with the same prompts, greedy, to the
model's own end or --tokens (no peer can ignore the end of sequence, so nobody does). Speed is all tokens produced over the time from the
first submission to the end of the last answer. The client is one process; its CPU time is noted, as it takes from the same cores.
"""
import argparse, asyncio, json, pathlib, signal, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from peers.clients import ROOT, Answer, open_clients
from peers.load import Prompts, behind, beside, throughput, user
from peers.servers import SERIAL, cpu_s, machine_s, pairs, settle, start, stop
from peers.table import table

SERIAL_MOST = 1  # it serves one request at a time (others it refuses, unless told to let them wait): more at once only takes longer
READY_S = 180


async def ready(servers, started=()):
    """One answer of each server, then a few at once, so that nothing is done for the first time in a measurement."""
    clients = open_clients(servers)
    for server in servers:
        client, give_up = clients[server["label"], server["name"]], time.monotonic() + READY_S
        while True:
            try:
                answer = await client.ask(user("What is 15 + 27? Show the steps."), 24, Answer())
                if not server["drafter"] or answer.cycles:
                    break
                problem = "it answers without its drafter"
            except Exception as error:  # not up yet
                problem = repr(error)
            ended = [process.returncode for process, it in started if it is server and process.poll() is not None]
            if ended or time.monotonic() > give_up:
                raise SystemExit(f"{server['label']} {server['name']} is not ready (exit code {ended[0] if ended else 'none'}): {problem}; see its log in --out")
            await asyncio.sleep(0.25)
        await asyncio.gather(*[client.ask(user(f"What is {n} + 27? Show the steps."), 16, Answer()) for n in range(4)])
        print(f"{server['label']} {server['name']} answers at {server['address']}", flush=True)
    for client in clients.values():
        await client.close()


async def measure(a):
    out = pathlib.Path(a.out)
    servers = json.loads((out / "servers.json").read_text())
    labels = list(dict.fromkeys(server["label"] for server in servers))
    if a.labels:
        labels = [label for label in labels if label in a.labels.split(",")]
    servers = [server for server in servers if server["label"] in labels]
    clients = open_clients(servers)
    results = out / "results.jsonl"
    done = max((json.loads(line)["round"] + 1 for line in open(results)), default=0) if results.exists() else 0
    each, kinds, tokens = pairs(a.requests), {**{label: "mixed" for label in labels}, **pairs(a.kinds)}, {**{label: 64 for label in labels}, **pairs(a.tokens)}
    at_once = [int(n) for n in a.at_once.split(",") if n]
    with open(results, "a") as file:
        for number in range(done, done + a.rounds):
            for label in labels:
                group = [server for server in servers if server["label"] == label]
                group = group[number % len(group):] + group[: number % len(group)]
                prompts = Prompts(ROOT / "demo/prompts.jsonl", f"{group[0]['target']}/tokenizer.json")
                limit, least = int(tokens[label]), int(each.get(label, 4))
                cells = [(kind, n) for kind in kinds[label].split(",") for n in at_once]
                for kind in kinds[label].split(","):
                    prompts.skip(kind, number * sum(max(least, n) for n in at_once))
                todo = [(f"{kind}, {n}", n, lambda client, taken=prompts.take(kind, max(least, n)), n=n: throughput(client, taken, n, limit)) for kind, n in cells]
                short = user(f"What is {number + 11} + 7?")
                if "behind" in a.latency:
                    todo.append(("behind", 0, lambda client: behind(client, prompts.long(f"behind {number}"), short)))
                if "beside" in a.latency:
                    todo.append(("beside", 0, lambda client: beside(client, prompts.long(f"beside {number}"), short, number, int(a.stream_tokens))))
                for cell, n, run in todo:
                    for server in group:
                        if server["name"] == SERIAL and (cell == "beside" or n > SERIAL_MOST):
                            continue
                        idle = await settle(servers)
                        line = dict(round=number, label=label, server=server["name"], cell=cell, idle_cpu=round(idle, 3))
                        used, busy, begun = cpu_s(server["pid"]) + time.process_time(), machine_s(), time.monotonic()
                        try:
                            line.update(await run(clients[label, server["name"]]))
                        except Exception as error:
                            line["error"] = repr(error)[:300]
                        wall, after = time.monotonic() - begun, machine_s()
                        used = cpu_s(server["pid"]) + time.process_time() - used
                        line.update(cpu=used / wall, other_cpu=(after[0] - busy[0] - used) / wall, stolen=(after[1] - busy[1]) / wall)
                        file.write(json.dumps(line) + "\n")
                        file.flush()
                print(f"round {number}, {label}: done at {time.strftime('%H:%M:%S')}", flush=True)
    for client in clients.values():
        await client.close()


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    add = parser.add_argument
    add("command", choices=["serve", "measure", "table", "all"])
    add("--out", required=True, help="folder of logs and results")
    add("--binaries", default=str(ROOT / "target/release"), help="folder of the five programs")
    add("--vllm", default="vllm-mlx", help="program vllm-mlx")
    add("--blas", default="", help="library that the peers preload (OpenBLAS)")
    add("--target", action="append", default=[], metavar="LABEL=DIR")
    add("--drafter", action="append", default=[], metavar="LABEL=DIR", help="ours only; without it a target is served plainly")
    add("--only", default="", help="servers to start, with commas; all without it")
    add("--port", type=int, default=18090)
    add("--rounds", type=int, default=5)
    add("--labels", default="", help="targets to measure; all without it")
    add("--kinds", action="append", default=[], metavar="LABEL=KIND,...", help="kinds of prompts; mixed = all in turn")
    add("--tokens", action="append", default=[], metavar="LABEL=N", help="most tokens of an answer (64)")
    add("--at-once", default="1,2,4,8,16")
    add("--requests", action="append", default=[], metavar="LABEL=N", help="requests of a cell (4), or as many as run at once if that is more")
    add("--latency", default="behind,beside", help="'' = none")
    add("--stream-tokens", type=int, default=400, help="most tokens of the streams beside a long prompt")
    a = parser.parse_args()
    if a.command == "measure":
        return asyncio.run(measure(a))
    if a.command == "table":
        return table(a)
    if not a.target:
        parser.error("--target is missing")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = start(a)
    try:
        asyncio.run(ready([server for _, server in started], started))
        listed = pathlib.Path(a.out) / "servers.json"
        listed.write_text(json.dumps([server for _, server in started], indent=1))
        if a.command == "all":
            asyncio.run(measure(a))
            table(a)
        else:
            print("all up; interrupt to stop them", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        stop(started)


if __name__ == "__main__":
    main()
