"""Asks one question and prints the answer as it comes: client.py ADDRESS QUESTION [IMAGE].

PACELINE_API_KEY: the key, where the service wants one. An address that begins with https:// is spoken with by TLS; PACELINE_CA
names a file of certificates to trust instead of the system's. generate.sh makes the modules that are imported.
"""

import json
import os
import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from paceline.v1 import inference_pb2 as api
from paceline.v1 import inference_pb2_grpc

# Seconds that all of it may take. The service keeps to it wherever the request is, and says how far it came.
DEADLINE = 120

# gRPC's own retries: another try after UNAVAILABLE or RESOURCE_EXHAUSTED as long as no token has come, after the pause that
# the service asks for (grpc-retry-pushback-ms).
RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "paceline.v1.Inference"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "1s",
                "maxBackoff": "10s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ]
}


def connect(address):
    """A channel to the service."""
    options = [("grpc.service_config", json.dumps(RETRIES))]
    if not address.startswith("https://"):
        return grpc.insecure_channel(address.removeprefix("http://"), options)
    trusted = None
    if os.environ.get("PACELINE_CA"):
        with open(os.environ["PACELINE_CA"], "rb") as file:
            trusted = file.read()
    return grpc.secure_channel(address.removeprefix("https://"), grpc.ssl_channel_credentials(trusted), options)


def reason(error):
    """The word that programs go by, of an error of the service's own."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return f" ({info.reason})"
    return ""


def ask(address, question, image=None):
    """Prints the answer; returns its last message. `image` is a file's path (PNG, JPEG, WebP, still GIF)."""
    key = os.environ.get("PACELINE_API_KEY")
    metadata = [("authorization", f"Bearer {key}")] if key else []
    content = [api.ContentPart(text=question)]
    if image is not None:
        with open(image, "rb") as file:
            content.insert(0, api.ContentPart(image=api.Image(data=file.read())))
    message = api.Message(role="user", content=content)
    last = None
    with connect(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for piece in stub.Chat(api.ChatRequest(messages=[message]), timeout=DEADLINE, metadata=metadata):
            print(piece.text, end="", flush=True)
            if piece.HasField("final"):
                last = piece.final
    print()
    return last


def main():
    """Returns the exit code."""
    if len(sys.argv) not in (3, 4):
        print("usage: client.py ADDRESS QUESTION [IMAGE]", file=sys.stderr)
        return 2
    try:
        last = ask(*sys.argv[1:])
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    except grpc.RpcError as error:
        print(f"{error.code().name}{reason(error)}: {error.details()}", file=sys.stderr)
        return 1
    if last is None:
        print("the answer broke off without its last message", file=sys.stderr)
        return 1
    lane = api.Lane.Name(last.route.lane)
    print(
        f"{last.usage.prompt_tokens} prompt tokens, {last.usage.completion_tokens} tokens, {lane} because of "
        f"{api.RouteReason.Name(last.route.reason)}, first token after {last.timing.ttft_ms:.0f} ms, "
        f"{last.timing.total_ms:.0f} ms in all",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
