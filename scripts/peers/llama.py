"""llama.cpp as a child process: commands as lines of JSON on its input, answers as lines on its output.

    llama.py MODEL.gguf THREADS

    {"text": TEXT}                          the token ids of a text
    {"prompts": [[id, ...], ...], "tokens": N}
                                            all prompts at once as sequences of one batch, each continued greedily by N tokens

The low-level interface of llama-cpp-python: its class Llama serves one sequence. The prompts are evaluated together, then each step is one
llama_decode of one token of each sequence. Ends of sequence are ordinary tokens here.
"""
import ctypes, json, sys, time

import llama_cpp as ll
import numpy as np

CONTEXT, BATCH, SEQUENCES = 16384, 2048, 8


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
        params = ll.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max = CONTEXT, BATCH, SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        self.context = ll.llama_init_from_model(self.model, params)
        self.batch = ll.llama_batch_init(BATCH, 0, 1)

    def ids(self, text):
        data = text.encode()
        room = (ll.llama_token * (len(data) + 8))()
        count = ll.llama_tokenize(self.vocabulary, data, len(data), room, len(room), False, True)
        return list(room[:count])

    def decode(self, rows):
        """Evaluates rows of (token, position, sequence, whether its logits are wanted); the best token of each row that wants them."""
        for at, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[at], self.batch.pos[at], self.batch.n_seq_id[at] = token, position, 1
            self.batch.seq_id[at][0], self.batch.logits[at] = sequence, wanted
        self.batch.n_tokens = len(rows)
        if code := ll.llama_decode(self.context, self.batch):
            sys.exit(f"llama_decode returned {code} for {len(rows)} rows")
        logits = lambda at: np.ctypeslib.as_array(ll.llama_get_logits_ith(self.context, at), (self.size,))
        return [int(logits(at).argmax()) for at, row in enumerate(rows) if row[3]]

    def generate(self, prompts, tokens):
        """The ids of each sequence, and when each step ended, in seconds after the begin."""
        ll.llama_memory_clear(ll.llama_get_memory(self.context), False)
        begun = time.perf_counter()
        rows = [(token, at, sequence, at == len(ids) - 1) for sequence, ids in enumerate(prompts) for at, token in enumerate(ids)]
        if len(rows) > BATCH:
            sys.exit(f"expected at most {BATCH} tokens of prompts at once, found {len(rows)}")
        found, times = [[token] for token in self.decode(rows)], [time.perf_counter() - begun]
        for step in range(1, tokens):
            rows = [(ids[-1], len(prompt) + step - 1, sequence, True) for sequence, (prompt, ids) in enumerate(zip(prompts, found))]
            for ids, token in zip(found, self.decode(rows)):
                ids.append(token)
            times.append(time.perf_counter() - begun)
        return found, times


def main():
    model = Model(sys.argv[1], int(sys.argv[2]))
    print(json.dumps(dict(version=ll.__version__, system=ll.llama_print_system_info().decode())), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "text" in command:
            answer = dict(ids=model.ids(command["text"]))
        else:
            ids, times = model.generate(command["prompts"], command["tokens"])
            answer = dict(ids=ids, times=times)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
