"""The processor, and the instructions that both sides of the comparison with llama.cpp use on it."""
import json, os, pathlib, platform, re, subprocess

# Names of llama_print_system_info and of /proc/cpuinfo, of x86-64 and of AArch64.
FLAGS = {"SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX_VNNI": "avx_vnni", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma", "BMI2": "bmi2",
         "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8",
         "NEON": "asimd", "ARM_FMA": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp", "MATMUL_INT8": "i8mm", "SVE": "sve", "SME": "sme"}
# Vectors, widest first, by what the names of their instruction sets contain.
AVX512, AVX2, NEON, NONE = "AVX-512", "AVX2", "NEON", "no vectors"
# Products of 8-bit numbers, by what our names of instruction sets contain, and llama.cpp's names for them.
INTEGERS = {"avx512vnni": {"AVX512_VNNI"}, "avxvnni": {"AVX_VNNI", "AVX512_VNNI"}, "dotprod": {"DOTPROD"}, "i8mm": {"MATMUL_INT8"}}


def cpuinfo():
    try:
        return pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def name(text):
    """Name of the processor. A virtual machine often hides the model, so its numbers are part of the name."""
    found = dict(re.findall(r"^(model name|cpu family|model|stepping)\s*: (.*)$", text, re.MULTILINE))
    numbers = ", ".join(f"{key.removeprefix('cpu ')} {found[key]}" for key in ("cpu family", "model", "stepping") if key in found)
    return f"{found.get('model name', platform.machine())}{f' ({numbers})' if numbers else ''}"


def vectors(instructions):
    """The widest vectors of a name of ours ("avx512") or of llama.cpp's names ("AVX AVX2")."""
    plain = plainly(instructions)
    return next((kind for kind, word in ((AVX512, "avx512"), (AVX2, "avx2"), (AVX2, "avxvnni"), (NEON, "neon")) if word in plain), NONE)


def plainly(instructions):
    return re.sub(r"[-_]", "", instructions.lower())


def built(system):
    """Instructions that llama.cpp was built with, of what it prints."""
    return [name for name, value in re.findall(r"(\w+) = (\d+)", system) if value != "0"]


def chosen(text):
    """The instruction set that our kernels choose on this processor: cpu/src/kernel/mod.rs."""
    flags = set(text.split())
    if {"avx2", "fma", "f16c"} <= flags:
        return "avx512" if {"avx512f", "avx512bw", "avx512vl"} <= flags else "avx2"
    return "neon" if "asimd" in flags else "portable"


def ours(binaries, out, label):
    """Instruction set of a running service, and a note of where the name is from. A build whose status lacks it chooses by the processor."""
    env = {**os.environ, "PACELINE_CONFIG": "", "PACELINE_SUPERVISOR__RUNTIME_DIR": str(pathlib.Path(out).resolve() / f"run-{label}")}
    done = subprocess.run([str(pathlib.Path(binaries) / "paceline"), "status", "--json"], env=env, text=True, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"paceline status: {done.stderr.strip()}")
    told = (json.loads(done.stdout).get("model") or {}).get("instructions")
    return (told, "") if told else (chosen(cpuinfo()), " (by the processor: its status does not say)")


def difference(mine, system):
    """Why a comparison would not be fair; empty if it is. llama.cpp may have more for integers than we use, but not less."""
    theirs = built(system)
    wide, other = vectors(mine), vectors(" ".join(theirs))
    if wide != other:
        return f"expected builds with the same vectors, found {wide} in Paceline and {other} in llama.cpp"
    for word, names in INTEGERS.items():
        if word in plainly(mine) and not names & set(theirs):
            return f"expected {' or '.join(sorted(names))} in llama.cpp, since Paceline uses {mine}; found {' '.join(theirs)}"
    return ""


def described(about):
    """Lines: the processor, and which instructions both sides use. `about` is what is known, or nothing."""
    if not about:
        return "llama.cpp's instructions are unknown: it ended before it printed them"
    lines = [f"processor: {about['processor']}"] if "processor" in about else []
    lines += [f"Paceline uses {about['ours']}"] if "ours" in about else []
    return "\n".join([*lines, instructions(about["system"], cpuinfo())])


def instructions(system, text):
    """A line: which instructions llama.cpp was built with, and how that compares with the processor of this text of /proc/cpuinfo."""
    theirs, flags = built(system), set(text.split())
    known = f"llama.cpp was built with {' '.join(theirs) or 'nothing that it names'}"
    if not flags:
        return f"{known}; the machine's instructions are unknown"
    has = [name for name, flag in FLAGS.items() if flag in flags]
    lacks = [name for name in theirs if name in FLAGS and name not in has]
    unused = [name for name in has if name not in theirs]
    parts = [known, f"the machine has {' '.join(has) or 'none that llama.cpp names'}"]
    parts += [f"the machine lacks {' '.join(lacks)}"] * bool(lacks) + [f"llama.cpp does not use {' '.join(unused)}"] * bool(unused)
    return "; ".join(parts)
