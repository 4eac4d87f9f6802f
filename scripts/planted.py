"""Runs a check on a small checkout that has a planted fault, or none."""
import os
import subprocess
import sys
import tempfile


def report(script, files):
    """What a script of this folder reports on a checkout of these files: nothing if it finds no fault."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        subprocess.run(["git", "init", "-q", "--template=", folder], check=True)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), script)
        done = subprocess.run([sys.executable, "-B", script, folder], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode not in (0, 1) or "Traceback" in done.stderr or (done.returncode == 1) != bool(done.stderr):
            raise AssertionError(f"expected a report, found code {done.returncode} and: {done.stderr}")
        return done.stderr
