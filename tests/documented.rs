//! Commands of the documents, typed into a shell as they stand there, against real services. The
//! list of all documented commands, and of the tests that run each, is `tests/commands.toml`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Child, Output};

use nix::sys::signal::Signal;
use paceline_tests::{Stack, cargo_run, chat, repository, signal, wait};
use serde_json::Value;

/// The question of the README.
const QUESTION: &str = "Compute 47 + 85 step by step.";

/// Runs a line to its end, with this text as its input.
fn run(stack: &Stack, line: &str, input: &str) -> Output {
    let mut child = stack.shell(line).spawn().expect("sh is there");
    // A command may end without reading.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("a child")
}

/// Output of a line that has to succeed.
#[track_caller]
fn done(stack: &Stack, line: &str) -> String {
    let output = run(stack, line, "");
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn has(text: &str, expected: &[&str]) {
    for part in expected {
        assert!(text.contains(part), "expected {part:?}, found: {text}");
    }
}

#[test]
fn commands_that_ask_and_show_work_as_documented() {
    let mut stack = Stack::new("");
    // PACELINE_LOG__LEVEL=info,paceline_target=debug,paceline_drafter=debug paceline serve
    stack.env("PACELINE_LOG__LEVEL", "info,paceline_target=debug,paceline_drafter=debug");
    stack.serve();
    stack.wait_linked();
    wait("health SERVING", || stack.healthy().then_some(()));

    has(&done(&stack, "paceline --version"), &["paceline "]);
    has(&done(&stack, "paceline generate --help"), &["--route <ROUTE>", "--message <TEXT>"]);
    let expected = stack.ask(chat(QUESTION)).expect("served").text;
    let line = format!("paceline generate --message \"{QUESTION}\"");
    assert_eq!(done(&stack, &line), format!("{expected}\n"));
    let talk = run(&stack, "paceline chat", &format!("{QUESTION}\n/quit\n"));
    assert!(talk.status.success(), "{talk:?}");
    assert_eq!(String::from_utf8_lossy(&talk.stdout), format!("{expected}\n"));

    has(&done(&stack, "paceline status"), &["gateway", "supervisor", "target", "drafter", "ready"]);
    let status: Value =
        serde_json::from_str(&done(&stack, "paceline status --json")).expect("JSON");
    assert_eq!(
        (&status["target"]["state"], &status["link"]["state"]),
        (&"ready".into(), &"up".into())
    );
    has(&done(&stack, "paceline events"), &["target", "loading", "ready"]);
    let models = done(&stack, &stack.here("curl -s http://127.0.0.1:8061/v1/models"));
    let models: Value = serde_json::from_str(&models).expect("JSON");
    assert_eq!(models["data"][0]["id"], "demo-target", "{models}");
    let health = stack.here("curl http://127.0.0.1:8061/health");
    has(&done(&stack, &format!("{health} --fail --include")), &["200 OK"]);
    let mut follower = stack.shell("exec paceline events --follow").spawn().expect("sh is there");
    let first = BufReader::new(follower.stdout.take().expect("piped")).lines().next();
    assert!(first.is_some_and(|line| line.is_ok_and(|line| !line.is_empty())), "an event");
    follower.kill().expect("it follows");
    follower.wait().expect("a child");

    why_was_this_stream_slow(&stack);
    stack.stop();
}

/// The searches of docs/troubleshooting.md for a request's id, in the runtime directory.
fn why_was_this_stream_slow(stack: &Stack) {
    let line = "paceline generate --json --route speculative --max-tokens 16 --message \"Tell a long story.\"";
    let answer: Value = serde_json::from_str(&done(stack, line)).expect("JSON");
    let id = answer["request_id"].as_str().expect("a text");
    let logs = stack.run_dir().display().to_string();
    let search = |line: &str| {
        let line = format!("cd '{logs}' && {}", line.replace("REQUEST_ID", &format!("'{id}'")));
        // Logs are written behind the answer.
        wait(&line, || {
            let found = run(stack, &line, "");
            found.status.success().then(|| String::from_utf8_lossy(&found.stdout).into_owned())
        })
    };
    // The line of the target comes first or last: wait for both.
    let ends = wait("the end of the request in both logs", || {
        let found = search("grep -h REQUEST_ID gateway.log target.log");
        (found.matches("request finished").count() > 0 && found.contains("slowest_step_ms"))
            .then_some(found)
    });
    has(&ends, &["prefill_ms=", "tokens="]);
    has(&search("grep REQUEST_ID target.log | grep 'step done'"), &["kind=\"prefill\""]);
    has(&search("grep REQUEST_ID target.log | grep -v 'step done'"), &["request admitted"]);
    has(&search("grep -h REQUEST_ID drafter-?.log"), &[id]);
}

#[test]
fn commands_without_a_service_work_as_documented() {
    let stack = Stack::new("");
    let keys = stack.path("keys");
    let place = stack.path("").display().to_string();
    done(&stack, &format!("cd '{place}' && touch keys && chmod 600 keys"));
    let made = run(&stack, &format!("cd '{place}' && paceline key new alice >> keys"), "");
    assert!(made.status.success(), "{made:?}");
    let lines = std::fs::read_to_string(&keys).expect("made");
    assert!(lines.starts_with("alice:"), "{lines}");
    assert_eq!(std::fs::metadata(&keys).expect("made").permissions().mode() & 0o777, 0o600);
    // The key went to the terminal: its digest is the line of the file.
    let shown = String::from_utf8_lossy(&made.stderr).into_owned();
    let key = shown.split_whitespace().find(|word| word.starts_with("pl_")).expect("the key");
    let digest = run(&stack, "paceline key digest alice", key);
    assert_eq!(String::from_utf8_lossy(&digest.stdout), lines, "{digest:?}");

    // `paceline inspect Qwen/Qwen3-4B`, of a hub: the embedded pair stands for what was pulled.
    let home = stack.path("home");
    let cache = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    let pulled = home.join(cache).join("paceline/models/Qwen--Qwen3-4B");
    std::fs::create_dir_all(&pulled).expect("made");
    symlink(repository().join("demo/target"), pulled.join("commit")).expect("linked");
    symlink("commit", pulled.join("current")).expect("linked");
    let at_home = |line: &str| {
        let mut command = stack.shell(line);
        let output =
            command.env("HOME", &home).env("XDG_CACHE_HOME", "").output().expect("sh is there");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = at_home("paceline inspect Qwen/Qwen3-4B");
    assert_eq!(code, Some(0), "{text}");
    has(&text, &["family      qwen3", "verdict     fits"]);
    let (code, text) = at_home("paceline inspect Qwen/Qwen3-4B --drafter ./demo/drafter");
    assert_eq!(code, Some(0), "{text}");
    has(&text, &["drafter     dflash", "fits"]);
    let (code, text) = at_home("paceline inspect Qwen/Qwen3-4B --machine 'M4 Pro 24 GB'");
    assert_eq!(code, Some(0), "{text}");
    has(&text, &["machine     M4 Pro 24 GB: 16.0 GiB can be used", "speed       at most"]);
    let (_, text) = at_home("paceline inspect Qwen/Qwen3-4B --drafter target");
    has(&text, &["drafter     does not fit"]);
}

/// The repository stands for the network. `make install` is a test of its own (tests/deploy).
#[test]
fn the_sources_are_fetched_as_the_readme_says() {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("there");
    let clone = "git clone https://github.com/paceline/paceline && cd paceline";
    assert!(readme.contains(&format!("\n{clone}\nmake install ")), "README.md has not: {clone}");
    let stack = Stack::new("");
    let mut command = stack.shell(&format!("{clone} && make help"));
    command
        .current_dir(stack.path(""))
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", format!("url.{}.insteadOf", repository().display()))
        .env("GIT_CONFIG_VALUE_0", "https://github.com/paceline/paceline");
    let output = command.output().expect("sh is there");
    assert!(output.status.success(), "{output:?}");
    has(&String::from_utf8_lossy(&output.stdout), &["make install ", "[PREFIX="]);
}

/// A figure needs a release build on a quiet machine. Any build shows that the command gives it.
#[test]
#[ignore = "more: measures for ten seconds"]
fn examples_that_measure_print_their_figures() {
    for (line, figure) in [
        (
            "cargo run --release -p paceline-models --example decode_speed -- demo/target 1 300 64",
            "ms",
        ),
        (
            "cargo run --release -p paceline-link --example round_trip",
            " bytes a cycle both ways; median ",
        ),
        // One prompt of each kind, once. It compares the tokens of both lanes.
        (
            "cargo run --release -p paceline-tests --example pair_speed -- 1 1",
            " tokens a cycle of ",
        ),
    ] {
        let output = cargo_run(line).output().expect("it starts");
        assert!(output.status.success(), "{line}: {output:?}");
        has(&String::from_utf8_lossy(&output.stdout), &[figure]);
    }
}

#[test]
fn the_image_of_the_readme_is_described_as_printed_there() {
    let stack = Stack::new("");
    let serve = "paceline serve demo-vision";
    let shell = stack.shell(serve).spawn().expect("sh is there");
    stack.wait_ready();
    let line = "paceline generate --image demo/vision/images/large.png --message \"Describe the picture.\"";
    let described = done(&stack, line);
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("there");
    assert!(readme.contains(&format!("\n# {described}```\n")), "README.md has not: {described}");
    interrupt(&stack, shell);
}

#[test]
fn what_the_documents_promise_about_logs_and_downloads_has_its_exceptions() {
    let read = |name: &str| std::fs::read_to_string(repository().join(name)).expect("there");
    let security = read("SECURITY.md");
    let promise = security.split("No prompt and no answer is logged").nth(1).expect("a promise");
    has(promise.split(". ").next().expect("a sentence"), &["`log.prompts`"]);
    // Before a download a hub is asked, unless no network may be used.
    let promise = "`paceline inspect ORG/NAME` says before a download";
    assert!(read("docs/models.md").contains(promise));
    let stack = Stack::new("");
    let mut offline = stack.shell("paceline inspect org/not-here");
    let refused = offline.env("HF_HUB_OFFLINE", "1").output().expect("it starts");
    assert!(!refused.status.success(), "{refused:?}");
    has(&String::from_utf8_lossy(&refused.stderr), &["org/not-here"]);
}

/// Ends `paceline serve` as Ctrl-C does. The shell may have become the service or be its parent.
fn interrupt(stack: &Stack, mut shell: Child) {
    let processes = stack.processes();
    let is_serve =
        |command: &str| command.split(' ').take(2).collect::<Vec<_>>() == ["paceline", "serve"];
    let serve = processes.iter().find(|process| is_serve(&process.command));
    signal(
        serve.unwrap_or_else(|| panic!("expected serve, found {processes:?}")).pid,
        Signal::SIGINT,
    );
    assert!(wait("the end of serve", || shell.try_wait().expect("a child")).success());
    stack.sweep();
}

#[test]
fn settings_are_shown_and_changed_as_documented() {
    let stack = Stack::new("");
    let value = |text: &str, key: &str| {
        let row = text.lines().find(|line| line.split(' ').next() == Some(key));
        row.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
    };
    let both = "paceline config show routing limits.queue";
    let shown = done(&stack, both);
    assert_eq!(value(&shown, "limits.queue").as_deref(), Some("128 default"), "{shown}");
    assert_eq!(value(&shown, "routing.force").as_deref(), Some("auto default"), "{shown}");
    done(&stack, "paceline config set routing.force=plain limits.queue=64");
    assert_eq!(done(&stack, "paceline config get limits.queue"), "64\n");
    let section = run(&stack, "paceline config get limits", "");
    assert_eq!((section.status.code(), section.stdout.len()), (Some(2), 0), "{section:?}");
    let changed = done(&stack, "paceline config show --changed");
    assert_eq!(value(&changed, "limits.queue").as_deref(), Some("64 config set"), "{changed}");
    assert_eq!(value(&changed, "routing.force").as_deref(), Some("plain config set"), "{changed}");
    done(&stack, "paceline config unset routing.force");
    done(&stack, "paceline config set routing.max_concurrent=4");
    done(&stack, "paceline config set gateway.ollama=on");
    let changed = done(&stack, "paceline config show --changed");
    assert_eq!(value(&changed, "gateway.ollama").as_deref(), Some("on config set"), "{changed}");
    done(&stack, "paceline config unset gateway.ollama");

    // A flag wins over what is kept.
    let line = "paceline serve --set routing.max_concurrent=2";
    let shell = stack.shell(line).spawn().expect("sh is there");
    stack.wait_ready();
    let all = done(&stack, "paceline config show");
    assert_eq!(value(&all, "routing.max_concurrent").as_deref(), Some("2 flag"), "{all}");
    assert_eq!(value(&all, "routing.force").as_deref(), Some("auto default"), "{all}");
    assert_eq!(value(&all, "limits.queue").as_deref(), Some("64 config set"), "{all}");
    assert_eq!(done(&stack, "paceline config get routing.max_concurrent"), "2\n");
    interrupt(&stack, shell);
}

/// `bench` and `pull` are programs of their own. With `--help` at the end a program refuses an
/// unknown flag or value all the same, and does nothing.
#[test]
fn documented_flags_of_bench_and_pull_are_there() {
    let list = std::fs::read_to_string(repository().join("tests/commands.toml")).expect("there");
    let stack = Stack::new("");
    let mut checked = 0;
    for line in list.lines().filter_map(|line| line.strip_prefix("'paceline ")) {
        let words = line.split('\'').next().expect("a first part");
        if ["bench", "pull"].contains(&words.split(' ').next().expect("a first word")) {
            has(
                &done(&stack, &format!("paceline {} --help", words.replace('*', "7"))),
                &["Usage:"],
            );
            checked += 1;
        }
    }
    assert!(checked > 2, "expected the documented commands, found {checked}");
    let unknown = run(&stack, "paceline bench --swept --help", "");
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

/// The first command of the README, and the two of docs/drafters.md; one prompt of each kind
/// instead of three.
#[test]
#[ignore = "more: minutes of measuring"]
fn selftest_compares_the_lanes_and_the_drafters() {
    let stack = Stack::new("");
    has(
        &done(&stack, "paceline selftest --prompts 1"),
        &["identity: both lanes", ": equal", "json"],
    );
    has(&done(&stack, "paceline selftest --prompts 1 --drafter lookup"), &[": equal"]);
    let both = done(&stack, "paceline selftest --prompts 1 --drafters ./demo/drafter,lookup");
    has(&both, &["demo/drafter", "lookup"]);
    std::fs::write(
        stack.path("mine.jsonl"),
        "{\"kind\": \"rivers\", \"prompt\": \"Name a river.\"}\n",
    )
    .expect("writable");
    let mine = "paceline selftest --drafters ./demo/drafter --from mine.jsonl";
    let mine = mine.replace("mine.jsonl", &stack.path("mine.jsonl").display().to_string());
    has(&done(&stack, &mine), &["demo/drafter"]);
    let one = mine.replace("--drafters", "--drafter");
    has(&done(&stack, &one), &["rivers", ": equal"]);
}

#[test]
fn a_selftest_ends_after_its_seconds_and_names_what_it_left_out() {
    let stack = Stack::new("");
    let output = stack.shell("paceline selftest --prompts 40 --seconds 1").output();
    let output = output.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    // 240 prompts three times would take minutes.
    has(&out, &[": equal", "not checked, as --seconds was over: round 1: ", "sampled: 240 of 240"]);
    has(&err, &["of 720 prompts"]);
}
