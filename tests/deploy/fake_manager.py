#!/usr/bin/env python3
"""systemctl or launchctl of a test, by the name it is started with. It knows no more than `paceline service` asks for: it runs
the programs of the installed units or jobs, restarts them after exit code 75, ends them by SIGTERM, and forgets the rest.

FAKE_MANAGER is a directory for its records: `orders`, one a line, and for each unit that runs `NAME.pid`."""

import os
import pathlib
import plistlib
import re
import shlex
import signal
import subprocess
import sys
import time

RECORDS = pathlib.Path(os.environ["FAKE_MANAGER"])
HOME = pathlib.Path(os.environ["HOME"])
UNITS = HOME / ".config/systemd/user"
UNKNOWN = 113  # launchctl: no such job


def pid_of(name):
    try:
        return int((RECORDS / f"{name}.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None


def start(name, words, variables):
    if pid_of(name) is not None:
        return
    runner = [sys.executable, __file__, "--run", name, *words]
    log = open(RECORDS / f"{name}.log", "ab")
    subprocess.Popen(runner, env=os.environ | variables, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                     start_new_session=True)
    while pid_of(name) is None:
        time.sleep(0.01)


def run(name, words):
    """The life of one unit: this process stays, its child is the program."""
    record = RECORDS / f"{name}.pid"
    while True:
        child = subprocess.Popen(words)
        beside = record.with_suffix(".new")
        beside.write_text(str(child.pid))
        beside.rename(record)
        if child.wait() != 75:
            break
    record.unlink()


def stop(name):
    while (pid := pid_of(name)) is not None:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        time.sleep(0.05)


def systemctl(words):
    if words[0] != "--user":
        sys.exit("expected --user")
    verb, units = words[1], [word for word in words[2:] if not word.startswith("-")]
    for unit in units:
        text = (UNITS / unit).read_text() if (UNITS / unit).is_file() else None
        if text is None and verb in ("enable", "disable", "start"):
            sys.exit(f"Unit file {unit} does not exist.")
        wants = UNITS / ("sockets.target.wants" if unit.endswith(".socket") else "default.target.wants")
        if verb == "enable":
            wants.mkdir(exist_ok=True)
            (wants / unit).unlink(missing_ok=True)
            (wants / unit).symlink_to(UNITS / unit)
        if verb == "start" and unit.endswith(".service"):
            program = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M).group(1).replace("%%", "%"))
            lines = re.findall(r'^Environment="(.*)"$', text, re.M)
            start(unit, program, dict(line.replace("%%", "%").split("=", 1) for line in lines))
        if verb in ("stop", "disable"):
            stop(unit)
        if verb == "disable":
            (wants / unit).unlink()
        if verb == "show":
            active = "active" if pid_of(unit) or unit.endswith(".socket") else "inactive"
            known = "loaded" if text else "not-found"
            print(f"Id={unit}\nLoadState={known}\nActiveState={active}\nSubState=of-the-test\nMainPID={pid_of(unit) or 0}\n")


def launchctl(words):
    verb = words[0]
    if verb == "bootstrap":
        with open(words[2], "rb") as file:
            job = plistlib.load(file)
        label = job["Label"]
        start(label, job["ProgramArguments"], job.get("EnvironmentVariables", {}))
        return
    label = words[1].rsplit("/", 1)[-1]
    if verb == "enable":
        return
    if pid_of(label) is None:
        print("Could not find service", file=sys.stderr)
        sys.exit(UNKNOWN)
    if verb == "print":
        print(f"{words[1]} = {{\n\tstate = running\n\tpid = {pid_of(label)}\n}}")
    elif verb == "bootout":
        stop(label)
    else:
        sys.exit(f"expected an order that the test knows, found {verb}")


def main():
    name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
    if words[:1] == ["--run"]:
        run(words[1], words[2:])
        return
    with open(RECORDS / "orders", "a", encoding="utf-8") as file:
        file.write(shlex.join([name, *words]) + "\n")
    {"systemctl": systemctl, "launchctl": launchctl}[name](words)


main()
