//! The program itself: exit codes and messages of starts that fail, and a start and stop that work.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::program::built::built;

fn demo() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target")
}

/// The program with a configuration of its own in `dir`.
fn gateway(dir: &Path, grpc: &str, model: &Path) -> Command {
    let run = dir.join("run");
    let text = format!(
        "[gateway]\ngrpc = {grpc:?}\nhttp = \"127.0.0.1:0\"\n[supervisor]\nruntime_dir = {:?}\n[target]\nmodel = {:?}\n",
        run.display().to_string(),
        model.display().to_string()
    );
    let file = dir.join("paceline.toml");
    std::fs::write(&file, text).expect("writable");
    let mut command = Command::new(built("paceline-gateway"));
    command.arg("--config").arg(file).env_remove("LISTEN_FDS").env_remove("PACELINE_PARENT_FD");
    command
}

#[track_caller]
fn fails(output: Output, code: i32, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} in {stderr}");
    }
}

#[test]
fn failed_starts_name_the_cause() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let run = |mut command: Command| command.output().expect("it starts");
    fails(run(gateway(dir.path(), &address, &demo())), 69, &[&address, "gateway.grpc", "in use"]);
    let mut http = gateway(dir.path(), "127.0.0.1:0", &demo());
    http.env("PACELINE_GATEWAY__HTTP", &address);
    fails(run(http), 69, &[&address, "gateway.http", "in use", "for no HTTP"]);
    fails(
        run(gateway(dir.path(), "127.0.0.1:0", &dir.path().join("nothing"))),
        64,
        &["target.model", "nothing"],
    );
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).expect("writable");
    fails(run(gateway(dir.path(), "127.0.0.1:0", &empty)), 64, &["config.json"]);
    for name in ["config.json", "tokenizer_config.json"] {
        std::fs::copy(demo().join(name), empty.join(name)).expect("copied");
    }
    fails(run(gateway(dir.path(), "127.0.0.1:0", &empty)), 64, &["tokenizer.json"]);
    let mut unknown = gateway(dir.path(), "127.0.0.1:0", &demo());
    fails(
        run({
            unknown.env("PACELINE_LIMITS__QUEUES", "1");
            unknown
        }),
        64,
        &["limits.queue"],
    );
    let mut flag = gateway(dir.path(), "127.0.0.1:0", &demo());
    fails(
        run({
            flag.arg("--colour");
            flag
        }),
        64,
        &["--colour"],
    );
}

#[test]
fn a_signal_ends_the_gateway_with_exit_code_zero() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut child = gateway(dir.path(), "127.0.0.1:0", &demo())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    assert!(
        lines.any(|line| line.expect("text").contains("gateway listens")),
        "it reports its address"
    );
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("alive");
    // Its standard error ends with it.
    lines.for_each(drop);
    assert_eq!(child.wait().expect("ours").code(), Some(0));
    assert_eq!(
        std::fs::read_to_string(dir.path().join("run/gateway.epoch")).expect("counted"),
        "1"
    );
}

/// A foreign file in the folder of images is nobody's to remove, and a file of the store's form
/// may be a running gateway's.
#[test]
fn a_start_removes_the_files_of_a_gateway_that_is_gone_and_none_of_one_that_runs() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let start = || {
        let mut child = gateway(dir.path(), "127.0.0.1:0", &demo())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        assert!(lines.any(|line| line.expect("text").contains("gateway listens")));
        (child, lines)
    };
    let stop = |mut child: std::process::Child, signal: Signal, code: Option<i32>| {
        kill(Pid::from_raw(child.id() as i32), signal).expect("alive");
        assert_eq!(child.wait().expect("ours").code(), code);
    };
    let (first, _first_lines) = start();
    let folder = dir.path().join("run/images");
    let own = folder.join(format!("{}-1-0", "0b".repeat(32)));
    std::fs::write(&own, "of a request that runs").expect("writable");
    std::fs::write(folder.join("holiday.jpg"), "precious").expect("writable");
    let (second, _second_lines) = start();
    assert!(own.exists(), "the first one's, which runs");
    stop(first, Signal::SIGKILL, None);
    stop(second, Signal::SIGTERM, Some(0));
    assert!(own.exists(), "a gateway that ends removes its own alone");
    let (third, _third_lines) = start();
    assert!(!own.exists(), "left");
    stop(third, Signal::SIGTERM, Some(0));
    assert_eq!(std::fs::read_to_string(folder.join("holiday.jpg")).expect("there"), "precious");
    let left = std::fs::read_dir(dir.path().join("run")).expect("there");
    let left = left.map(|entry| entry.expect("fine").file_name().display().to_string());
    assert_eq!(left.filter(|name| name.starts_with("gateway-")).count(), 0);
}

