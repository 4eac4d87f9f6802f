"""llama.cpp as a child process: commands as lines of JSON on its input, answers as lines on its output.

    llama.py MODEL.gguf THREADS

    (at the start)                          version, and the instructions that the library was built with; then {"ready": true}
    {"text": TEXT}                          the token ids of a text
    {"prompts": [[id, ...], ...], "tokens": N}
                                            all prompts at once as sequences of one batch, each continued greedily by N tokens
    {"prompts": [[id, ...]], "tokens": N, "lookup": [NGRAM, DRAFTS]}
                                            the same of one prompt, with llama-cpp-python's prompt lookup as the drafter

The low-level interface of llama-cpp-python: its class Llama serves one sequence. The prompts are evaluated together, then each step is one
llama_decode of one token of each sequence. With lookup a step is one llama_decode of a token and its drafts, as in Llama.generate. Ends of
sequence are ordinary tokens here.
"""
import ctypes, json, sys, time

import llama_cpp as ll
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

POSITIONS, BATCH = 1280, 2048  # of each sequence; most rows of a pass


class Model:
    def __init__(self, path, threads):
        # Without a reference the callback would be collected, and a log line of the library would crash the process.
        self.quiet = ll.llama_log_callback(lambda *_: None)
        ll.llama_log_set(self.quiet, ctypes.c_void_p(0))
        ll.llama_backend_init()
        self.model = ll.llama_model_load_from_file(path.encode(), ll.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocabulary = ll.llama_model_get_vocab(self.model)
        self.size = ll.llama_vocab_n_tokens(self.vocabulary)
        self.threads, self.contexts, self.context = threads, {}, None
        self.batch = ll.llama_batch_init(BATCH, 0, 1)

    def enter(self, sequences):
        """Makes the context for this many sequences the current one, and empties it. True if it is new."""
        new = sequences not in self.contexts
        if new:
            params = ll.llama_context_default_params()
            params.n_ctx, params.n_batch, params.n_seq_max = POSITIONS * sequences, BATCH, sequences
            params.n_threads = params.n_threads_batch = self.threads
            context = ll.llama_init_from_model(self.model, params)
            if not context:
                sys.exit(f"llama.cpp cannot make a context of {sequences} sequences")
            self.contexts[sequences] = context
        self.context = self.contexts[sequences]
        self.memory = ll.llama_get_memory(self.context)
        ll.llama_memory_clear(self.memory, False)
        return new

    def ids(self, text):
        data = text.encode()
        room = (ll.llama_token * (len(data) + 8))()
        count = ll.llama_tokenize(self.vocabulary, data, len(data), room, len(room), False, True)
        if count < 0:
            sys.exit(f"llama_tokenize returned {count} for {len(data)} bytes")
        return list(room[:count])

    def decode(self, rows):
        """The best token of each of these rows that wants logits."""
        return [int(each.argmax()) for each in self.logits(rows)]

    def logits(self, rows):
        """Evaluates rows of (token, position, sequence, whether its logits are wanted); the logits, which the next call overwrites."""
        for at, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[at], self.batch.pos[at], self.batch.n_seq_id[at] = token, position, 1
            self.batch.seq_id[at][0], self.batch.logits[at] = sequence, wanted
        self.batch.n_tokens = len(rows)
        if code := ll.llama_decode(self.context, self.batch):
            sys.exit(f"llama_decode returned {code} for {len(rows)} rows")
        return [np.ctypeslib.as_array(ll.llama_get_logits_ith(self.context, at), (self.size,)) for at, row in enumerate(rows) if row[3]]

    def generate(self, prompts, tokens, lookup=None):
        """The ids of each sequence, and its steps: when each ended, in seconds after the begin, and how many tokens it gave."""
        check(prompts, tokens, lookup)
        if self.enter(len(prompts)):
            # Pages of a new context are written for the first time here and not in a measurement.
            self.run(prompts, min(tokens, 4), lookup)
            self.enter(len(prompts))
        return self.run(prompts, tokens, lookup)

    def run(self, prompts, tokens, lookup):
        begun = time.perf_counter()
        rows = [(token, at, sequence, at == len(ids) - 1) for sequence, ids in enumerate(prompts) for at, token in enumerate(ids)]
        found, times = [[token] for token in self.decode(rows)], [(time.perf_counter() - begun, 1)]
        if lookup:
            return self.draft(prompts[0], found[0], times, begun, tokens, lookup)
        for step in range(1, tokens):
            rows = [(ids[-1], len(prompt) + step - 1, sequence, True) for sequence, (prompt, ids) in enumerate(zip(prompts, found))]
            for ids, token in zip(found, self.decode(rows)):
                ids.append(token)
            times.append((time.perf_counter() - begun, 1))
        return dict(ids=found, times=[times] * len(found))

    def draft(self, prompt, found, times, begun, tokens, lookup):
        """Goes on with prompt lookup after the first token."""
        drafter = LlamaPromptLookupDecoding(max_ngram_size=lookup[0], num_pred_tokens=lookup[1])
        known = np.zeros(len(prompt) + tokens, dtype=np.intc)
        known[: len(prompt)], known[len(prompt)] = prompt, found[0]
        drafted = accepted = 0
        while len(found) < tokens:
            length = len(prompt) + len(found)
            draft = [int(token) for token in drafter(known[:length])[: tokens - len(found) - 1]]
            chosen = self.decode([(token, length - 1 + at, 0, True) for at, token in enumerate([found[-1], *draft])])
            same = next((at for at, token in enumerate(draft) if token != chosen[at]), len(draft))
            known[length : length + same + 1] = chosen[: same + 1]
            found += chosen[: same + 1]
            if same < len(draft):
                ll.llama_memory_seq_rm(self.memory, 0, length + same, -1)
            times.append((time.perf_counter() - begun, same + 1))
            drafted, accepted = drafted + len(draft), accepted + same
        return dict(ids=[found], times=[times], drafted=drafted, accepted=accepted)


def check(prompts, tokens, lookup):
    rows, longest = sum(map(len, prompts)), max(map(len, prompts)) + tokens
    if rows > BATCH or longest > POSITIONS:
        sys.exit(f"expected at most {BATCH} tokens of prompts at once and {POSITIONS} of a sequence, found {rows} and {longest}")
    if lookup and len(prompts) != 1:
        sys.exit(f"expected one prompt with lookup, found {len(prompts)}")


def main():
    # Before the model is loaded: a library that crashes while it loads has said what it was built with.
    print(json.dumps(dict(version=ll.__version__, system=ll.llama_print_system_info().decode())), flush=True)
    model = Model(sys.argv[1], int(sys.argv[2]))
    print(json.dumps(dict(ready=True)), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "text" in command:
            answer = dict(ids=model.ids(command["text"]))
        else:
            answer = model.generate(command["prompts"], command["tokens"], command.get("lookup"))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
