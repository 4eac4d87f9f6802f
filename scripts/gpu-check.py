#!/usr/bin/env python3
"""What runs on this machine's GPU, whether its tokens are right, how fast it is. Called by gpu-check.sh.

    gpu-check.py --binaries DIR [--out DIR] [--models DIR] [--steps NAMES] [--tiny] [--device gpu|cpu] [--minutes 12]

Steps: machine, models, selftest, ids, drafts, widths, widths4, stream, pairs, recurrent, mlx_lm, sweep. Random models are made in --models (8B in
bfloat16 and in 4 bits, a Qwen3.5-shaped 4B, a small drafter; 31 GB), or taken from there. mlx_lm needs that package in this Python. --tiny takes tiny ones, to try the script itself where there is no GPU.
Results are written after each step. Needs Python's standard library alone.
"""
import argparse, json, os, pathlib, platform, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Seconds of each step.
LIMITS = dict(machine=20, models=150, selftest=120, ids=150, drafts=100, widths=150, widths4=120, stream=110, pairs=120, recurrent=90, mlx_lm=120,
              sweep=150)
# Of sampled answers: what the generation_config.json of Qwen's models asks for.
SAMPLED = ["--temperature", "0.7", "--top-p", "0.8", "--top-k", "20"]
KINDS = ["json", "code", "prose"]
# Random models: family, size, format.
MODELS = {"bf16": ("qwen3", "8b", "bf16"), "q4": ("qwen3", "8b", "q4"), "hybrid": ("qwen3_5", "4b", "bf16"), "drafter": ("qwen3", "100m", "bf16")}


class StepFailed(Exception):
    """What a step expected and what it found."""


