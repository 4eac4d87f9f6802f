//! The demo pair as two processes with a link between them, and the embedded prompts as ids.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use paceline_link::{SEGMENT_BYTES, handover, make_pair};
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::worker_client::WorkerClient;
use paceline_proto::internal::v1::{Heartbeat, LinkPhase, Stamp, WatchRequest, WorkerPhase};
use serde_json::Value;
use tonic::Streaming;
use tonic::transport::Channel;

pub const STAMP: Stamp = Stamp { term: 1, epoch: 1 };

/// Ended with its owner.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &str, dir: &Path, more: &[&str]) -> Reaped {
    let path = std::env::current_exe()
        .expect("a path")
        .parent()
        .and_then(Path::parent)
        .expect("target/x")
        .join(program);
    let mut command = Command::new(path);
    command.args(["--epoch", "1", "--term", "1"]).args(more).stdin(Stdio::null());
    command
        .env("PACELINE_CONFIG", "")
        .env("PACELINE_TARGET__MODEL", "demo-target")
        .env("PACELINE_SUPERVISOR__RUNTIME_DIR", dir)
        .env("PACELINE_LOG__LEVEL", "warn");
    if program.ends_with("drafter") {
        // As the supervisor gives them: half of two cores.
        command.env("OPENBLAS_NUM_THREADS", "1");
    }
    Reaped(command.spawn().expect("built"))
}

async fn ready(dir: &Path, name: &str) -> Streaming<Heartbeat> {
    let mut client =
        WorkerClient::new(paceline_process::socket::channel(dir.join(format!("{name}.sock"))));
    let mut beats = loop {
        match client.watch(WatchRequest { stamp: Some(STAMP) }).await {
            Ok(beats) => break beats.into_inner(),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    while beats.message().await.expect("beats").expect("goes on").phase() == WorkerPhase::Loading {}
    beats
}

/// Both workers, linked.
pub struct Pair {
    pub client: TargetClient<Channel>,
    /// While a supervisor watches, the leases do not run.
    _beats: [Streaming<Heartbeat>; 2],
    _workers: [Reaped; 2],
    _dir: tempfile::TempDir,
}

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Pair {
    pub async fn start() -> Self {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let dir = tempfile::Builder::new()
            .prefix("pp")
            .permissions(mode)
            .tempdir_in("/tmp")
            .expect("a directory");
        let target = start("paceline-target", dir.path(), &[]);
        let drafter_dir = repository().join("demo/drafter").display().to_string();
        let drafter = start("paceline-drafter", dir.path(), &["--model", &drafter_dir]);
        let mut beats = ready(dir.path(), "target").await;
        let others = ready(dir.path(), "drafter-0").await;
        let pair = make_pair(SEGMENT_BYTES).expect("a pair");
        for (name, end) in [("target", &pair.target), ("drafter-0", &pair.drafter)] {
            let path = dir.path().join(format!("{name}.link.sock"));
            let (end, segment) = (end.as_fd(), pair.segment.as_fd());
            handover::send(&path, STAMP, 1, end, segment, SEGMENT_BYTES, Duration::from_secs(5))
                .expect("handed over");
        }
        drop(pair);
        loop {
            let beat = beats.message().await.expect("beats").expect("goes on");
            match beat.link.expect("reported") {
                link if link.phase() == LinkPhase::Up => break,
                link if link.phase() == LinkPhase::Refused => panic!("{link:?}"),
                _ => {}
            }
        }
        let client =
            TargetClient::new(paceline_process::socket::channel(dir.path().join("target.sock")));
        Self { client, _beats: [beats, others], _workers: [target, drafter], _dir: dir }
    }
}

/// Kind, ids and tokens at most of every embedded prompt, from the golden file, which has them
/// tokenized.
pub fn prompts() -> Vec<(String, Vec<u32>, u32)> {
    let text =
        std::fs::read_to_string(repository().join("demo/golden.json")).expect("in the repository");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let cases = golden["cases"].as_array().expect("cases");
    let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).expect("ids");
    cases
        .iter()
        .map(|case| {
            let count = case["max_tokens"].as_u64().unwrap_or(200) as u32;
            (case["kind"].as_str().unwrap_or_default().to_owned(), ids(&case["prompt"]), count)
        })
        .collect()
}
