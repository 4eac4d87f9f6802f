"""Makes docs/images/top.svg: `paceline top` a moment after the target was killed under three streams.

    picture-of-top.py PROGRAMS FILE

PROGRAMS is the directory of the programs. It serves SmolLM2 in a directory of its own, asks three questions at once, kills
the target, and draws the screen of a terminal as it is then. It needs the package pyte."""

import fcntl
import html
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte

COLUMNS, ROWS = 108, 30
CELL_WIDTH, CELL_HEIGHT, FONT_SIZE, MARGIN = 8.0, 17, 13.3, 10
COLOURS = {"default": "#d0d7de", "black": "#6e7681", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341", "yellow": "#e3b341",
           "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#f0f6fc"}
QUESTIONS = ["Write a long story about a river.", "Explain how a bicycle stays upright, in detail.",
             "Describe the four seasons, one after the other, at length."]


def drawn(screen):
    """The screen as SVG: one text element for each run of cells of one style."""
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, ROWS * CELL_HEIGHT + 2 * MARGIN
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-family="monospace" '
             f'font-size="{FONT_SIZE}">', '<rect width="100%" height="100%" rx="6" fill="#0d1117"/>']
    for row in range(ROWS):
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        column = 0
        while column < COLUMNS:
            first, end = cells[column], column
            style = (first.fg, first.bold, first.reverse)
            while end < COLUMNS and (cells[end].fg, cells[end].bold, cells[end].reverse) == style:
                end += 1
            text = "".join(cell.data for cell in cells[column:end])
            if text.strip():
                lead = len(text) - len(text.lstrip())
                colour = COLOURS.get(first.fg, f"#{first.fg}" if len(first.fg) == 6 else COLOURS["default"])
                bold = ' font-weight="bold"' if first.bold else ""
                words = text.strip()
                parts.append(f'<text x="{MARGIN + (column + lead) * CELL_WIDTH:.1f}" y="{MARGIN + row * CELL_HEIGHT + 13}" '
                             f'textLength="{len(words) * CELL_WIDTH:.1f}" fill="{colour}"{bold} '
                             f'xml:space="preserve">{html.escape(words)}</text>')
            column = end
    return "\n".join([*parts, "</svg>", ""])


def main():
    programs, file = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        # The page shows the model's path, which shall be nobody's own.
        caches = pathlib.Path("/tmp/cache")
        (caches / "paceline").mkdir(parents=True, exist_ok=True)
        own = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        if not (caches / "paceline/models").is_symlink():
            (caches / "paceline/models").symlink_to(own / "paceline/models")
        environment = os.environ | {"XDG_CACHE_HOME": str(caches), "PACELINE_CONFIG": "", "PACELINE_SUPERVISOR__RUNTIME_DIR": f"{directory}/run", "TERM": "xterm-256color",
                                    "PACELINE_TARGET__MODEL": "smollm2", "PACELINE_GATEWAY__GRPC": "127.0.0.1:50061"}

        def run(*words, **more):
            return subprocess.Popen([programs / "paceline", *words], env=environment, cwd=directory, stdin=subprocess.DEVNULL, **more)

        def status():
            asked = subprocess.run([programs / "paceline", "status", "--json"], env=environment, cwd=directory, capture_output=True)
            return json.loads(asked.stdout) if asked.returncode == 0 else {}

        def wait(what):
            give_up = time.monotonic() + 60
            while not what(status()):
                if time.monotonic() > give_up:
                    sys.exit("the service did not come to the state that the picture shows")
                time.sleep(0.2)

        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        serve = run("serve", **quiet)
        wait(lambda now: now.get("drafter", {}).get("state") == "ready")
        streams = [run("generate", "--message", text, "--max-tokens", "4000", "--ignore-eos", **quiet) for text in QUESTIONS]
        wait(lambda now: now["requests"]["active"] == len(QUESTIONS))
        screen = pyte.Screen(COLUMNS, ROWS)
        stream = pyte.ByteStream(screen)
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(directory)
            os.execve(programs / "paceline", ["paceline", "top"], environment)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

        def read(seconds):
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                if select.select([terminal], [], [], left)[0]:
                    stream.feed(os.read(terminal, 65536))

        read(8)
        os.kill(status()["target"]["pid"], signal.SIGKILL)
        # Until the page shows the next target, and that the streams go on.
        for _ in range(100):
            read(0.1)
            restarted = any(re.match(r"target +ready +\d+ +\d+ s +1 ", line) for line in screen.display)
            runs = any(line.startswith(f"{len(QUESTIONS)} run") for line in screen.display)
            if restarted and runs:
                break
        else:
            sys.exit("the streams did not go on")
        file.write_text(drawn(screen), encoding="utf-8")
        print("\n".join(screen.display))
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        for child in streams:
            child.terminate()
        serve.terminate()
        serve.wait(60)


main()