class Check:
    """Options, where things are, results so far."""

    def __init__(self, options):
        self.options = options
        self.out = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.log = open(self.out / "gpu-check.log", "a", encoding="utf-8")
        self.results = {}
        self.deadline = time.monotonic() + 60 * options.minutes
        # A socket's path may have about 100 bytes, and $TMPDIR on macOS is long.
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="paceline-gpu.", dir="/tmp"))
        self.until = self.deadline

    def program(self, name):
        for place in (self.options.binaries / name, self.options.binaries / "examples" / name):
            if place.exists():
                return str(place)
        raise StepFailed(f"expected the program {name} in {self.options.binaries}, found none")

    def environment(self, device, **settings):
        known = dict(os.environ, PACELINE_CONFIG="", PACELINE_TARGET__DEVICE=device)
        known |= {"PACELINE_TARGET__SAVED_COSTS": "", "PACELINE_TARGET__MODEL": str(ROOT / "demo/target"),
                  "PACELINE_DRAFTER__MODEL": str(ROOT / "demo/drafter")}
        return known | settings

    def run(self, command, env=None, check=True):
        """The output of a command; it ends with the step's time, and with it everything it started."""
        self.log.write(f"$ {' '.join(map(str, command))}\n")
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(command, env=env, stdout=said, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True)
            late = False
            try:
                child.wait(timeout=max(1.0, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = True
                end(child)
            said.seek(0)
            errors.seek(0)
            output, error = said.read(), errors.read()
        self.log.write(output + error + f"-> {child.returncode}{', out of time' if late else ''}\n")
        self.log.flush()
        if check and (late or child.returncode != 0):
            raise StepFailed(f"{pathlib.Path(command[0]).name}: " + ("out of time" if late else f"exit code {child.returncode}")
                             + f": {(error or output).strip()[-600:]}", objects(output))
        return output

    def save(self):
        (self.out / "gpu-check.json").write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        (self.out / "gpu-check.md").write_text(page(self.results), encoding="utf-8")


def end(child):
    """SIGTERM for a tidy end, then SIGKILL, to the whole session."""
    for number, seconds in ((signal.SIGTERM, 8), (signal.SIGKILL, 5)):
        try:
            os.killpg(child.pid, number)
            child.wait(timeout=seconds)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            continue
        if number == signal.SIGTERM:
            # What it started may be left.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        return


def objects(text):
    """The JSON objects among the lines."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                pass
    return found


class Service:
    """`paceline serve` in a runtime directory of its own, ready."""

    def __init__(self, check, device, drafter=True, **settings):
        self.check, self.drafter = check, drafter
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="run.", dir=check.scratch))
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            ports = one.getsockname()[1], two.getsockname()[1]
        self.env = check.environment(
            device, PACELINE_SUPERVISOR__RUNTIME_DIR=str(self.dir / "r"), PACELINE_GATEWAY__GRPC=f"127.0.0.1:{ports[0]}",
            PACELINE_GATEWAY__HTTP=f"127.0.0.1:{ports[1]}", PACELINE_KV__PREFIX_CACHE="false", **settings)

    def __enter__(self):
        self.output = open(self.dir / "serve.log", "w+", encoding="utf-8")
        command = [self.check.program("paceline"), "serve"]
        self.child = subprocess.Popen(command, env=self.env, stdout=self.output, stderr=self.output, stdin=subprocess.DEVNULL,
                                      start_new_session=True)
        parts = ["gateway", "supervisor", "target"] + ["drafter"] * self.drafter
        while True:
            if self.child.poll() is not None or time.monotonic() > self.check.until:
                self.__exit__()
                raise StepFailed("the service was not ready in time: " + self.said[-600:])
            status = objects(" ".join(self.ask("status", "--json", check=False).split()))
            if status and all(status[0].get(part, {}).get("state") == "ready" for part in parts):
                return self
            time.sleep(0.3)

    def __exit__(self, *_):
        end(self.child)
        self.output.seek(0)
        self.said = self.output.read()
        workers = [path.read_text(errors="replace") for path in sorted((self.dir / "r").glob("*.log"))]
        self.check.log.write("\n".join([self.said, *workers]))
        self.output.close()

    def ask(self, *arguments, check=True):
        return self.check.run([self.check.program("paceline"), *arguments], env=self.env, check=check)

    def generate(self, *arguments):
        return json.loads(self.ask("generate", "--json", *arguments))


def speed(answer):
    """Tokens a second of decoding."""
    seconds = (answer["timing"]["total_ms"] - answer["timing"]["ttft_ms"]) / 1e3
    return (answer["usage"]["completion_tokens"] - 1) / seconds if seconds > 1e-3 else None


def check_libraries(check):
    """Fails if this Linux lacks libraries that the target worker needs, or functions of them."""
    try:
        run = subprocess.run(["ldd", "-r", check.program("paceline-target")], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return
    lines = (run.stdout + run.stderr).splitlines()
    missing = sorted({line.split()[0] for line in lines if "not found" in line})
    missing += sorted({line.split("\t")[0] for line in lines if line.startswith("undefined symbol")})
    if missing:
        raise StepFailed(f"paceline-target cannot start, missing: {', '.join(missing)}: install the libraries, or carry them and set LD_LIBRARY_PATH")


def machine(check):
    def said(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return ""
    gpu = said("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    if platform.system() == "Darwin":
        gpu = said("sysctl", "-n", "machdep.cpu.brand_string") + ", " + said("sysctl", "-n", "hw.memsize") + " bytes"
    version = said(check.program("paceline"), "--version")
    check_libraries(check)
    return {"gpu": gpu, "system": platform.platform(), "cores": os.cpu_count(), "version": version,
            "date": time.strftime("%Y-%m-%d"), "settings": {key: value for key, value in os.environ.items() if key.startswith(("MLX_", "PACELINE_"))}}


def model(check, name):
    """Where a random model is; made if need be."""
    family, size, form = MODELS[name]
    place = check.options.models / (f"{name}-tiny" if check.options.tiny else name)
    if not (place / "made").exists():
        made = [sys.executable, str(ROOT / "scripts/random-checkpoint.py"), str(place), "--family", family, "--size",
                "tiny" if check.options.tiny else size, "--format", form]
        # Drafts of them are right; a drafter has the vocabulary of its target.
        if family == "qwen3":
            made += ["--repeats", "--vocabulary", "8192" if check.options.tiny else "151936"]
        check.run(made)
        (place / "made").touch()
    return place


def models(check):
    began, found = time.monotonic(), {}
    for name in MODELS:
        model(check, name)
        found[name] = round(time.monotonic() - began, 1)
    return found


def selftest(check):
    output = check.run([check.program("paceline"), "selftest", "--json", "--prompts", "1"], env=check.environment(check.options.device), check=False)
    found = objects(output)
    if not found:
        raise StepFailed("expected a report of selftest, found none")
    return found[-1]


def prompts(check):
    """The first prompt of some kinds: (kind, file of messages)."""
    seen = {}
    for line in (ROOT / "demo/prompts.jsonl").read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)
        if prompt["kind"] in KINDS and prompt["kind"] not in seen:
            path = check.scratch / f"{prompt['kind']}.json"
            path.write_text(json.dumps(prompt["messages"]), encoding="utf-8")
            seen[prompt["kind"]] = path
    return seen.items()


def ids(check):
    """Greedy and sampled tokens: GPU beside CPU, lane beside lane, and with a drafter that goes and comes back."""
    tokens, found = ("96" if check.options.tiny else "200"), {}
    hows = {"greedy": ["--temperature", "0"], "sampled": ["--temperature", "0.8", "--seed", "7"]}
    answers = {}
    for device in dict.fromkeys((check.options.device, "cpu")):
        try:
            with Service(check, device) as service:
                for kind, path in prompts(check):
                    for how, flags in hows.items():
                        ask = ["--messages", str(path), "--max-tokens", tokens, "--ignore-eos", "--margins", *flags]
                        answers[device, kind, how, "plain"] = service.generate(*ask, "--route", "plain")
                        if device == check.options.device:
                            answers[device, kind, how, "drafted"] = service.generate(*ask, "--route", "speculative")
                if device == check.options.device:
                    # Past its end the model goes on, long enough for a drafter to go and come back.
                    kind, path = next(iter(prompts(check)))
                    for how, flags in hows.items():
                        ask = ["--messages", str(path), "--max-tokens", str(12 * int(tokens)), "--ignore-eos", "--margins", *flags]
                        answers[device, kind + ", long", how, "plain"] = service.generate(*ask, "--route", "plain")
                        answers[device, kind + ", long", how, "hot-plug"] = plugged(service, ask)
        except StepFailed as failed:
            found[f"failed on {device}"] = failed.args[0]
    comparisons = []
    for (device, kind, how, lane), answer in answers.items():
        plain = answers.get((check.options.device, kind, how, "plain"))
        if plain is None or answer is plain:
            continue
        comparisons.append({"what": f"{device} {lane}", "kind": kind, "how": how, **difference(plain, answer)})
    return found | {"comparisons": comparisons}


def plugged(service, ask):
    """An answer during which the drafter is stopped and started."""
    command = [service.check.program("paceline"), "generate", "--json", *ask, "--route", "speculative"]
    stream = subprocess.Popen(command, env=service.env, stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(0.5)
        for change in ("stop", "start"):
            service.ask("drafter", change)
        return json.loads(stream.communicate(timeout=max(1.0, service.check.until - time.monotonic()))[0])
    finally:
        if stream.poll() is None:
            stream.kill()


def difference(plain, other):
    """Where two answers part, and by how much the plain one's first choice led there."""
    pairs = list(zip(plain["token_ids"], other["token_ids"]))
    at = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
    margins = plain.get("margins") or []
    return {"tokens": len(pairs), "differs_at": at, "margin": margins[at] if at is not None and at < len(margins) else None,
            "drafted": other["speculation"]["drafted"], "accepted": other["speculation"]["accepted"]}


def bench(check, *arguments):
    output = check.run([check.program("paceline"), "bench", "--json", *arguments], env=check.environment(check.options.device), check=False)
    found = objects(output)
    if not found or "rows" not in found[-1]:
        raise StepFailed(f"expected a report of bench, found {output.strip()[-300:]}")
    return found[-1]


def drafts(check):
    tokens = "32" if check.options.tiny else "128"
    return bench(check, "--kinds", "json,code", "--runs", "1" if check.options.tiny else "3", "--max-tokens", tokens)


def sweep(check):
    if check.options.tiny:
        return bench(check, "--sweep", "--kinds", "json", "--concurrency", "1,2", "--runs", "1", "--max-tokens", "16")
    return bench(check, "--sweep", "--kinds", "json,prose", "--concurrency", "1,4", "--runs", "2", "--max-tokens", "96")


def widths_of(check, name, positions, rows, sequences, steps):
    command = [check.program("step_widths"), str(model(check, name)), positions, rows, sequences, steps]
    # As the supervisor sets it for workers.
    return {"figures": objects(check.run(command, env=dict(os.environ, MLX_ENABLE_CACHE_THRASHING_CHECK="0")))}


def widths(check):
    return widths_of(check, "bf16", *(("200", "1,2,4", "2", "3") if check.options.tiny else ("1024,16384", "1,2,3,4,8,16", "4", "20")))


def widths4(check):
    return widths_of(check, "q4", *(("200", "1,2,4", "2", "3") if check.options.tiny else ("1024,16384", "1,2,3,4,8,16", "4", "20")))


def recurrent(check):
    return widths_of(check, "hybrid", *(("100", "1,4", "", "3") if check.options.tiny else ("4000", "1,4", "", "10")))


def stream(check):
    """One stream through the service, greedy and sampled."""
    tokens, found = ("32" if check.options.tiny else "256"), {}
    place = model(check, "bf16")
    with Service(check, check.options.device, drafter=False, PACELINE_TARGET__MODEL=str(place), PACELINE_DRAFTER__MODEL="") as service:
        for how, flags in {"warm": ["--temperature", "0"], "greedy": ["--temperature", "0"], "sampled": SAMPLED}.items():
            answers = [service.generate("--prompt", "Write.", "--max-tokens", tokens, "--ignore-eos", *flags) for _ in range(2)]
            speeds = [speed(answer) for answer in answers if speed(answer)]
            if how != "warm" and speeds:
                found[how] = {"tok_s": statistics.median(speeds)}
    config = json.loads((place / "config.json").read_text(encoding="utf-8"))
    weights = sum(file.stat().st_size for file in place.glob("*.safetensors"))
    # Of an embedding that is not the head as well, a token reads one row.
    unread = 0 if config["tie_word_embeddings"] else 2 * config["vocab_size"] * config["hidden_size"]
    return found | {"bytes_a_token": weights - unread}


def pairs(check):
    """Answers of the 8B models of which three tokens a cycle are drafted right: by lookup, and by a small model."""
    tokens, found = ("32" if check.options.tiny else "256"), {}
    ask = ["--prompt", "Write.", "--max-tokens", tokens, "--ignore-eos", "--temperature", "0", "--route"]
    for name in ("bf16", "q4"):
        settings = {"PACELINE_TARGET__MODEL": str(model(check, name)), "PACELINE_DRAFTER__MODEL": "lookup", "PACELINE_DRAFTER__MAX_TOKENS": "3"}
        with Service(check, check.options.device, **settings) as service:
            for drafter in ("lookup", str(model(check, "drafter"))):
                if drafter != "lookup":
                    service.ask("drafter", "swap", "--model", drafter)
                answers = {lane: [service.generate(*ask, lane) for _ in range(3)] for lane in ("plain", "speculative", "auto")}
                # The first of each compiles kernels.
                speeds = {lane: [speed(answer) for answer in each[1:] if speed(answer)] for lane, each in answers.items()}
                cell = {lane: statistics.median(each) if each else None for lane, each in speeds.items()}
                last = answers["speculative"][-1]["speculation"]
                found[f"{name}, {'lookup' if drafter == 'lookup' else 'a small model'}"] = cell | {
                    "tokens_a_cycle": 1 + last["accepted"] / last["cycles"] if last["cycles"] else None,
                    "equal": all(answer["token_ids"] == answers["plain"][0]["token_ids"] for each in answers.values() for answer in each)}
    return found


MLX_LM = """
import json, sys, time
from pathlib import Path
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
positions, steps = int(sys.argv[2]), int(sys.argv[3])
own = json.loads((Path(sys.argv[1]) / "config.json").read_text())
changed = {"model_type": "qwen3_5", "text_config": own} if own["model_type"] == "qwen3_5_text" else {}
model, _ = load_model(Path(sys.argv[1]), model_config=changed)
ids = mx.random.randint(0, 4000, (1, positions))
for again in (False, True):
    cache, begun = make_prompt_cache(model), time.perf_counter()
    for at in range(0, positions, 512):
        logits = model(ids[:, at:at + 512], cache=cache)
        mx.eval(logits, [layer.state for layer in cache])
    print(json.dumps({"positions": positions, "prompt_ms": 1e3 * (time.perf_counter() - begun), "again": again}), flush=True)
token = mx.argmax(logits[:, -1], axis=-1)
mx.eval(token)
for at in range(steps + 5):
    if at == 5:
        begun = time.perf_counter()
    following = mx.argmax(model(token[:, None], cache=cache)[:, -1], axis=-1)
    mx.async_eval(following)
    mx.eval(token)
    token = following
mx.eval(token)
print(json.dumps({"positions": positions, "sequences": 1, "rows": 1, "ms": 1e3 * (time.perf_counter() - begun) / steps}), flush=True)
"""


def mlx_lm(check):
    """Prompts and steps of mlx-lm, which begins a step before the one ahead of it is read."""
    found, cells = {}, [("bf16", "1024"), ("q4", "1024"), ("hybrid", "4000")]
    for name, positions in cells:
        command = [sys.executable, "-c", MLX_LM, str(model(check, name)), "100" if check.options.tiny else positions, "5" if check.options.tiny else "50"]
        found[name] = objects(check.run(command, env=dict(os.environ, MLX_ENABLE_CACHE_THRASHING_CHECK="0")))
    return found


STEPS = dict(machine=machine, models=models, selftest=selftest, ids=ids, drafts=drafts, widths=widths, widths4=widths4, stream=stream, pairs=pairs,
             recurrent=recurrent, mlx_lm=mlx_lm, sweep=sweep)


def number(value, form=".2f"):
    return "-" if value is None else format(value, form)


def width_lines(name, result):
    figures = result.get("figures", [])
    lines = [f"\n## {name}\n"]
    for figure in figures:
        if "copy_gb_s" in figure:
            lines.append(f"A copy moves {figure['copy_gb_s']:.0f} GB/s.")
        if "weight_bytes" in figure:
            lines.append(f"{figure['weight_bytes'] / 1e9:.2f} GB of weights, {figure['dtype']}, loaded in {figure['load_s']:.1f} s.")
        if "prompt_ms" in figure:
            again = ", again" if figure["again"] else ""
            lines.append(f"Prompt of {figure['positions']}{again}: {figure['prompt_ms']:.0f} ms.")
    lines += ["", "| positions | sequences | rows | ms a step | of one row |", "|---|---|---|---|---|"]
    one = {}
    for figure in (figure for figure in figures if "rows" in figure):
        one.setdefault(figure["positions"], figure["ms"])
        ratio = figure["ms"] / one[figure["positions"]]
        lines.append(f"| {figure['positions']} | {figure['sequences']} | {figure['rows']} | {figure['ms']:.2f} | {ratio:.2f} |")
    return lines


def bench_lines(name, result):
    lines = [f"\n## {name}\n", "| kind | at once | " + " | ".join(("absent", "plain", "forced", "routed")) + " | tokens a cycle |", "|---" * 7 + "|"]
    for row in result.get("rows", []):
        lanes = {lane["mode"]: lane for lane in row["lanes"]}
        cells = [number(statistics.median(lanes[mode]["tok_s"]), ".0f") if mode in lanes else "-" for mode in ("absent", "plain", "forced", "routed")]
        forced = lanes.get("forced", {})
        cycle = (forced["cycles"] + forced["accepted"]) / forced["cycles"] if forced.get("cycles") else None
        lines.append(f"| {row['kind']} | {row['streams']} | {' | '.join(cells)} | {number(cycle)} |")
    same = result.get("same", {})
    lines.append(f"\nTokens compared: {same.get('tokens')}, differences: {len(same.get('differences', []))}.")
    return lines


def ids_lines(result):
    lines = ["\n## Tokens beside those of the plain lane on this device\n", "| what | kind | how | tokens | differs at | margin | accepted of drafted |", "|---" * 7 + "|"]
    for one in result.get("comparisons", []):
        lines.append(f"| {one['what']} | {one['kind']} | {one['how']} | {one['tokens']} | {one['differs_at'] if one['differs_at'] is not None else 'equal'} "
                     f"| {number(one['margin'], '.2g')} | {one['accepted']} of {one['drafted']} |")
    return lines + [f"{key}: {value}" for key, value in result.items() if key.startswith("failed on")]


def stream_lines(result, copy):
    lines = ["\n## One stream of the 8B model in bfloat16 through the service\n"]
    for how in ("greedy", "sampled"):
        if how in result:
            moved = result[how]["tok_s"] * result["bytes_a_token"] / 1e9
            share = f", {moved / copy:.2f} of a copy" if copy else ""
            lines.append(f"- {how}: {result[how]['tok_s']:.1f} tokens a second, {moved:.0f} GB/s{share}")
    return lines


def pairs_lines(result):
    lines = ["\n## The 8B models, three tokens a cycle drafted right: tokens a second\n", "| target, drafter | plain | drafted | routed | tokens a cycle | same tokens |",
             "|---" * 6 + "|"]
    for name, cell in result.items():
        if isinstance(cell, dict):
            lines.append(f"| {name} | {' | '.join(number(cell[lane], '.0f') for lane in ('plain', 'speculative', 'auto'))} "
                         f"| {number(cell['tokens_a_cycle'])} | {'yes' if cell['equal'] else 'NO'} |")
    return lines


def mlx_lm_lines(result):
    lines = ["\n## mlx-lm\n", "| model | positions | prompt, ms | again | ms a step |", "|---" * 5 + "|"]
    for name, figures in result.items():
        if isinstance(figures, list) and len(figures) == 3:
            first, second, step = figures
            lines.append(f"| {name} | {step['positions']} | {first['prompt_ms']:.0f} | {second['prompt_ms']:.0f} | {step['ms']:.2f} |")
    return lines


def page(results):
    """The report for people."""
    what = results.get("machine", {})
    lines = ["# gpu-check", "", f"{what.get('gpu')}; {what.get('system')}; {what.get('cores')} cores; {what.get('version')}; {what.get('date')}; "
             f"{what.get('settings')}", "", "| step | seconds | outcome |", "|---|---|---|"]
    lines += [f"| {name} | {result['seconds']} | {result.get('failed', 'done')[:200]} |".replace("\n", " ") for name, result in results.items()]
    tested = results.get("selftest", {})
    if "all" in tested:
        every, same = tested["all"], tested.get("identity", {})
        lines += ["\n## selftest\n", f"plain {number(every.get('plain_tok_s'), '.0f')}, drafted {number(every.get('drafted_tok_s'), '.0f')} tokens a second, "
                  f"{number(every.get('tokens_per_cycle'))} tokens a cycle, drafted over plain {number(tested.get('overall_ratio'))}; "
                  f"identity: {json.dumps(same)[:600]}", "", *(f"- {line}" for line in tested.get("verdict", []))]
    elif "error" in tested:
        lines += ["\n## selftest\n", str(tested["error"].get("message"))]
    if "ids" in results:
        lines += ids_lines(results["ids"])
    copy = next((figure["copy_gb_s"] for figure in results.get("widths", {}).get("figures", []) if "copy_gb_s" in figure), None)
    for name, title in (("widths", "8B in bfloat16"), ("widths4", "8B in 4 bits"), ("recurrent", "Qwen3.5's shape, 4B in bfloat16")):
        if name in results:
            lines += width_lines(title, results[name])
    if "stream" in results:
        lines += stream_lines(results["stream"], copy)
    if "pairs" in results:
        lines += pairs_lines(results["pairs"])
    if "mlx_lm" in results:
        lines += mlx_lm_lines(results["mlx_lm"])
    for name, title in (("drafts", "Drafts of the embedded pair, tokens a second"), ("sweep", "Sweep, tokens a second")):
        if name in results:
            lines += bench_lines(title, results[name])
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--out", type=lambda text: pathlib.Path(text).resolve(), default=ROOT / "target/gpu-check")
    parser.add_argument("--models", type=lambda text: pathlib.Path(text).resolve(), default=ROOT / "target/gpu-check-models")
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--minutes", type=float, default=12)
    check = Check(parser.parse_args())
    names = check.options.steps.split(",")
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        parser.error(f"unknown steps {unknown}, known are {list(STEPS)}")
    try:
        for name in names:
            began = time.monotonic()
            check.until = min(began + LIMITS[name], check.deadline)
            try:
                if check.until - began < 5:
                    raise StepFailed("not begun: the time is used up")
                result = STEPS[name](check)
            except StepFailed as failed:
                result = {"failed": failed.args[0]} | ({"figures": failed.args[1]} if len(failed.args) > 1 else {})
            except Exception as failed:
                result = {"failed": f"{type(failed).__name__}: {failed}"}
            result["seconds"] = round(time.monotonic() - began, 1)
            check.results[name] = result
            check.save()
            print(f"{name}: {result['seconds']} s, {result.get('failed', 'done')[:300]}", flush=True)
    finally:
        shutil.rmtree(check.scratch, ignore_errors=True)
    print((check.out / "gpu-check.md").read_text(encoding="utf-8"))
    sys.exit(any("failed" in result for result in check.results.values()))


main()
