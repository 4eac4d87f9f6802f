"""The archive of GetTokenizer has the files of a checkpoint: `python smg_tokenizer.py HOST:PORT DIRECTORY`."""

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc

address, directory = sys.argv[1], Path(sys.argv[2])
engine = vllm_engine_pb2_grpc.VllmEngineStub(grpc.insecure_channel(address))
chunks = list(engine.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=30))
archive = b"".join(chunk.data for chunk in chunks)
digests = [chunk.sha256 for chunk in chunks]
assert digests[:-1] == [""] * (len(chunks) - 1), f"a digest before the last chunk: {digests}"
assert digests[-1] == hashlib.sha256(archive).hexdigest(), digests[-1]

with zipfile.ZipFile(io.BytesIO(archive)) as files:
    assert files.testzip() is None
    names = files.namelist()
    for name in names:
        assert files.read(name) == (directory / name).read_bytes(), name
texts = {file.name for file in directory.iterdir() if file.suffix in {".json", ".jinja"}}
weights = {name for name in texts if name.endswith(".index.json")}
assert set(names) == texts - weights, f"expected {sorted(texts - weights)}, found {sorted(names)}"
print(f"{len(names)} files, {len(archive)} bytes in {len(chunks)} chunks")
