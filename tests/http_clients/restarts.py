"""Clients that send requests again and again until their standard input ends: restarts.py MANNER.

Prints a line for each request: "served", or how it failed. Nothing is tried a second time, except what a package does itself.
"""

import os
import sys
import threading

from common import MODEL, QUESTION, openai_client

TOKENS = 4
# Seconds a request may take on a busy machine.
DEADLINE = 120
over = threading.Event()
printing = threading.Lock()


def again(request):
    """Sends requests until the input has ended."""
    while not over.is_set():
        try:
            request()
            line = "served"
        except Exception as error:
            line = f"{type(error).__name__}: {error}".replace("\n", " ")
        with printing:
            print(line, flush=True)


def run(*requests):
    """Sends these requests at the same time."""
    threads = [threading.Thread(target=again, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()


def with_openai():
    client = openai_client(timeout=DEADLINE)
    messages = [{"role": "user", "content": QUESTION}]
    chat = lambda **fields: client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=TOKENS, temperature=0, **fields
    )
    run(chat, lambda: list(chat(stream=True)))


def with_grpcio():
    import grpc  # The environment of the other manner does not have it.
    from paceline.v1 import inference_pb2 as api
    from paceline.v1 import inference_pb2_grpc

    stub = inference_pb2_grpc.InferenceStub(grpc.insecure_channel(os.environ["PACELINE_GRPC"]))
    message = api.Message(role="user", content=[api.ContentPart(text=QUESTION)])
    request = api.ChatRequest(messages=[message], limits=api.Limits(max_tokens=TOKENS))
    send = lambda: list(stub.Chat(request, timeout=DEADLINE))
    run(send, send)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
