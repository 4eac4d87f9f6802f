"""What is asked of a server, and what of it is kept."""
import asyncio, hashlib, json, random, statistics, sys, time

from .clients import Answer

BEHIND_S = 0.05  # the short request comes this long after the long one
LONG_TOKENS, STREAMS = 2000, 4
STORY = "Tell a long tale of {}, a potter, a tent, a river and everybody who lived beside it."


def user(text):
    return [dict(role="user", content=text)]


class Prompts:
    """demo/prompts.jsonl: the same for each server, others in each cell and round as far as there are enough."""

    def __init__(self, path, tokenizer):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(tokenizer)
        self.kinds = {}
        for line in open(path, encoding="utf-8"):
            prompt = json.loads(line)
            self.kinds.setdefault(prompt["kind"], []).append(prompt["messages"])
        self.kinds["mixed"] = [messages for turn in zip(*self.kinds.values()) for messages in turn]
        self.next = {}

    def take(self, kind, count):
        """The next prompts of a kind."""
        at, found = self.next.get(kind, 0), self.kinds[kind]
        self.next[kind] = at + count
        return [found[(at + k) % len(found)] for k in range(count)]

    def skip(self, kind, count):
        self.next[kind] = self.next.get(kind, 0) + count

    def long(self, seed):
        """Nearly LONG_TOKENS tokens nobody has read before, from the first word on."""
        r = random.Random(seed)
        words = [word for messages in r.sample(self.kinds["mixed"], 120) for word in messages[-1]["content"].split()]
        ids = self.tokenizer.encode(f"{r.random()} " + " ".join(words)).ids
        if len(ids) < LONG_TOKENS:
            sys.exit(f"the prompts give {len(ids)} tokens, expected at least {LONG_TOKENS}")
        return user(self.tokenizer.decode(ids[: LONG_TOKENS - 10]))


def digest(text):
    return hashlib.sha256(text.strip().encode()).hexdigest()[:12]


async def throughput(client, prompts, at_once, tokens):
    """All prompts, at most this many at once."""
    queue, answers, begun, cpu = list(prompts), [], time.perf_counter(), time.process_time()

    async def worker():
        while queue:
            answers.append((prompts.index(messages := queue.pop(0)), await client.ask(messages, tokens, Answer())))

    await asyncio.gather(*[worker() for _ in range(at_once)])
    wall = max(answer.ended for _, answer in answers) - begun
    answers = [answer for _, answer in sorted(answers, key=lambda pair: pair[0])]
    total = sum(answer.tokens for answer in answers)
    return dict(tokens=total, wall_s=wall, tok_s=total / wall, client_cpu=(time.process_time() - cpu) / wall, requests=len(answers),
                first_ms=statistics.median((answer.times[0] - answer.begun) * 1e3 for answer in answers),
                cycles=sum(answer.cycles for answer in answers), accepted=sum(answer.accepted for answer in answers), cached=sum(answer.cached for answer in answers),
                stopped=sum(answer.finish == "stop" for answer in answers), counts=[answer.tokens for answer in answers], texts=[digest(answer.text) for answer in answers])


async def behind(client, long, short):
    """A short request behind a long prompt, with nothing else: its time to the first token."""
    first, second = Answer(), None
    reading = asyncio.create_task(client.ask(long, 4, first))
    await asyncio.sleep(BEHIND_S)
    second = Answer()
    await client.ask(short, 8, second)
    await reading
    return dict(short_first_ms=(second.times[0] - second.begun) * 1e3, long_first_ms=(first.times[0] - first.begun) * 1e3, long_tokens=first.prompt, cached=first.cached)


async def beside(client, long, short, seed, tokens):
    """Streams that run, then a long prompt and a short one behind it: the longest gap of the streams from the long one's submission to
    its first token, and the short one's time to the first token."""
    streams = [Answer() for _ in range(STREAMS)]
    tasks = [asyncio.create_task(client.ask(user(STORY.format(f"{name} {seed}")), tokens, answer)) for name, answer in zip(["Hamza", "Fiona", "Ivo", "Lena"], streams)]
    try:
        while not all(len(answer.times) >= 4 for answer in streams):
            if any(task.done() for task in tasks):
                await asyncio.gather(*[task for task in tasks if task.done()])  # an error is told as such
                return dict(skipped="the streams do not run at the same time")
            await asyncio.sleep(0.005)
        quiet = [b - a for answer in streams for a, b in zip(answer.times, answer.times[1:])]
        reading, first = None, Answer()
        reading = asyncio.create_task(client.ask(long, 4, first))
        tasks.append(reading)
        await asyncio.sleep(BEHIND_S)
        second = Answer()
        waiting = asyncio.create_task(client.ask(short, 8, second))
        tasks.append(waiting)
        await asyncio.gather(reading, waiting)
        begin, end = first.begun, first.times[0]
        gaps, over = [], 0
        for answer in streams:
            # From the last message before the long prompt came to the first one after it was read; a stream that ended counts to its end.
            inside = [t for t in answer.times if begin < t <= end]
            before, after = max((t for t in answer.times if t <= begin), default=begin), min((t for t in answer.times if t > end), default=None)
            over += after is None and answer.ended is not None and answer.ended < end
            last = [after] if after else [] if answer.ended and answer.ended < end else [time.perf_counter()]
            moments = [before, *inside, *last]
            gaps.append(max(b - a for a, b in zip(moments, moments[1:])) if len(moments) > 1 else 0.0)
        return dict(gap_ms=max(gaps) * 1e3, ended_early=over, quiet_gap_ms=max(quiet) * 1e3, short_first_ms=(second.times[0] - second.begun) * 1e3,
                    long_first_ms=(end - begin) * 1e3, long_tokens=first.prompt)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
