"""One request to a server, as its client sees it."""
import asyncio, json, pathlib, sys, tempfile, time

from .servers import OURS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ANSWER_S = 120  # longest time of an answer


def stubs():
    """The client of proto/, made anew at each run."""
    import grpc_tools
    from grpc_tools import protoc
    made = tempfile.mkdtemp()
    common = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    if protoc.main(["", f"-I{ROOT / 'proto'}", f"-I{common}", f"--python_out={made}", f"--grpc_python_out={made}", "paceline/v1/inference.proto"]) != 0:
        sys.exit("protoc failed on proto/paceline/v1/inference.proto")
    sys.path.insert(0, made)
    from paceline.v1 import inference_pb2, inference_pb2_grpc
    return inference_pb2, inference_pb2_grpc


class Answer:
    """What the client saw. Times are of time.perf_counter()."""

    def __init__(self):
        self.begun, self.times, self.text, self.tokens, self.cycles, self.accepted, self.finish = time.perf_counter(), [], "", None, 0, 0, None
        self.prompt, self.cached, self.ended = 0, 0, None

    def done(self):
        if self.tokens is None or not self.times:
            raise RuntimeError("the answer ended without token counts or without text")
        self.ended = time.perf_counter()
        return self


class Ours:
    def __init__(self, server, pb, services):
        import grpc
        self.pb, self.services, self.grpc, self.address = pb, services, grpc, server["address"]
        self.channel = grpc.aio.insecure_channel(self.address)
        self.chat = services.InferenceStub(self.channel).Chat

    async def ask(self, messages, tokens, answer):
        pb = self.pb
        turns = [pb.Message(role=turn["role"], content=[pb.ContentPart(text=turn["content"])]) for turn in messages]
        request = pb.ChatRequest(messages=turns, sampling=pb.Sampling(temperature=0), limits=pb.Limits(max_tokens=tokens))
        texts = []
        async for message in self.chat(request, timeout=ANSWER_S):
            if message.token_ids:
                answer.times.append(time.perf_counter())
            texts.append(message.text)
            if message.HasField("final"):
                final = message.final
                ended = final.finish_reason == pb.FINISH_REASON_STOP
                answer.finish, answer.tokens = "stop" if ended else "length", final.usage.completion_tokens
                answer.prompt, answer.cached = final.usage.prompt_tokens, final.usage.cached_tokens
                answer.cycles, answer.accepted = final.speculation.cycles, final.speculation.accepted
        answer.text = "".join(texts)
        return answer.done()

    async def close(self):
        await self.channel.close()


class Http:
    """Just enough of an OpenAI client: one streamed chat completion on a connection of its own."""

    def __init__(self, server):
        self.address, self.model = server["address"], server["target"]

    async def lines(self, reader):
        status, chunked = (await reader.readline()).split(), False
        while header := (await reader.readline()).strip().lower():
            chunked |= header.startswith(b"transfer-encoding:") and b"chunked" in header
        if status[1:2] != [b"200"]:
            raise RuntimeError(f"{self.address} answered {b' '.join(status).decode(errors='replace')}: {(await reader.read(300)).decode(errors='replace')}")
        rest = b""
        while True:
            if chunked:
                size = int((await reader.readline()).split(b";")[0] or b"0", 16)
                piece = (await reader.readexactly(size + 2))[:-2] if size else b""
            else:
                piece = await reader.read(1 << 16)
            if not piece:
                return
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line

    async def ask(self, messages, tokens, answer):
        body = json.dumps(dict(model=self.model, messages=messages, max_tokens=tokens, temperature=0, stream=True, stream_options=dict(include_usage=True))).encode()
        host, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        texts = []
        try:
            writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.address}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            async with asyncio.timeout(ANSWER_S):
                async for line in self.lines(reader):
                    if not line.startswith(b"data:") or b"[DONE]" in line:
                        continue
                    event = json.loads(line[5:])
                    if event.get("error"):
                        raise RuntimeError(f"{self.address}: {event['error']}")
                    for choice in event.get("choices") or []:
                        delta = choice.get("delta") or {}
                        if text := delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content"):
                            answer.times.append(time.perf_counter())
                            texts.append(text)
                        answer.finish = choice.get("finish_reason") or answer.finish
                    if usage := event.get("usage"):
                        answer.tokens, answer.prompt = usage["completion_tokens"], usage["prompt_tokens"]
                        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        finally:
            writer.close()
        answer.text = "".join(texts)
        return answer.done()

    async def close(self):
        pass


def open_clients(servers):
    pb, services = stubs()
    return {(s["label"], s["name"]): Ours(s, pb, services) if s["name"] == OURS else Http(s) for s in servers}
