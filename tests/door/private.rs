//! No text of a client reaches a file, and all files belong to this user alone.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::sys::signal::Signal;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_tests::ask::{conversation, message};
use paceline_tests::{Stack, chat, continue_ids, continue_text, images, signal, wait};
use tonic::Request;

/// In no text of ours.
const CANARY: &str = "zqcanaryxv";

/// Every regular file below a directory.
fn files(dir: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).expect("a directory").filter_map(Result::ok) {
        let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
        if kind.is_dir() {
            files(&path, found);
        } else if kind.is_file() {
            // A file that is gone meanwhile has no reader either.
            found.push((path.display().to_string(), std::fs::read(path).unwrap_or_default()));
        }
    }
}

fn holds(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

#[test]
fn no_text_of_a_request_reaches_a_file_in_any_outcome() {
    let stack = Stack::drafting("routing.route_log = \"\"\n");
    let said = format!("The word is {CANARY} and again {CANARY}.");
    // Ids that only this request has, as a log would print them.
    let ids: Vec<u32> = vec![4_001, 4_003, 4_007, 4_011, 4_013];
    let printed = ["4001, 4003, 4007", "4001,4003,4007", "[4001"];

    stack.ask(chat(&said).max_tokens(8)).expect("served");
    stack.ask(continue_text(&said).max_tokens(8)).expect("served");
    stack.ask(continue_ids(&ids).max_tokens(8)).expect("served");
    stack
        .ask(conversation(vec![message("system", &said), message("user", &said)]).max_tokens(8))
        .expect("served");
    // Refused in every possible way: the client gets the reason, the log does not get the text.
    stack.ask(conversation(vec![message(CANARY, "hi")])).expect_err("no role");
    stack.ask(chat("hi").model(CANARY)).expect_err("no model");
    stack.ask(continue_text(&said.repeat(2_000))).expect_err("too long");
    stack.ask(chat(&said).sampled(f32::NAN, 0.5, 1)).expect_err("no temperature");
    for (key, value) in [
        ("grpc-timeout", CANARY.to_owned()),
        ("authorization", format!("Bearer {CANARY}")),
        ("x-user", said.clone()),
    ] {
        let mut request = Request::new(paceline_proto::v1::GenerateRequest::default());
        request.metadata_mut().insert(key, value.parse().unwrap());
        stack
            .block_on(InferenceClient::new(stack.channel()).generate(request))
            .expect_err("no prompt");
    }
    // Cut short: the client goes, the target is killed, and aborts as it would in a panic.
    let mut live = stack.open(chat(&said).exactly(500)).expect("served");
    live.read(3);
    drop(live);
    for with in [Signal::SIGKILL, Signal::SIGABRT] {
        let mut live = stack.open(chat(&said).exactly(2_000)).expect("served");
        live.read(3);
        signal(stack.pid("target"), with);
        drop(live);
        stack.wait_ready();
        // A request at which two targets ended would be refused.
        stack.ask(chat(&said).max_tokens(8)).expect("served");
    }
    let mut live = stack.open(chat(&said).exactly(2_000)).expect("served");
    live.read(3);
    signal(stack.pid("gateway"), Signal::SIGABRT);
    live.finish().expect_err("its gateway is gone");
    stack.wait_ready();

    written_nowhere(&stack, &[CANARY, printed[0], printed[1], printed[2]]);
    stack.stop();
}

/// Searches everything that is left after requests for words: files, and the output for operators.
pub(super) fn written_nowhere(stack: &Stack, words: &[&str]) {
    let mut found = vec![];
    files(&stack.run_dir(), &mut found);
    found.push(("serve.log".into(), stack.serve_log().into_bytes()));
    for command in [
        &["status"][..],
        &["status", "--json"],
        &["events", "--json", "--last", "10000"],
        &["events"],
    ] {
        let output = stack.paceline(command, "");
        assert!(output.status.success(), "{output:?}");
        found.push((command.join(" "), [output.stdout, output.stderr].concat()));
    }
    assert!(
        found.iter().any(|(name, text)| name.ends_with("gateway.log") && holds(text, "request_id")),
        "requests are logged"
    );
    for (name, text) in &found {
        for word in words {
            assert!(!holds(text, word), "{word:?} is in {name}");
        }
    }
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn no_content_of_an_image_reaches_a_file_in_any_outcome() {
    let stack = images::seeing_and_drafting("routing.route_log = \"\"\nsupervisor.hang_s = 600\n");
    // In its pixels, as they wait for the target, beside them, in its file's name and its address.
    let mut pixels = CANARY.repeat(64 * 64 * 3 / CANARY.len() + 1).into_bytes();
    pixels.truncate(64 * 64 * 3);
    let text = format!("Comment\0{CANARY}");
    let file = images::png(64, 64, &pixels, &[(b"tEXt", text.as_bytes())]);
    let encoded = images::base64(&file);
    let path = stack.path(&format!("{CANARY}.png"));
    std::fs::write(&path, &file).expect("writable");
    let path = path.display().to_string();
    let ask = |count| images::about(file.clone(), CANARY).exactly(count);

    stack.ask(ask(8)).expect("served");
    let by_address = || {
        vec![images::turn(vec![images::address(format!(
            "data:image/png;name={CANARY};base64,{encoded}"
        ))])]
    };
    // Whether such an address is served or refused, it is not repeated.
    let _ = stack.ask(conversation(by_address()).max_tokens(8));
    let output = stack
        .paceline(&["generate", "--image", &path, "--message", CANARY, "--max-tokens", "8"], "");
    assert!(output.status.success(), "{output:?}");
    // Refused: broken after the canary, an address to fetch, too many.
    let refused = [
        images::about(file[..file.len() - 20].to_vec(), "?"),
        images::about(format!("{CANARY}, not an image").into_bytes(), "?"),
        conversation(vec![images::turn(vec![images::address(format!(
            "https://{CANARY}.example/{CANARY}.png"
        ))])]),
        conversation(vec![images::turn(vec![images::address(format!(
            "data:image/png;base64,{CANARY}@"
        ))])]),
        conversation(vec![images::turn((0..9).map(|_| images::image(file.clone())).collect())]),
    ];
    for ask in refused {
        stack.ask(ask).expect_err("refused");
    }
    // Cut short: the client goes, target and gateway are ended in the middle of answers, and while
    // its pixels lie in a file.
    let mut live = stack.open(ask(1_500)).expect("served");
    live.read(3);
    drop(live);
    for with in [Signal::SIGKILL, Signal::SIGABRT] {
        let target = stack.pid("target");
        let mut live = stack.open(ask(1_900)).expect("served");
        live.read(3);
        signal(target, with);
        drop(live);
        stack.wait_ready();
        stack.ask(ask(8)).expect("served");
    }
    let (target, gateway) = (stack.pid("target"), stack.pid("gateway"));
    signal(target, Signal::SIGSTOP);
    let pending = stack.start(ask(8));
    let lies = wait("its pixels to be in a file", || {
        images::waiting(&stack).into_iter().find(|name| !name.starts_with("new"))
    });
    let lies = std::fs::read(stack.run_dir().join("images").join(lies)).expect("a file");
    assert!(holds(&lies, CANARY), "this is what must not be left");
    signal(gateway, Signal::SIGABRT);
    pending.finish().expect_err("its gateway is gone");
    wait("the next gateway to have removed it", || {
        images::waiting(&stack).is_empty().then_some(())
    });
    signal(target, Signal::SIGCONT);
    stack.wait_ready();
    stack.ask(ask(8)).expect("served");
    wait("no image's file to be left", || images::waiting(&stack).is_empty().then_some(()));
    written_nowhere(&stack, &[CANARY, &encoded[..24]]);
    stack.stop();
}

#[cfg(target_os = "linux")]
#[test]
fn all_files_are_private_and_no_process_dumps_core() {
    let stack = Stack::drafting("");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&stack.run_dir()), 0o700);
    let sockets = stack.sockets();
    assert!(sockets.len() >= 3, "{sockets:?}");
    for path in sockets {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    let mut found = vec![];
    files(&stack.run_dir(), &mut found);
    for (name, _) in
        found.iter().filter(|(name, _)| name.ends_with(".log") || name.ends_with(".jsonl"))
    {
        assert_eq!(mode(Path::new(name)), 0o600, "{name}");
    }
    let processes = stack.processes();
    assert!(processes.len() >= 5, "{processes:?}");
    for process in processes {
        let limits =
            std::fs::read_to_string(format!("/proc/{}/limits", process.pid)).unwrap_or_default();
        let core =
            limits.lines().find(|line| line.starts_with("Max core file size")).unwrap_or_default();
        let figures: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
        assert_eq!(figures, ["0", "0"], "{}: {core}", process.command);
    }
    stack.stop();
}

#[test]
fn a_runtime_directory_open_to_others_is_refused_and_stays_empty() {
    let mut stack = Stack::new("");
    std::fs::create_dir(stack.run_dir()).unwrap();
    std::fs::set_permissions(stack.run_dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    stack.serve();
    assert_eq!(stack.serve_ended(), Some(64), "{}", stack.serve_log());
    assert!(
        stack.serve_log().contains("mode 0755") && stack.serve_log().contains("chmod 700"),
        "{}",
        stack.serve_log()
    );
    assert_eq!(std::fs::metadata(stack.run_dir()).unwrap().mode() & 0o777, 0o755);
    assert_eq!(std::fs::read_dir(stack.run_dir()).unwrap().count(), 0);
    stack.sweep();
}

/// Takes from this thread's later children what lets root read every process: CAP_SYS_PTRACE (19),
/// CAP_SYS_ADMIN (21) and CAP_PERFMON (38). All of them then have the same capabilities, as the
/// processes of an ordinary user have.
#[cfg(target_os = "linux")]
fn start_children_like_an_ordinary_users() {
    for capability in [19, 21, 38] {
        // SAFETY: a system call on plain numbers. It fails for a user who is not root, and then
        // there is nothing to take.
        unsafe { nix::libc::prctl(nix::libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

/// Whether another process can read this one's memory map.
#[cfg(target_os = "linux")]
fn map_is_readable(pid: u32) -> bool {
    use std::process::{Command, Stdio};
    let mut reader = Command::new("cat");
    reader.arg(format!("/proc/{pid}/maps")).stdout(Stdio::null()).stderr(Stdio::null());
    reader.status().expect("cat exists").success()
}

#[cfg(target_os = "linux")]
#[test]
fn no_process_of_the_service_can_be_read_by_another_process_of_its_user() {
    start_children_like_an_ordinary_users();
    let mut stack = Stack::new("");
    stack.env(paceline_system::start::DEBUGGABLE, "0");
    stack.serve();
    stack.wait_ready();
    let status = stack.wait_linked();
    let mut other = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep exists");
    let reference = map_is_readable(other.id());
    other.kill().expect("ours");
    other.wait().expect("ended");
    assert!(reference, "a process that does not keep its memory to itself can be read");
    let pids = ["gateway", "supervisor", "target", "drafter"]
        .map(|name| status[name]["pid"].as_u64().expect("a pid") as u32);
    for pid in pids.into_iter().chain([stack.serve_pid()]) {
        assert!(!map_is_readable(pid), "process {pid}: {status}");
    }
    // The processes still reach each other: the supervisor finds and ends its workers, the next one
    // finds them.
    signal(stack.pid("supervisor"), Signal::SIGKILL);
    let after = stack.wait_status("the next supervisor with the same workers", |after| {
        after["supervisor"]["pid"] != status["supervisor"]["pid"]
            && after["target"]["state"] == "ready"
    });
    assert_eq!(
        (&after["target"]["pid"], &after["drafter"]["pid"]),
        (&status["target"]["pid"], &status["drafter"]["pid"])
    );
    stack.drafter(&["stop"]);
    stack.stop();
}
