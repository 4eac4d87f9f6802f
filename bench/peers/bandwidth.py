"""How fast threads read memory: the bound of a token, which reads every weight once."""
import ctypes, threading, time

EACH_BYTES = 512 << 20  # far more than any cache holds


def read_bytes_s(threads, rounds=5):
    """Bytes a second that this many threads read together: the best of some rounds. The C library's memchr reads with the widest
    instructions of the processor, and ctypes releases Python's lock meanwhile."""
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes, memchr.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    buffers = [ctypes.create_string_buffer(EACH_BYTES) for _ in range(threads)]
    for buffer in buffers:
        ctypes.memset(buffer, 1, EACH_BYTES)  # pages that were never written are all the same one
    best = float("inf")
    for _ in range(rounds):
        workers = [threading.Thread(target=memchr, args=(ctypes.addressof(buffer), 2, EACH_BYTES)) for buffer in buffers]
        begun = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - begun)
    return threads * EACH_BYTES / best
