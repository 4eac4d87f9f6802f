//! From nothing to an answer in one command: `paceline run` and the flags of `paceline serve`. A
//! model of a hub is fetched first, and nothing is left afterwards.

#[path = "../pull/tests/pull/hub.rs"]
#[allow(dead_code, reason = "the tests of `pull` use the rest")]
mod hub;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;

use hub::{Hub, Model};
use nix::sys::signal::Signal;
use paceline_process::config::DEFAULT_MODEL_VAR;
use paceline_tests::model::{Weights, single};
use paceline_tests::pty::Pty;
use paceline_tests::{Stack, programs, repository, signal, wait};
use serde_json::Value;

/// The embedded target, as users name it.
fn demo() -> String {
    repository().join("demo/target").display().to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn done(output: &Output) -> (String, String) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

/// Directories of the private services that this stack's processes run.
fn private_dirs(stack: &Stack) -> Vec<PathBuf> {
    let pids: Vec<String> =
        stack.processes().iter().map(|process| process.pid.to_string()).collect();
    let entries = std::fs::read_dir("/tmp").expect("there").filter_map(Result::ok);
    let dirs = entries.map(|entry| entry.path());
    let dirs = dirs.filter(|dir| dir.to_string_lossy().starts_with("/tmp/paceline-run."));
    dirs.filter(|dir| {
        let record = std::fs::read_to_string(dir.join("run/target.json"));
        record.is_ok_and(|record| pids.iter().any(|pid| record.contains(pid)))
    })
    .collect()
}

/// The embedded target with an end token that it never chooses, so that an answer goes on to the
/// context's end.
fn endless(parent: &Path) -> String {
    let dir = single(parent, "endless", &Weights::demo().bytes());
    for name in ["config.json", "generation_config.json"] {
        let path = dir.join(name);
        let mut object: Value =
            serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
        object["eos_token_id"] = 1.into();
        std::fs::write(&path, object.to_string()).expect("written");
    }
    dir.display().to_string()
}

/// A `paceline run` whose answer has begun, and the directory of its service.
fn begun(stack: &Stack, model: &str) -> (Child, PathBuf) {
    let line = format!("exec paceline run {model} 'Tell a long story.' --temperature 0");
    let mut run = stack.shell(&line).spawn().expect("it starts");
    let mut first = [0];
    let read = run.stdout.as_mut().expect("piped").read_exact(&mut first);
    if read.is_err() {
        panic!("expected an answer, found {:?}", run.wait_with_output());
    }
    let dirs = private_dirs(stack);
    assert_eq!(dirs.len(), 1, "the directory of the private service");
    (run, dirs[0].clone())
}

/// Waits until no process of this stack is left, and checks that the private directory is gone.
fn nothing_left(stack: &Stack, dir: &Path) {
    wait("the end of all processes", || stack.processes().is_empty().then_some(()));
    assert!(!dir.exists(), "{} is left", dir.display());
    stack.sweep();
}

#[test]
fn one_answer_comes_without_a_running_service_and_nothing_is_left() {
    let stack = Stack::new("");
    let golden = std::fs::read_to_string(repository().join("demo/golden.json")).expect("there");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    let case = &golden["cases"][0];
    let question = case["messages"][0]["content"].as_str().expect("text");
    let expected = case["text"].as_str().expect("text");
    let words = ["run", &demo(), question, "--temperature", "0", "--verbose"];
    let (answer, notes) = done(&stack.paceline(&words, ""));
    assert_eq!(answer, format!("{expected}\n"));
    assert!(notes.contains(" tokens, first after "), "{notes}");
    // The question may come by standard input, and the answer as an object.
    let words = ["run", &demo(), "-", "--temperature", "0", "--json"];
    let (object, notes) = done(&stack.paceline(&words, &format!("{question}\n")));
    let object: Value = serde_json::from_str(&object).expect("JSON");
    assert_eq!((&object["text"], &object["token_ids"]), (&case["text"], &case["greedy"]));
    assert_eq!(notes, "");
    stack.sweep();
}

#[test]
fn an_interrupted_run_stops_its_service_and_a_killed_one_leaves_nothing_either() {
    let stack = Stack::new("");
    let model = endless(&stack.path(""));
    let (mut run, dir) = begun(&stack, &model);
    signal(run.id(), Signal::SIGINT);
    assert_eq!(wait("the end of run", || run.try_wait().expect("a child")).code(), Some(130));
    nothing_left(&stack, &dir);
    let (mut run, dir) = begun(&stack, &model);
    run.kill().expect("it runs");
    run.wait().expect("a child");
    nothing_left(&stack, &dir);
}

#[test]
fn without_a_question_a_terminal_talks_until_bye_and_nothing_is_left() {
    let stack = Stack::new("");
    let golden = std::fs::read_to_string(repository().join("demo/golden.json")).expect("there");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    let case = &golden["cases"][0];
    let question = case["messages"][0]["content"].as_str().expect("text");
    let talk = |model: &str| {
        let line = format!("exec paceline run {model} --temperature 0 --no-history");
        Pty::start(stack.shell(&line), 300, 50)
    };
    let mut person = talk(&demo());
    person.wait_text("target: 4096 tokens of context, no images. /help shows the commands; ");
    let dir = private_dirs(&stack).pop().expect("a private service");
    person.press(&format!("{question}\r"));
    let answer = case["text"].as_str().expect("text").lines().next_back().expect("a line");
    person.wait_text(answer.trim());
    person.press("/bye\r");
    assert_eq!(person.ended().code(), Some(0));
    nothing_left(&stack, &dir);

    // Ctrl-C ends an answer, and Ctrl-D the conversation.
    let mut person = talk(&endless(&stack.path("")));
    person.wait_text("/help shows the commands; ");
    let dir = private_dirs(&stack).pop().expect("a private service");
    let prompts = |screen: &str| screen.lines().filter(|line| line.starts_with('>')).count();
    person.press("Tell a long story.\r");
    person.wait_for("the answer to begin", |screen| {
        screen.split("story.").nth(1).is_some_and(|answer| !answer.trim().is_empty())
    });
    person.signal(Signal::SIGINT);
    person.wait_for("the next prompt", |screen| prompts(screen) == 2);
    assert!(dir.exists(), "the service goes on");
    person.press("\x04");
    assert_eq!(person.ended().code(), Some(0));
    nothing_left(&stack, &dir);
}

#[test]
fn a_running_service_is_asked_if_it_serves_the_model() {
    let mut stack = Stack::new("");
    stack.serve();
    stack.wait_ready();
    let asked = |model: &str| {
        let line = format!("paceline run {model} 'List three fruits.' --max-tokens 4");
        done(&stack.shell(&line).output().expect("it starts")).1
    };
    let notes = asked("./demo/target");
    assert!(notes.contains(&format!("asking the service at {}", stack.address())), "{notes}");
    let served = || -> u64 {
        let routing = stack.snapshot().expect("it runs").routing.unwrap_or_default();
        routing.routes.iter().map(|route| route.requests).sum()
    };
    wait("the request to be counted", || (served() == 1).then_some(()));
    // Another model has a service of its own, beside this one.
    let other = single(&stack.path(""), "other", &Weights::demo().bytes());
    assert_eq!(asked(&other.display().to_string()), "");
    // So has a drafter of one's own.
    let line = "paceline run ./demo/target 'List three fruits.' --max-tokens 4 --drafter lookup";
    let output = stack.shell(line).output().expect("it starts");
    assert_eq!(done(&output).1, "");
    assert_eq!(served(), 1, "no further request");
    stack.stop();
}

#[test]
fn what_cannot_be_asked_is_refused_with_the_exit_codes_of_generate() {
    let stack = Stack::new("");
    let refused = |words: &[&str], input: &str, code: i32, word: &str| {
        let output = stack.paceline(&[&["run"], words].concat(), input);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        assert!(text(&output.stderr).contains(word), "{words:?}: {output:?}");
        assert_eq!(text(&output.stdout), "", "{words:?}");
    };
    refused(&["./nowhere", "Why?"], "", 2, "nothing at ./nowhere");
    refused(&[&demo()], "", 2, "expected a question on standard input, found nothing");
    refused(&[&demo(), "Why?", "--image", "/nowhere"], "", 2, "--image: cannot read /nowhere");
    refused(&[&demo(), "Why?", "--set", "gateway.grpc=127.0.0.1:1"], "", 2, "--set gateway.grpc");
    refused(&["no-such/model", "Why?", "--offline"], "", 1, "run `paceline pull no-such/model`");
    let empty = stack.path("empty");
    std::fs::create_dir(&empty).expect("made");
    std::fs::write(empty.join("config.json"), "{}").expect("written");
    // The reason is in the last lines of the private service.
    refused(&[&empty.display().to_string(), "Why?"], "", 1, "cannot read");
    // A directory whose name could be that of a model is not fetched from a hub.
    let output = stack.shell("paceline run demo/target 'Why?'").output().expect("it starts");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("write ./demo/target for the directory"), "{output:?}");
    stack.sweep();
}

