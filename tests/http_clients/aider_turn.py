"""The unmodified `aider` against a running service: one turn that asks for an edit. `python aider_turn.py whole`."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ADDRESS, MODEL, holds, same

with tempfile.TemporaryDirectory() as home:
    Path(home, "a.txt").write_text("hello\n")
    # What aider knows of the model: without it, it asks a server of its own for prices and lengths.
    known = {"max_input_tokens": 3000, "max_output_tokens": 64, "litellm_provider": "openai", "mode": "chat"}
    Path(home, "models.json").write_text(json.dumps({f"openai/{MODEL}": known}))
    # JSON is YAML.
    settings = [{"name": f"openai/{MODEL}", "edit_format": "whole", "extra_params": {"max_tokens": 64}}]
    Path(home, "settings.yml").write_text(json.dumps(settings))
    quiet = ["--no-analytics", "--no-check-update", "--no-show-release-notes", "--no-pretty", "--no-git"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIDER_")},
        "HOME": home,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_BASE": f"http://{ADDRESS}/v1",
        "OPENAI_API_KEY": "none",
    }
    command = [sys.executable, "-m", "aider", "--model", f"openai/{MODEL}", *quiet, "--yes-always", "--map-tokens", "0"]
    command += ["--model-metadata-file", "models.json", "--model-settings-file", "settings.yml"]
    command += ["--no-show-model-warnings", "--no-suggest-shell-commands", "--message", "Make it upper case.", "a.txt"]
    ran = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=240)
    printed = ran.stdout + ran.stderr
    same(f"exit code: {printed}", ran.returncode, 0)
    # A refusal, or a lost connection, is an exception of litellm.
    holds("no error", not re.search(r"litellm\.|Error|retry", printed), printed)
    holds("the usage of an answer", re.search(r"Tokens: [\d.]+k? sent, [1-9][\d.]*k? received", printed), printed)
    print(printed)
