"""The parent's end of llama.py: a process that may crash, and is started again by the next command."""
import contextlib, json, os, pathlib, re, signal, subprocess, sys, threading

from .clients import ROOT

ANSWER_S = 300  # longest time of an answer
# Names of llama_print_system_info and of /proc/cpuinfo, of x86-64 and of AArch64.
FLAGS = {"SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX_VNNI": "avx_vnni", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma", "BMI2": "bmi2",
         "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8",
         "NEON": "asimd", "ARM_FMA": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp", "MATMUL_INT8": "i8mm", "SVE": "sve", "SME": "sme"}


class PeerCrashed(Exception):
    """The process ended, or was ended, without an answer. `how` is a signal or an exit code, `words` its last line of errors."""

    def __init__(self, how, words):
        super().__init__(f"{how}{': ' + words if words else ''}")
        self.how, self.words = how, words


class LlamaCpp:
    def __init__(self, gguf, threads, log):
        self.command = [sys.executable, str(ROOT / "scripts/peers/llama.py"), gguf, str(threads)]
        self.log, self.process, self.about = pathlib.Path(log), None, None

    def ask(self, **command):
        """The answer to a command. Starts the process first if there is none."""
        self.start()
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise self.crashed() from None
        return self.answer()

    def start(self):
        """Starts the process if there is none, and waits until its model is loaded."""
        if self.process:
            return
        # The library would start a debugger to print its stack when it aborts.
        environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        self.about = self.answer()
        self.answer()

    def answer(self):
        late = threading.Event()
        timer = threading.Timer(ANSWER_S, lambda process: (late.set(), process.kill()), [self.process])
        timer.start()
        try:
            return json.loads(self.process.stdout.readline())
        except ValueError:  # the end of its output, or half a line
            raise self.crashed(f"no answer within {ANSWER_S} s" if late.is_set() else None) from None
        finally:
            timer.cancel()

    def crashed(self, how=None):
        """Ends the process, and says how it ended by itself."""
        process, self.process = self.process, None
        with contextlib.suppress(OSError):  # a command that the process never read is still in the buffer
            process.stdin.close()
        try:
            code = process.wait(10)
        except subprocess.TimeoutExpired:  # it closed its output, or wrote something else, and lives
            process.kill()
            process.wait()
            code, how = 0, how or "an answer that is no JSON"
        return PeerCrashed(how or ending(code), last_line(self.log))

    def kill(self):
        """Ends the process without waiting for it, so that whoever reads its answer goes on."""
        if self.process:
            self.process.kill()

    def close(self):
        self.kill()
        if self.process:
            self.process.wait()
            self.process = None


def ending(code):
    """Name of a signal, or the exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def last_line(path):
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def instructions(system):
    """Sentences: which instructions the library uses, and how that compares with the processor. `system` is what the library prints."""
    if not system:
        return "llama.cpp's instructions are unknown: it ended before it printed them"
    built = [name for name, value in re.findall(r"(\w+) = (\d+)", system) if value != "0"]
    try:
        flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return f"llama.cpp was built with {' '.join(built)}; the machine's instructions are unknown"
    has = [name for name, flag in FLAGS.items() if flag in flags]
    lacks = [name for name in built if name in FLAGS and name not in has]
    unused = [name for name in has if name not in built]
    parts = [f"llama.cpp was built with {' '.join(built) or 'nothing that it names'}", f"the machine has {' '.join(has) or 'none that llama.cpp names'}"]
    parts += [f"the machine lacks {' '.join(lacks)}"] * bool(lacks) + [f"llama.cpp does not use {' '.join(unused)}"] * bool(unused)
    return "; ".join(parts)
