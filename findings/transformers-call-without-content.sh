#!/bin/sh
# A tool call of an earlier turn is missing in the prompt, without an error.
#
# Packages:  transformers 5.24.0 (the newest), transformers 4.57.6; jinja2 3.1.6
# Input:     an assistant's message with `content: None` and one call, as OpenAI's API gives it, and a chat template
#            that knows calls by `message['content'] is none`, as that of the DeepSeek-R1 distillations does
# Expected:  the call is in the prompt, as in 4.57.6, and as transformers' own render_jinja_template writes it
# Seen:      5.24.0's apply_chat_template removes members that are None. The name is then undefined, `is none` is
#            false, and the template writes an empty answer in place of the call. The tool's result stays
# Matters:   the model reads a result that nothing asked for, and asks again
# Output:
#   4.57.6 apply_chat_template: <user>time?<call>clock</call><tool>12:00
#   4.57.6 render_jinja_template: <user>time?<call>clock</call><tool>12:00
#   5.24.0 apply_chat_template: <user>time?<answer></answer><tool>12:00
#   5.24.0 render_jinja_template: <user>time?<call>clock</call><tool>12:00
set -eu
sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

sed -n '/^# Output:/,/^set/s/^#   //p' "$0" >"$folder/expected"
cat >"$folder/render.py" <<'END'
import tokenizers
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' and message['content'] is none %}"
    "{% for call in message['tool_calls'] %}<call>{{ call['function']['name'] }}</call>{% endfor %}"
    "{% elif message['role'] == 'assistant' %}<answer>{{ message['content'] }}</answer>"
    "{% else %}<{{ message['role'] }}>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
)
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": {}}}
MESSAGES = [
    {"role": "user", "content": "time?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
]
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
prompt = tokenizer.apply_chat_template(MESSAGES, chat_template=TEMPLATE, tokenize=False)
print(transformers.__version__, "apply_chat_template:", prompt)
rendered = render_jinja_template(conversations=[MESSAGES], chat_template=TEMPLATE)
print(transformers.__version__, "render_jinja_template:", rendered[0][0])
END
for version in 4.57.6 5.24.0; do
    python3 -m venv --clear "$folder/venv"
    "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install \
        "transformers==$version" jinja2==3.1.6 || exit 75
    "$folder/venv/bin/python" "$folder/render.py" >>"$folder/seen" 2>"$folder/warnings" || { cat "$folder/warnings"; exit 1; }
done
printf 'Output of this run:\n'
cat "$folder/seen"
cmp "$folder/expected" "$folder/seen"
