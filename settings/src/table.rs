//! The table: every setting of every section, in the order of `paceline.example.toml`.
//!
//! The text of a setting is its comment in that file. A comment above a setting has what the text
//! leaves out: reasons of defaults and bounds.

use serde::{Deserialize, Serialize};

use crate::applies::Applies;
use crate::auto::Auto;
use crate::declare::{Declared, OutOfBounds, settings};
use crate::drafter_models::DrafterModels;
use crate::names::{ModelAliases, OllamaApi, words};
use crate::words::{
    AUTO_COSTS, DRAFTER_KINDS, Device, DrafterQuantize, DrafterStart, ExactLanes, ForceWord,
    LogFormat, ProductsSetting, ToolFormat, WiredMemory,
};
use paceline_vocabulary::Force;

settings! {
    /// `[gateway]`: where clients connect, and who may.
    [gateway] GatewayConfig {
        grpc: String = "127.0.0.1:50061".to_owned(), any, Service,
            "address of the gRPC service";
        http: String = "127.0.0.1:8061".to_owned(), any, Service,
            "address of HTTP: the paths of OpenAI and Anthropic, /health, /metrics, a page with a chat and the service's state at /; \"\" = none";
        model_aliases: ModelAliases = ModelAliases::Auto, any, Gateway,
            "names for which the served model answers, besides its own: [\"gpt-5\"], or \"*\" = any; auto = any if only this machine reaches http";
        tool_format: ToolFormat = ToolFormat::Auto, any, Gateway,
            "how calls of tools are written: auto (as template and model say) | none | hermes | qwen_xml | llama3 | gemma4 | harmony | mistral_list | mistral_args | minicpm | glm";
        ollama: OllamaApi = OllamaApi::Off, any, Service,
            "Ollama's API: off | on = on the address of http | an address, as \"127.0.0.1:11434\" = there as well";
        /// Without a bound a model thinks as it was trained to.
        thinking_budget: u32 = 0, any, Gateway,
            "tokens after which a thought is ended, for requests that set no bound of their own; 0 = none";
        #[serde(deserialize_with = "words")]
        cors_origins: Vec<String> = vec![], any, Gateway,
            "origins whose pages may use HTTP from a browser: [\"https://chat.example.com\"], or [\"*\"]; [] = none";
        /// A page of a browser may have sent a request for another name.
        #[serde(deserialize_with = "words")]
        hosts: Vec<String> = vec![], any, Gateway,
            "names under which clients reach http, besides localhost and addresses: [\"box.lan\"]; without keys others are refused (403)";
        /// A line is `name:digest`. `paceline_process::keys` reads the file, which must be of this
        /// user.
        api_keys_file: String = String::new(), any, Gateway,
            "file of API keys, 0600, lines of `paceline key new NAME`; \"\" = no keys";
        tls_cert: String = String::new(), any, Gateway,
            "certificate chain (PEM); \"\" = no TLS";
        tls_key: String = String::new(), any, Gateway,
            "key (PEM)";
        insecure: bool = false, any, Gateway,
            "serve on an address that other machines reach without keys and TLS";
    }

    /// `[supervisor]`: the runtime directory, leases and restarts.
    [supervisor] SupervisorConfig {
        runtime_dir: String = String::new(), any, Service,
            "sockets, logs, counters; \"\" = $XDG_RUNTIME_DIR/paceline or the user's cache directory";
        lease_s: u64 = 30, at_least(1), Service,
            "seconds a worker lives on without its supervisor";
        /// Ten times the worker's usual step if that is longer. `serve` replaces a gateway or a
        /// supervisor that is silent.
        hang_s: u64 = 10, at_least(1), Service,
            "seconds without progress after which a busy worker counts as hung; gateway and supervisor after three times as long without a sign of life";
        restarts: u32 = 5, any, Service,
            "at the fifth restart (so after five starts) ...";
        restart_period_s: u64 = 60, at_least(1), Service,
            "... within this many seconds the process counts as failed for a while";
    }

    /// `[target]`: the model that is served.
    [target] TargetConfig {
        model: String = "smollm2".to_owned(), any, Service,
            "directory, GGUF file, org/name or org/name:Q4_K_M of a hub that was pulled, ollama:NAME, lmstudio:PUBLISHER/REPO, a name of `paceline models --known`, demo-target or demo-vision (embedded); \"\" = smollm2, or demo-target if smollm2 is not here; ./org/name is a directory";
        device: Device = Device::Auto, any, Target,
            "auto | cpu | gpu";
        /// The supervisor sets the threads of the processes that it starts.
        threads: Auto<u32> = Auto::Auto, at_least(1), Supervisor,
            "threads of matrix products on the CPU; auto = all cores";
        /// Stored weights need less memory, and less of it is read for each token.
        keep_quantized: bool = true, any, Target,
            "a checkpoint's quantized weights stay as stored on the CPU, too; false = expanded to float32 at load";
        /// A stream depends on it (I1). A target that has no such products refuses `integer`.
        products: ProductsSetting = ProductsSetting::Auto, any, OtherTarget,
            "auto (integer on the CPU under Linux from 256 MB of quantized numbers on, else float) | float | integer: products by quantized weights; integer rounds activations to 8 bits, which is faster and changes logits a little";
        vision: bool = true, any, Target,
            "images are served, if the checkpoint reads them; false = text alone: no vision tower in memory, and images are refused";
        saved_costs: String = AUTO_COSTS.to_owned(), any, Target,
            "measured costs of steps and drafts, for the next start: auto (the cache directory) | \"\" (none) | directory";
        /// Within the default a cancellation is noticed.
        prompt_chunk_ms: u32 = 250, within(10..=5_000, "10 to 5000 milliseconds"), Target,
            "longest time in which one step reads prompts, half of it beside requests that generate; less makes streams smoother beside long prompts, and prompts slower; 10 to 5000";
        /// Wired memory of a process that is killed may stay lost until the machine is started again.
        /// On other systems the setting does nothing.
        wired: WiredMemory = WiredMemory::Off, any, Target,
            "off | running: macOS keeps the GPU's working set from being paged out while requests run or wait, and 60 s after them";
        /// Two rows should take up to a quarter longer than one; no Mac was measured.
        exact_lanes: ExactLanes = ExactLanes::Auto, any, Target,
            "auto (on Macs from M3 on, while a drafter is configured) | on | off: a row alone is computed by the kernels of blocks, so that streams are the same with and without a drafter; one stream is slower";
        /// Up to the default the cost of a step is measured by its number of sequences. Each sequence
        /// has a stream of its own on the connection between supervisor and target. An HTTP/2 server
        /// accepts 200 streams by default, and heartbeats and orders need some of them.
        max_sequences: u32 = 32,
            within(1..=128, "1 to 128 (each is a stream of one connection between our processes)"), Target,
            "requests that run at once, if there is memory for them; 1 to 128";
    }

    /// `[drafter]`: the model that proposes tokens.
    [drafter] DrafterConfig {
        model: DrafterModels = DrafterModels::default(), no_empty_place, AtOnce,
            "auto (the drafter that ships with an embedded model, or with a known one if it is here; else lookup) | \"\" (none) | lookup | target (the head in the model's own checkpoint, kind mtp) | directory, org/name or org/name/folder; ./lookup is a directory\n\
             or a list: [\"DIR\", \"org/name\", \"lookup\"] uses the first one that loads and that the target takes; in the environment DIR,org/name,lookup";
        kind: String = "auto".to_owned(), one_of(&DRAFTER_KINDS), Drafter,
            "auto (as the files say, with lookup beside it if it proposes ids) | assistant (of a Gemma 4) | dflash | dflash2 | dspark | eagle3 | mtp (Qwen3.5's head that predicts the token after the next) | model (a small model of a served family) | lookup | lookup+X (lookup beside X: assistant, eagle3, model, mtp); of each checkpoint in a list";
        start: DrafterStart = DrafterStart::Eager, any, AtOnce,
            "eager (with the service) | lazy (at the first request that would use it) | manual";
        idle_stop_s: u64 = 0, any, AtOnce,
            "seconds without a request that may draft after which it is stopped; 0 = never";
        /// The supervisor sets the threads of the processes that it starts.
        threads: Auto<u32> = Auto::Auto, at_least(1), Supervisor,
            "threads of its matrix products on the CPU; auto = all cores";
        /// The bits include scales. A number that is not quantized takes 32 bits on the CPU, and as
        /// many as in the files on a GPU.
        quantize: DrafterQuantize = DrafterQuantize::None, any, Drafter,
            "none | q8 | q4; rounded at load, if the files have floats; about 9 or 5 bits a number, on the CPU, too";
        /// Fewer ids make each draft faster and some drafts wrong.
        draft_vocabulary: u32 = 0, any, Drafter,
            "ids that a drafter of kind mtp can propose: the first ones, and special tokens; 0 = all";
        max_tokens: u32 = 0, any, Drafter,
            "most tokens of one draft; 0 = as many as the drafter proposes";
        /// The default is some ten thousand positions of the published drafters.
        prefix_bytes: u64 = 256 << 20, any, Drafter,
            "what it keeps of ended requests for those with the same beginning; 0 = nothing";
    }

    /// `[routing]`: when speculation is allowed.
    [routing] RoutingConfig {
        max_concurrent: Auto<u32> = Auto::Auto, any, AtOnce,
            "requests at once that may draft; auto = 4 until measured; a number is a hard cap";
        /// Published drafters were trained at 4,096 tokens.
        max_context: Auto<u32> = Auto::Auto, any, AtOnce,
            "context in tokens above which requests decode plainly; auto = 4096 until measured; likewise";
        kv_pressure: f64 = 0.85, share, AtOnce,
            "share of the KV budget in use above which requests decode plainly";
        #[serde(with = "ForceWord")]
        force: Force = Force::Auto, any, AtOnce,
            "auto | plain | speculative (without a drafter: served plainly, with the reason)";
        route_log: String = String::new(), any, Supervisor,
            "file of the route log (JSON lines without any text of a request); \"\" = off";
    }

    /// `[kv]`: the target's KV memory.
    [kv] KvConfig {
        budget_bytes: Auto<u64> = Auto::Auto, any, Target,
            "bytes that sequences may hold together; auto = budget_fraction";
        /// On macOS no more counts as free than the working set that the GPU's driver recommends has
        /// left.
        budget_fraction: Auto<f64> = Auto::Auto, share, Target,
            "share of the memory that is free after load (macOS: within the GPU's working set); auto = 0.5";
        prefix_cache: bool = true, any, Target,
            "keep the KV and the states of requests for later ones with the same beginning; in what sequences leave of the budget";
        /// Hidden states are wide, and old ones help a drafter little.
        hidden_window: u32 = 512, within(..=65_536, "at most 65536 positions"), Target,
            "positions whose hidden states are stored for a drafter that attaches later";
    }

    /// `[limits]`: what a request and a client may ask for.
    [limits] LimitsConfig {
        /// The model's context is also the most that it can be.
        context_tokens: Auto<u32> = Auto::Auto,
            within(2.., "\"auto\" or at least 2 (one token of a prompt and one of an answer)"), Gateway,
            "most tokens of a request, prompt and answer together; auto = the model's context";
        max_prompt_tokens: Auto<u32> = Auto::Auto, at_least(1), Gateway,
            "longest prompt; auto = the context";
        max_new_tokens: Auto<u32> = Auto::Auto, at_least(1), Gateway,
            "most tokens a request may generate; auto = the context";
        /// A burst of 100 is served whole.
        queue: u32 = 128, any, AtOnce,
            "requests that may wait, of all API keys together; keys are served in turn";
        queue_wait_s: u64 = 10, at_least(1), AtOnce,
            "seconds a request may wait";
        deadline_s: u64 = 600, at_least(1), Gateway,
            "seconds a request may take in all";
        max_message_bytes: u64 = 16 << 20, at_least(1), Gateway,
            "largest message a client may send; its images are in it (16 MiB: a photograph or a few)";
        /// The default is sixteen of the largest messages. One client alone may have a quarter for
        /// its long bodies.
        body_bytes: u64 = 256 << 20, any, Gateway,
            "bytes of bodies that arrive and of whole answers, of all clients together; a body above 1 MiB waits for room (256 MiB)";
        /// Each is a descriptor, and systems give 1024 or fewer by default.
        connections: u32 = 512, at_least(1), Gateway,
            "connections of clients at once; when all are taken, the longest idle one is closed for a newcomer";
        connections_per_peer: Auto<u32> = Auto::Auto, at_least(1), Gateway,
            "those of one IPv4 address or IPv6 /64, this machine excepted; auto = a quarter of connections";
        streams_per_connection: u32 = 128, at_least(1), Gateway,
            "requests at once on one connection; more wait in the client";
        /// Half of what runs at once.
        streams_per_key: u32 = 16, at_least(1), AtOnce,
            "requests that run at once under one API key's name; its others wait in the queue";
        message_s: u64 = 60, at_least(1), Gateway,
            "seconds a client may take for its message, from the headers on (16 MiB: 2.2 Mbit/s)";
        unread_s: u64 = 60, at_least(1), Gateway,
            "seconds a client may leave its answer unread before its request is ended";
        max_images: u32 = 8, at_least(1), Gateway,
            "images in one request";
        max_image_pixels: u64 = 40_000_000, at_least(1), Gateway,
            "pixels of one image as it is sent; sides may have at most 8192";
    }

    /// `[drain]`: what precedes an operator's drain.
    [drain] DrainConfig {
        /// At least two intervals of the router's health checks, so that routers send new requests
        /// elsewhere. `paceline drain` waits two minutes unless it is told otherwise, and has to
        /// drain as well.
        notice_s: u64 = 0, within(..=60, "at most 60 seconds"), AtOnce,
            "seconds before `paceline drain` in which requests are served and health reports that they are not; 0 = none; at most 60";
    }

    /// `[log]`: level and form of the log lines.
    [log] LogConfig {
        level: String = "info".to_owned(), any, Service,
            "error | warn | info | debug | trace, or a filter such as \"info,paceline_supervisor=debug\"";
        format: LogFormat = LogFormat::Text, any, Service,
            "text | json";
        prompts: bool = false, any, Gateway,
            "write prompts and answers to the gateway's log, at level info; off: no text of a request is logged";
        otlp: String = String::new(), any, Service,
            "collector that gets traces by OTLP/gRPC: \"http://127.0.0.1:4317\"; \"\" = no traces";
    }
}