/// A user's home without a model, and a hub that has the embedded target as `org/name`.
struct Newcomer {
    home: tempfile::TempDir,
    hub: Hub,
}

impl Newcomer {
    fn new() -> Self {
        let files = std::fs::read_dir(demo()).expect("there").filter_map(Result::ok);
        let files = files.map(|entry| {
            let name = entry.file_name().into_string().expect("a name");
            (name, std::fs::read(entry.path()).expect("readable"))
        });
        let model = Model { files: files.collect(), ..Model::default() };
        Self { home: tempfile::tempdir().expect("a directory"), hub: Hub::of(model) }
    }

    fn shell(&self, stack: &Stack, line: &str) -> Command {
        let mut command = stack.shell(line);
        let home = self.home.path();
        command.env("HOME", home).env("XDG_CACHE_HOME", home.join("cache"));
        command.env("HF_ENDPOINT", self.hub.endpoint()).env_remove("HF_HUB_OFFLINE");
        for name in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN"] {
            command.env_remove(name);
        }
        command
    }
}

#[test]
fn a_model_of_a_hub_is_fetched_and_served_after_its_size_was_shown() {
    let (stack, newcomer) = (Stack::new(""), Newcomer::new());
    let inspected = |name: &str| {
        let line = format!("paceline inspect {name} --json");
        newcomer.shell(&stack, &line).output().expect("it starts")
    };
    // Before the fetch the hub's configuration and headers say what the files on the disk say.
    let facts = |name: &str| {
        let object: Value = serde_json::from_str(&done(&inspected(name)).0).expect("JSON");
        ["model", "kv", "machine", "template", "fetch"].map(|part| object[part].clone())
    };
    let figures = |name: &str| {
        let [mut model, mut kv, machine, ..] = facts(name);
        for (part, own) in [(&mut model, ["name", "path"]), (&mut kv, ["budget_bytes", ""])] {
            let figures = part.as_object_mut().expect("an object");
            // Free memory changes between two questions.
            figures.retain(|key, _| !own.contains(&key.as_str()) && !key.starts_with("budget"));
        }
        (model, kv, machine["fits"].clone())
    };
    assert_eq!(figures("org/name"), figures("./demo/target"));
    let fetch = &facts("org/name")[4];
    assert!(fetch["bytes"].as_u64().is_some_and(|bytes| bytes > 20_000_000), "{fetch}");
    let words = newcomer.shell(&stack, "paceline inspect org/name").output().expect("it starts");
    let words = done(&words).0;
    assert!(words.starts_with("org/name is not on this machine\nfetch "), "{words}");
    assert!(words.contains("verdict     fits"), "{words}");
    let line = "exec paceline serve org/name --drafter off";
    let log = std::fs::File::create(stack.path("serve.log")).expect("made");
    let mut serve = newcomer.shell(&stack, line);
    let serve = serve.stdout(log.try_clone().expect("a file")).stderr(log);
    let mut serve = serve.spawn().expect("it starts");
    wait("the line that the model is ready", || {
        stack.serve_log().contains("ready: org/name at ").then_some(())
    });
    let shown = stack.serve_log();
    for word in [
        "org/name is not on this machine (target.model); it is fetched from http://127.0.0.1:",
        "to fetch in ",
        "memory  about ",
        "fits this machine",
        "org/name is there: ",
    ] {
        assert!(shown.contains(word), "{word:?} in {shown}");
    }
    assert!(!stack.status().expect("it runs")["target"]["model"].is_null());
    let removed = |flag: &str| {
        let line = format!("paceline rm org/name {flag}");
        let output = newcomer.shell(&stack, &line).output().expect("it starts");
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, words) = removed("--yes");
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("org/name is served by the running service as its target"), "{words}");
    signal(serve.id(), Signal::SIGTERM);
    assert_eq!(wait("the end of serve", || serve.try_wait().expect("a child")).code(), Some(0));
    // Now it is there, and no network is needed.
    let asked = newcomer.hub.requests().len();
    let line = "paceline run org/name 'List three fruits.' --max-tokens 4 --offline";
    let (answer, _) = done(&newcomer.shell(&stack, line).output().expect("it starts"));
    assert!(!answer.trim().is_empty());
    // `inspect` finds what was fetched, and it is what the hub has.
    let (fetched, original) = (facts("org/name"), facts("./demo/target"));
    assert_eq!((&fetched[0]["name"], &fetched[3]), (&"org/name".into(), &original[3]));
    assert!(fetched[4].is_null(), "nothing is to be fetched");
    assert_eq!(figures("org/name"), figures("./demo/target"));
    assert!(original[0]["parameters"].as_u64().is_some_and(|parameters| parameters > 0));
    assert_eq!(newcomer.hub.requests().len(), asked);

    let (code, words) = removed("");
    assert_eq!(code, Some(2), "{words}");
    assert!(words.contains("Remove org/name (28.") && words.contains("--yes"), "{words}");
    assert_eq!(facts("org/name")[0]["name"], "org/name", "it is still there");
    let (code, words) = removed("--yes");
    assert_eq!(code, Some(0), "{words}");
    assert!(words.starts_with("removed org/name, 28."), "{words}");
    assert!(!facts("org/name")[4].is_null(), "the hub has it still");
    assert_eq!(removed("--yes").0, Some(2), "it is gone");
    stack.sweep();
}

