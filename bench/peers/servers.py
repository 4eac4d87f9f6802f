"""The servers that are compared: started, watched, ended."""
import asyncio, contextlib, ctypes, os, pathlib, signal, subprocess, sys, time

OURS, SERIAL = "paceline", "vllm-mlx"
PEERS = ["mlx-lm", "mlx-vlm", SERIAL, "vllm-mlx-cb"]
SETTLE_S = 30
# Kernels of OpenBLAS for processors without AVX.
OLD_CORES = {"Katmai", "Coppermine", "Northwood", "Prescott", "Banias", "Atom", "Core2", "Penryn", "Dunnington", "Nehalem", "Athlon", "Opteron", "Barcelona", "Bobcat"}


def pairs(values):
    """LABEL=VALUE, as given on the command line."""
    return dict(value.split("=", 1) for value in values)


def commands(a, label, target, port):
    """Name, address, command and environment of each server of one target."""
    address = lambda at: f"127.0.0.1:{port + at}"
    host = lambda at: ["--host", "127.0.0.1", "--port", str(port + at)]
    peer_env = {"HF_HUB_OFFLINE": "1", **({"LD_PRELOAD": a.blas} if a.blas else {})}
    run = pathlib.Path(a.out).resolve() / f"run-{label}"
    ours = {"PACELINE_CONFIG": "", "PACELINE_GATEWAY__GRPC": address(0), "PACELINE_GATEWAY__HTTP": "",
            "PACELINE_SUPERVISOR__RUNTIME_DIR": str(run), "PACELINE_TARGET__MODEL": target, "PACELINE_DRAFTER__MODEL": pairs(a.drafter).get(label, "")}
    vllm = [a.vllm, "serve", target]
    return [(OURS, address(0), [str(pathlib.Path(a.binaries) / "paceline"), "serve"], ours),
            ("mlx-lm", address(1), [sys.executable, "-m", "mlx_lm", "server", "--model", target, *host(1)], peer_env),
            ("mlx-vlm", address(2), [sys.executable, "-m", "mlx_vlm.server", "--model", target, *host(2)], peer_env),
            (SERIAL, address(3), [*vllm, *host(3)], {**peer_env, "VLLM_MLX_SIMPLE_ENGINE_LOCK_ADMISSION": "wait"}),
            ("vllm-mlx-cb", address(4), [*vllm, *host(4), "--continuous-batching"], peer_env)]


def check_blas(library):
    """Says for which processor the peers' products are made. A version of OpenBLAS that is older than the processor takes it for a very
    old one, and its users would seem slower than they are."""
    try:
        name = ctypes.CDLL(library).openblas_get_corename
    except (OSError, AttributeError) as error:
        raise SystemExit(f"--blas: expected OpenBLAS, found {library}: {error}")
    name.restype = ctypes.c_char_p
    core, flags = name().decode(), pathlib.Path("/proc/cpuinfo").read_text().split()
    if core in OLD_CORES and "avx" in flags:
        wanted = "SkylakeX" if "avx512f" in flags else "Haswell" if "avx2" in flags else "Sandybridge"
        raise SystemExit(f"--blas: {library} takes this processor for a {core}, though it has AVX: set OPENBLAS_CORETYPE={wanted}")
    print(f"peers' products: {library}, kernels for {core}", flush=True)


def start(a):
    """Starts everything; the list that `measure` reads."""
    if a.blas:
        check_blas(str(pathlib.Path(a.blas).resolve()) if pathlib.Path(a.blas).exists() else a.blas)
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    started = []
    for at, (label, target) in enumerate(pairs(a.target).items()):
        target = str(pathlib.Path(target).resolve())
        for name, address, command, env in commands(a, label, target, a.port + 10 * at):
            if a.only and name not in a.only.split(","):
                continue
            with open(out / f"{label}.{name}.log", "w") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **env})
            started.append((process, dict(label=label, name=name, address=address, target=target, pid=process.pid, drafter=bool(env.get("PACELINE_DRAFTER__MODEL")))))
    return started


def stop(started):
    for process, _ in started:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    for process, server in started:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            print(f"{server['label']} {server['name']} did not end in 20 s and was killed", file=sys.stderr)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def processes():
    """Parent and CPU ticks of every process."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                found[int(entry.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    return found


def cpu_s(root):
    """CPU time so far of a process and all below it."""
    found, total, todo = processes(), 0, [root]
    while todo:
        pid = todo.pop()
        total += found.get(pid, (0, 0))[1]
        todo += [child for child, (parent, _) in found.items() if parent == pid]
    return total / os.sysconf("SC_CLK_TCK")


def machine_s():
    """CPU time so far of the whole machine: in use, and taken by its host."""
    ticks = [int(field) for field in open("/proc/stat").readline().split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = (tick / os.sysconf("SC_CLK_TCK") for tick in ticks)
    return user + nice + system + irq + softirq, steal


async def settle(servers):
    """Waits until no server works: all below 10 % of one core together for 0.3 s. The share it ended at."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        before, begun = sum(cpu_s(server["pid"]) for server in servers), time.monotonic()
        await asyncio.sleep(0.3)
        share = (sum(cpu_s(server["pid"]) for server in servers) - before) / (time.monotonic() - begun)
        if share < 0.1 or time.monotonic() > give_up:
            return share
