"""The parent's end of llama.py: a process that may crash, and is started again by the next command."""
import contextlib, json, os, pathlib, signal, subprocess, sys, threading

from .clients import ROOT

ANSWER_S = 300  # longest time of an answer


class PeerCrashed(Exception):
    """The process ended, or was ended, without an answer. `how` is a signal or an exit code, `words` its last line of errors."""

    def __init__(self, how, words):
        super().__init__(f"{how}{': ' + words if words else ''}")
        self.how, self.words = how, words


class LlamaCpp:
    def __init__(self, gguf, threads, log):
        self.command = [sys.executable, str(ROOT / "bench/peers/llama.py"), gguf, str(threads)]
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
