#!/bin/sh
# A pattern that excludes the quote admits texts with a quote.
#
# Packages:  llguidance 1.9.1 (Python wheel, the newest; derivre 0.3.13 is inside)
# Input:     the JSON schema {"type": "string", "pattern": "^[^\"]*$"} and the JSON text "a\"b" (the escaped form of a"b)
# Expected:  refused, because the pattern is for the value of the text, and this value has a quote
# Seen:      accepted to its end. The same holds for [^\\] and an escaped backslash. Classes that list what
#            they allow, and a class that excludes the line break, are right
# Matters:   a service that promises `strict` output sends values that the schema's own validator refuses
# Output:
#   pattern ^[^"]*$    text "a\"b"   value fits: no    grammar: accepts
#   pattern ^[^"]*$    text "ab"     value fits: yes   grammar: accepts
#   pattern ^[^\\]*$   text "a\\b"   value fits: no    grammar: accepts
#   pattern ^[^\n]*$   text "a\nb"   value fits: no    grammar: refuses
#   pattern ^[a-z]*$   text "a\"b"   value fits: no    grammar: refuses
set -eu
sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip --quiet --disable-pip-version-check install llguidance==1.9.1 || exit 75

sed -n '/^# Output:/,/^set/s/^#   //p' "$0" >"$folder/expected"
"$python" - >"$folder/seen" <<'END'
import json
import re

import llguidance


class Bytes:
    """A tokenizer with a token for each byte."""

    tokens = [bytes([byte]) for byte in range(256)] + [b"<s>", b"</s>"]
    special_token_ids = [256, 257]
    bos_token_id, eos_token_id = 256, 257

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))
for pattern, value in [
    ('^[^"]*$', 'a"b'),
    ('^[^"]*$', "ab"),
    (r"^[^\\]*$", "a\\b"),
    (r"^[^\n]*$", "a\nb"),
    ("^[a-z]*$", 'a"b'),
]:
    grammar = llguidance.LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern})
    text = json.dumps(value).encode()
    taken = llguidance.LLMatcher(tokenizer, grammar).validate_tokens(list(text))
    fits = "yes" if re.search(pattern, value) else "no"
    verdict = "accepts" if taken == len(text) else "refuses"
    print(f"pattern {pattern:10} text {text.decode():8} value fits: {fits:5} grammar: {verdict}")
END
printf 'Output of this run:\n'
cat "$folder/seen"
cmp "$folder/expected" "$folder/seen"
