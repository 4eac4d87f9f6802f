//! A worker process on a tiny checkpoint, in the test's hands.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod drafter;

#[path = "../../../tests/harness/built.rs"]
mod built;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::worker_client::WorkerClient;
use paceline_proto::internal::v1::{
    Generation, Heartbeat, LinkPhase, Permit, SamplingRule, Stamp, StatsRequest,
    TargetGenerateRequest, TokenBatch, WatchRequest, WorkerPhase,
};
use paceline_proto::v1;
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use self::built::built;

/// Nothing here takes that long; a hang should end the test.
pub const BOUND: Duration = Duration::from_secs(60);
pub const STAMP: Stamp = Stamp { term: 5, epoch: 3 };

pub const GREEDY: SamplingRule = SamplingRule::GREEDY;

pub struct Worker {
    pub child: Child,
    pub dir: tempfile::TempDir,
    pub client: TargetClient<Channel>,
    pub life: WorkerClient<Channel>,
}

/// A directory that only this user may enter, as a worker wants its runtime directory.
fn private_dir(prefix: &str) -> tempfile::TempDir {
    let mode = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new()
        .prefix(prefix)
        .permissions(mode)
        .tempdir_in("/tmp")
        .expect("a temporary directory")
}

impl Worker {
    pub fn start(model: &Path, environment: &[(&str, &str)]) -> Self {
        let dir = private_dir("pt");
        let log = std::fs::File::create(dir.path().join("log")).expect("a log");
        let child = Command::new(built("paceline-target"))
            .args(["--epoch", "3", "--term", "5"])
            .env("PACELINE_CONFIG", "")
            .env("PACELINE_SUPERVISOR__RUNTIME_DIR", dir.path())
            .env("PACELINE_TARGET__MODEL", model)
            .env("PACELINE_TARGET__DEVICE", "cpu")
            .env("PACELINE_TARGET__SAVED_COSTS", "")
            // Its descriptors are counted, also by a user who is not root.
            .env(paceline_system::start::DEBUGGABLE, "1")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("starts");
        let channel = paceline_process::socket::channel(dir.path().join("target.sock"));
        Self {
            child,
            dir,
            client: TargetClient::new(channel.clone()),
            life: WorkerClient::new(channel),
        }
    }

    /// Watches until the weights are there; the beats seen on the way.
    pub async fn ready(&mut self) -> (Vec<Heartbeat>, Streaming<Heartbeat>) {
        let started = async {
            let mut stream = loop {
                match self.life.watch(WatchRequest { stamp: Some(STAMP) }).await {
                    Ok(response) => break response.into_inner(),
                    Err(status) if status.code() == Code::Unavailable => {
                        tokio::time::sleep(Duration::from_millis(5)).await
                    }
                    Err(status) => panic!("{status}"),
                }
            };
            let mut beats: Vec<Heartbeat> = vec![];
            while beats.last().is_none_or(|beat| beat.phase() == WorkerPhase::Loading) {
                beats.push(stream.message().await.expect("beats").expect("goes on"));
            }
            (beats, stream)
        };
        tokio::time::timeout(BOUND, started).await.expect("the worker loads in time")
    }

    pub async fn generate(&self, generation: Generation) -> Result<Vec<TokenBatch>, Status> {
        generate(self.client.clone(), generation).await
    }

    /// Figures of the worker at this moment, as a heartbeat has them.
    pub async fn figures(&self) -> Heartbeat {
        let stats = self.client.clone().stats(StatsRequest { stamp: Some(STAMP) }).await;
        stats.expect("stats").into_inner().now.expect("figures")
    }

    /// Log of the worker.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("a log")
    }

    pub async fn wait_end(&mut self) -> Option<i32> {
        let child = &mut self.child;
        let ended = async {
            loop {
                if let Some(status) = child.try_wait().expect("our child") {
                    return status.code();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(BOUND, ended).await.expect("ends in time")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Ended already in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "{}",
                std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
            );
        }
    }
}

/// A permit for the plain lane, as requests have it where there is no drafter.
pub fn plain_permit() -> Permit {
    Permit {
        lane_allowed: v1::Lane::Plain.into(),
        max_draft: 0,
        reason: v1::RouteReason::DrafterAbsent.into(),
        policy_epoch: 0,
    }
}

/// Opens the stream of a request.
pub async fn open(
    mut client: TargetClient<Channel>,
    generation: Generation,
    permit: Permit,
) -> Result<Streaming<TokenBatch>, Status> {
    let request = TargetGenerateRequest {
        stamp: Some(STAMP),
        generation: Some(generation),
        permit: Some(permit),
    };
    Ok(client.generate(request).await?.into_inner())
}

/// Runs a request in the plain lane.
pub async fn generate(
    client: TargetClient<Channel>,
    generation: Generation,
) -> Result<Vec<TokenBatch>, Status> {
    finish(open(client, generation, plain_permit()).await?).await
}

/// Reads a stream to its end.
pub async fn finish(mut stream: Streaming<TokenBatch>) -> Result<Vec<TokenBatch>, Status> {
    let mut batches = vec![];
    while let Some(batch) =
        tokio::time::timeout(BOUND, stream.message()).await.expect("tokens in time")?
    {
        batches.push(batch);
    }
    Ok(batches)
}

/// Reads heartbeats until the link `generation` is in `phase`. Returns the reason of the phase.
pub async fn until_link(
    beats: &mut Streaming<Heartbeat>,
    generation: u64,
    phase: LinkPhase,
) -> String {
    let found = async {
        loop {
            let beat = beats.message().await.expect("beats").expect("goes on");
            let link = beat.link.expect("reported");
            if link.generation == generation && link.phase() == phase {
                return link.reason;
            }
        }
    };
    let found = tokio::time::timeout(BOUND, found).await;
    found.unwrap_or_else(|_| panic!("link {generation} is not {phase:?} in time"))
}

/// A tiny checkpoint of random weights.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name)
}

/// A copy of such a checkpoint with a context that is longer than what slots keep of its windows.
pub fn with_long_context(name: &str) -> tempfile::TempDir {
    let (from, dir) = (golden(name), tempfile::tempdir().expect("a directory"));
    let weights = "model.safetensors";
    std::fs::copy(from.join(weights), dir.path().join(weights)).expect("copied");
    let config = std::fs::read(from.join("config.json")).expect("there");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["max_position_embeddings"] = 4_096.into();
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    dir
}

pub fn tiny() -> PathBuf {
    golden("qwen3-tiny")
}

/// The embedded target.
pub fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../demo/target")
}

pub fn cases() -> Vec<(Vec<u32>, Vec<u32>)> {
    cases_of("qwen3-tiny")
}

/// Prompts and greedy answers of a tiny checkpoint.
pub fn cases_of(name: &str) -> Vec<(Vec<u32>, Vec<u32>)> {
    let text = std::fs::read(golden(name).with_extension("json"));
    let text = text.expect("the golden file is in the repository");
    let golden: Value = serde_json::from_slice(&text).expect("JSON");
    let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).expect("ids");
    golden["cases"]
        .as_array()
        .expect("cases")
        .iter()
        .map(|case| (ids(&case["prompt"]), ids(&case["greedy"])))
        .collect()
}

pub fn generation(id: &str, prompt: &[u32], max_tokens: u32) -> Generation {
    Generation {
        request_id: id.into(),
        prompt_ids: prompt.to_vec(),
        sampling: Some(GREEDY),
        max_tokens,
        ..Generation::default()
    }
}

pub fn ids(batches: &[TokenBatch]) -> Vec<u32> {
    batches.iter().flat_map(|batch| batch.ids.clone()).collect()
}