#[test]
fn without_smollm2_and_a_network_serve_has_the_embedded_pair_unless_a_model_was_named() {
    let (stack, newcomer) = (Stack::new("drafter.model = \"\"\n"), Newcomer::new());
    let shell = |line: &str| {
        let mut command = newcomer.shell(&stack, line);
        // Nothing listens there.
        command.env("PIP_INDEX_URL", "http://127.0.0.1:9/simple").env_remove(DEFAULT_MODEL_VAR);
        command
    };
    for line in ["paceline serve --model smollm2", "paceline run '' 'Why?'"] {
        let output = shell(line).output().expect("it starts");
        assert!(!output.status.success(), "{line}: {output:?}");
        assert!(text(&output.stderr).contains("smollm2"), "{line}: {output:?}");
    }
    let log = std::fs::File::create(stack.path("serve.log")).expect("made");
    let mut serve = shell("exec paceline serve");
    let serve = serve.stdout(log.try_clone().expect("a file")).stderr(log);
    let mut serve = serve.spawn().expect("it starts");
    let status = stack.wait_ready();
    let shown = stack.serve_log();
    for word in [
        "smollm2 is not here and could not be fetched: ",
        "; serving the embedded demo model, which cannot answer questions",
        "`paceline pull smollm2` fetches it (93 MB)",
    ] {
        assert!(shown.contains(word), "{word:?} in {shown}");
    }
    assert_eq!(shown.matches("smollm2 is not here").count(), 1, "it is said once: {shown}");
    let served = status["target"]["model"].as_str().expect("a model");
    assert!(served.ends_with("demo/target"), "{served}");
    signal(serve.id(), Signal::SIGTERM);
    assert_eq!(wait("the end of serve", || serve.try_wait().expect("a child")).code(), Some(0));
    stack.sweep();
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_a_byte_of_it_is_fetched() {
    let stack = Stack::new("");
    let mut model = Model::small();
    // A thousand terabytes of memory; the disk is too small as well, and checked first.
    model.sizes.insert("model.safetensors".to_owned(), 1 << 50);
    let config = std::fs::read(Path::new(&demo()).join("config.json")).expect("readable");
    model.files.insert("config.json".to_owned(), config);
    let newcomer = Newcomer { home: tempfile::tempdir().expect("made"), hub: Hub::of(model) };
    for (line, code) in
        [("paceline serve --model org/name", 69), ("paceline run org/name 'Why?'", 1)]
    {
        let output = newcomer.shell(&stack, line).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let words = text(&output.stderr);
        for word in ["does not fit this machine", "nothing was fetched. Make room", "1024.0 TiB"] {
            assert!(words.contains(word), "{word:?} in {words}");
        }
    }
    let of_weights = newcomer.hub.requests_of("model.safetensors");
    let is_of_header = |range: Option<&str>| range.is_some_and(|range| range == "bytes=0-262143");
    assert!(of_weights.iter().all(|request| is_of_header(request.header("range"))));
    assert!(!newcomer.home.path().join("cache").exists(), "nothing is written");
    stack.sweep();
}

#[test]
fn a_fetch_ends_with_the_command_that_needs_it() {
    let stack = Stack::new("");
    let (asked, was_asked) = std::sync::mpsc::sync_channel(4);
    let model = Model::small();
    let hub = Hub::start(move |request| {
        if request.path.ends_with("model.safetensors") {
            let _ = asked.try_send(());
            // It never answers.
            loop {
                std::thread::park();
            }
        }
        model.answer(request)
    });
    let newcomer = Newcomer { home: tempfile::tempdir().expect("made"), hub };
    for (line, how, code) in [
        ("exec paceline serve --model org/name", Signal::SIGTERM, Some(0)),
        ("exec paceline run org/name 'Why?'", Signal::SIGINT, Some(130)),
        ("exec paceline run org/name 'Why?'", Signal::SIGKILL, None),
    ] {
        let mut child = newcomer.shell(&stack, line).spawn().expect("it starts");
        was_asked.recv_timeout(Duration::from_secs(60)).expect("it asks for the weights");
        signal(child.id(), how);
        let status = wait("the end of the command", || child.try_wait().expect("a child"));
        assert_eq!(status.code(), code, "{line} {how}");
        stack.sweep();
    }
}

#[test]
fn flags_of_serve_are_settings_and_survive_restarts() {
    let stack = Stack::new("routing.max_concurrent = 7\n");
    let other = Stack::new("");
    let port = other.http_address();
    let port = port.rsplit(':').next().expect("a port");
    let line = format!(
        "exec paceline serve --model ./demo/target --drafter lookup --port {port} --threads 1 --context 512 --set routing.max_concurrent=3"
    );
    let log = std::fs::File::create(stack.path("serve.log")).expect("made");
    let mut serve = stack.shell(&line);
    let serve = serve.stdout(log.try_clone().expect("a file")).stderr(log);
    let mut serve = serve.spawn().expect("it starts");
    stack.wait_ready();
    let settings = || {
        let output = stack.paceline(&["config", "show", "--json"], "");
        let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let one = |key: &str| {
            let setting = &object["settings"][key];
            format!("{} {}", setting["value"].as_str().unwrap_or_default(), setting["source"])
        };
        [
            one("target.model"),
            one("drafter.model"),
            one("gateway.http"),
            one("target.threads"),
            one("limits.context_tokens"),
            one("routing.max_concurrent"),
        ]
    };
    let flag = |value: &str| format!("{value} \"flag\"");
    let expected = [
        flag(&demo()),
        flag("lookup"),
        flag(&format!("127.0.0.1:{port}")),
        flag("1"),
        flag("512"),
        flag("3"),
    ];
    assert_eq!(settings(), expected);
    // The command line asks the service for its address, whatever the configuration says.
    let config = stack.path("elsewhere.toml");
    let text = format!(
        "[supervisor]\nruntime_dir = {:?}\n[gateway]\ngrpc = {:?}\n",
        stack.run_dir(),
        other.address()
    );
    std::fs::write(&config, text).expect("written");
    let mut ask = Command::new(programs().join("paceline"));
    ask.args(["generate", "--message", "List fruits.", "--max-tokens", "4", "--config"]);
    assert!(!done(&ask.arg(&config).output().expect("it runs")).0.trim().is_empty());
    for process in ["supervisor", "gateway"] {
        let before = stack.pid(process);
        let output = stack.paceline(&["restart", process], "");
        done(&output);
        stack.wait_ready();
        assert_ne!(stack.pid(process), before, "{process}");
        assert_eq!(settings(), expected, "after the restart of {process}");
    }
    let shown = stack.serve_log();
    assert!(shown.contains("routing.max_concurrent = 3 (flag)"), "{shown}");
    let logged = std::fs::read_to_string(stack.run_dir().join("supervisor.log")).expect("there");
    let line = logged.lines().find(|line| line.contains("routing setting")).expect("logged");
    for word in ["routing.max_concurrent", "3", "flag"] {
        assert!(line.contains(word), "{word:?} in {line}");
    }
    signal(serve.id(), Signal::SIGTERM);
    assert_eq!(wait("the end of serve", || serve.try_wait().expect("a child")).code(), Some(0));
    stack.sweep();
}