#[test]
fn a_runtime_directory_that_is_not_its_users_own_is_refused_unchanged() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let run = dir.path().join("run");
    let start = || gateway(dir.path(), "127.0.0.1:0", &demo()).output().expect("it starts");
    std::fs::create_dir(&run).expect("made");
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).expect("ours");
    fails(start(), 64, &["mode 0755", "chmod 700"]);
    assert_eq!(std::fs::metadata(&run).expect("there").permissions().mode() & 0o777, 0o755);
    assert_eq!(std::fs::read_dir(&run).expect("there").count(), 0);
    std::fs::remove_dir(&run).expect("empty");
    std::os::unix::fs::symlink(dir.path(), &run).expect("linked");
    fails(start(), 64, &["a symbolic link"]);
}

/// As `paceline serve` starts it: the listening socket as descriptor 3, a pipe that ends with the
/// parent.
#[tokio::test]
async fn the_gateway_serves_an_inherited_socket_and_ends_with_its_parent() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (read, write) = nix::unistd::pipe().expect("a pipe");
    // Like a parent's end, it must not be held by the child as well.
    nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))
        .expect("ours");
    let mut command = gateway(dir.path(), "127.0.0.1:1", &demo());
    command.env("LISTEN_FDS", "1").env("PACELINE_PARENT_FD", "4").stderr(Stdio::null());
    let mappings = vec![
        FdMapping { parent_fd: OwnedFd::from(listener), child_fd: 3 },
        FdMapping { parent_fd: read, child_fd: 4 },
    ];
    command.fd_mappings(mappings).expect("distinct");
    let mut child = command.spawn().expect("it starts");
    drop(command);

    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .connect_lazy();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let asked = health.check(tonic_health::pb::HealthCheckRequest::default());
    let answer = tokio::time::timeout(std::time::Duration::from_secs(30), asked)
        .await
        .expect("in time")
        .expect("served");
    assert_eq!(answer.into_inner().status, tonic_health::ServingStatus::NotServing as i32);
    // Ctrl-C in the terminal reaches the whole group and means the parent.
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("alive");
    drop(write);
    assert_eq!(child.wait().expect("ours").code(), Some(0));
}

#[test]
fn a_model_that_is_served_as_text_alone_needs_no_image_settings() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("writable");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(demo().join(name), model.join(name)).expect("copied");
    }
    let config = r#"{"model_type": "qwen3_vl", "image_token_id": 5, "eos_token_id": 2,
        "vision_config": {"patch_size": 16, "spatial_merge_size": 2}}"#;
    let header = r#"{"visual.pos_embed.weight":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    let weights = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(model.join("config.json"), config).expect("writable");
    std::fs::write(model.join("model.safetensors"), weights).expect("writable");
    std::fs::write(model.join("preprocessor_config.json"), "{\"patch_size\": 3}")
        .expect("writable");
    let limits = |vision: &str| {
        let mut command = gateway(dir.path(), "127.0.0.1:0", &model);
        command.arg("--check-model").arg(&model).env("PACELINE_TARGET__VISION", vision);
        command.output().expect("it starts")
    };
    fails(limits("true"), 64, &["preprocessor_config.json", "patch_size"]);
    let as_text = limits("false");
    let stderr = String::from_utf8_lossy(&as_text.stderr);
    assert!(String::from_utf8_lossy(&as_text.stdout).contains("\"images\":null"), "{stderr}");
}
