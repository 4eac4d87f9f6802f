//! The program against a hub that the test runs.

mod gguf;
mod hub;
mod machine;
mod package;
mod plan;

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use hub::{Answer, COMMIT, Hub, Model};
use machine::{Machine, Outcome};

#[test]
fn a_pull_fetches_what_serving_needs_and_a_second_one_asks_for_the_commit_alone() {
    let (machine, hub) = (Machine::new(), Hub::of(Model::small()));
    let outcome = machine.pull(&hub.endpoint());
    outcome.done();
    let dir = machine.model().join(COMMIT);
    assert_eq!(outcome.out.trim(), dir.display().to_string());
    let names: HashSet<_> = std::fs::read_dir(&dir)
        .expect("there")
        .map(|entry| entry.expect("read").file_name())
        .collect();
    let expected = ["config.json", "tokenizer.json", "model.safetensors"];
    assert_eq!(names, expected.map(Into::into).into());
    assert_eq!(machine.current("model.safetensors").as_deref(), Some(Model::small().weights()));
    assert_eq!(hub.requests().len(), 4);
    let again = machine.pull(&hub.endpoint());
    again.done();
    assert_eq!((hub.requests().len(), &again.out), (5, &outcome.out));
    let mut offline = machine.command("http://127.0.0.1:1");
    let offline: Outcome = offline.env("HF_HUB_OFFLINE", "1").output().expect("it starts").into();
    offline.done();
    assert!(Path::new(offline.out.trim()).join("config.json").is_file(), "{offline:?}");
}

#[test]
fn offline_mode_says_what_is_not_there() {
    let machine = Machine::new();
    let outcome = machine.command("http://127.0.0.1:1").arg("--offline").output();
    let outcome = Outcome::from(outcome.expect("it starts"));
    outcome.refused(1, &["org/name at main was not pulled", "offline", "paceline pull org/name"]);
    assert!(!machine.model().exists());
}

#[test]
fn shards_are_those_of_the_index() {
    let (machine, hub) = (Machine::new(), Hub::of(Model::sharded()));
    machine.pull(&hub.endpoint()).done();
    let model = Model::sharded();
    for name in ["m-1.safetensors", "mtp/m-2.safetensors"] {
        assert_eq!(machine.current(name).as_ref(), model.files.get(name), "{name}");
    }
    assert_eq!(machine.current("mtp/other.safetensors"), None);
    assert!(hub.requests_of("mtp/other.safetensors").is_empty());
}

#[test]
fn a_folder_of_a_repository_is_a_model_of_its_own() {
    let mut model = Model::small();
    for (name, text) in [
        ("dflash/config.json", "{\"model_type\":\"qwen3\"}"),
        ("dflash/model.safetensors", "drafts"),
        ("dflash/README.md", "nobody needs it"),
        ("dflash/inner/config.json", "{}"),
        ("dflash-2/config.json", "{}"),
    ] {
        model.files.insert(name.to_owned(), text.as_bytes().to_vec());
    }
    let (machine, hub) = (Machine::new(), Hub::of(model));
    let mut command = machine.pulling("org/name/dflash", &hub.endpoint());
    let outcome = Outcome::from(command.output().expect("it starts"));
    outcome.done();
    let dir = machine.model().with_file_name("org--name--dflash").join(COMMIT);
    assert_eq!(outcome.out.trim(), dir.display().to_string());
    let names: HashSet<_> = std::fs::read_dir(&dir)
        .expect("there")
        .map(|entry| entry.expect("read").file_name())
        .collect();
    assert_eq!(names, ["config.json", "model.safetensors"].map(Into::into).into());
    assert_eq!(std::fs::read(dir.join("model.safetensors")).expect("there"), b"drafts");
    assert!(!machine.model().exists(), "the repository's own model was not asked for");
    let mut command = machine.pulling("org/name/missing", &hub.endpoint());
    let outcome = Outcome::from(command.output().expect("it starts"));
    outcome.refused(1, &["org/name/missing", "has no config.json"]);
}

#[test]
fn an_index_that_leads_out_of_the_folder_is_refused() {
    let mut model = Model::sharded();
    let index = br#"{"weight_map":{"a":"../../evil.safetensors"}}"#;
    model.files.insert("model.safetensors.index.json".to_owned(), index.to_vec());
    let (machine, hub) = (Machine::new(), Hub::of(model));
    machine.pull(&hub.endpoint()).refused(1, &["evil.safetensors"]);
    assert!(machine.current("config.json").is_none());
}

#[test]
fn a_file_goes_on_where_its_connection_broke() {
    let model = Model::small();
    let hub = Hub::start(move |request| {
        let answer = model.answer(request);
        let whole = request.begin() + 100_000 >= 300_000;
        let is_weights = request.path.ends_with("model.safetensors");
        if is_weights && !whole { answer.cut(100_000) } else { answer }
    });
    let machine = Machine::new();
    machine.pull(&hub.endpoint()).done();
    let begins: Vec<usize> =
        hub.requests_of("model.safetensors").iter().map(hub::Request::begin).collect();
    assert_eq!(begins.first(), Some(&0));
    assert!(begins.len() > 2 && begins.is_sorted() && begins[1] > 0, "{begins:?}");
    assert_eq!(machine.current("model.safetensors").as_deref(), Some(Model::small().weights()));
}

#[test]
fn a_pull_goes_on_where_an_earlier_one_stopped() {
    let (model, broken) = (Model::small(), Arc::new(AtomicUsize::new(1)));
    let state = broken.clone();
    let hub = Hub::start(move |request| {
        let is_weights = request.path.ends_with("model.safetensors");
        match (is_weights && state.load(Ordering::SeqCst) == 1, request.begin()) {
            (false, _) => model.answer(request),
            (true, 0) => model.answer(request).cut(150_000),
            (true, _) => Answer::status(404),
        }
    });
    let machine = Machine::new();
    machine.pull(&hub.endpoint()).refused(1, &["model.safetensors", "404"]);
    assert!(!machine.model().join("current").exists() && !machine.model().join(COMMIT).exists());
    broken.store(0, Ordering::SeqCst);
    let before = hub.requests_of("model.safetensors").len();
    machine.pull(&hub.endpoint()).done();
    let later = hub.requests_of("model.safetensors").split_off(before);
    assert!(later.len() == 1 && later[0].begin() > 0, "{later:?}");
    assert_eq!(hub.requests_of("config.json").len(), 1, "it was whole");
    assert_eq!(machine.current("model.safetensors").as_deref(), Some(Model::small().weights()));
}

#[test]
fn a_server_that_knows_no_ranges_sends_the_file_again() {
    let model = Model::small();
    let first = AtomicUsize::new(0);
    let hub = Hub::start(move |request| {
        if !request.path.ends_with("model.safetensors") {
            return model.answer(request);
        }
        let answer = Answer::ok(model.weights());
        if first.fetch_add(1, Ordering::SeqCst) == 0 { answer.cut(100_000) } else { answer }
    });
    let machine = Machine::new();
    machine.pull(&hub.endpoint()).done();
    assert_eq!(machine.current("model.safetensors").as_deref(), Some(Model::small().weights()));
}

#[test]
fn refusals_of_the_hub_name_what_to_do() {
    let refuse = |status: u16, code: &'static str| {
        Hub::start(move |_| {
            Answer::status(status).with("x-error-code", code).with("x-error-message", "no!")
        })
    };
    for (status, code, todo) in [
        (401, "RepoNotFound", "set HF_TOKEN"),
        (403, "GatedRepo", "accept its terms"),
        (404, "RevisionNotFound", "check the name and --revision"),
        (500, "", "try again later"),
    ] {
        let (machine, hub) = (Machine::new(), refuse(status, code));
        let outcome = machine.pull(&hub.endpoint());
        outcome.refused(1, &["org/name at main", &status.to_string(), todo]);
        assert!(!machine.model().exists(), "nothing is made for a model that is not there");
    }
    let (machine, hub) = (Machine::new(), refuse(401, ""));
    let mut command = machine.command(&hub.endpoint());
    let outcome: Outcome = command.env("HF_TOKEN", "hf_secret").output().expect("it starts").into();
    outcome.refused(1, &["the token in HF_TOKEN is valid"]);
    assert!(!outcome.err.contains("hf_secret"));
}

#[test]
fn a_hub_that_is_not_there_is_a_failure_of_the_network() {
    let machine = Machine::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = closed.local_addr().expect("bound");
    drop(closed);
    machine.pull(&format!("http://{address}")).refused(3, &["check the network"]);
    machine.pull("huggingface.co").refused(2, &["HF_ENDPOINT", "huggingface.co"]);
    let outcome = Outcome::from(machine.command("http://h").arg("x").output().expect("it starts"));
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
}

#[test]
fn a_file_with_another_digest_is_removed_and_fetched_anew() {
    for name in ["model.safetensors", "tokenizer.json"] {
        let mut model = Model::small();
        let wrong = if name == "tokenizer.json" { "a".repeat(40) } else { "a".repeat(64) };
        model.digests.insert(name.to_owned(), wrong.clone());
        let (machine, hub) = (Machine::new(), Hub::of(model));
        machine.pull(&hub.endpoint()).refused(1, &[name, &wrong, "found ", "was removed"]);
        assert!(!machine.model().join("current").exists());
        machine.pull(&hub.endpoint()).refused(1, &[name]);
        let begins: Vec<_> = hub.requests_of(name).iter().map(hub::Request::begin).collect();
        assert_eq!(begins, [0, 0], "nothing of it was kept");
    }
}

#[test]
fn weights_without_a_digest_are_refused_unless_that_is_allowed() {
    let single = (Model::small(), "model.safetensors");
    for (mut model, name) in [single, (Model::sharded(), "mtp/m-2.safetensors")] {
        model.undigested.insert(name.to_owned());
        let (machine, hub) = (Machine::new(), Hub::of(model.clone()));
        machine.pull(&hub.endpoint()).refused(1, &[name, "no", "digest", "--allow-unverified"]);
        assert!(hub.requests_of(name).is_empty() && machine.current("config.json").is_none());
        let mut command = machine.command(&hub.endpoint());
        let outcome = command.arg("--allow-unverified").output().expect("it starts");
        let outcome = Outcome::from(outcome);
        outcome.done();
        assert!(outcome.err.contains(&format!("warning: {name} is not checked")), "{outcome:?}");
        assert_eq!(machine.current(name).as_ref(), model.files.get(name));
    }
}

#[test]
fn each_file_without_a_digest_is_named_in_a_warning() {
    let mut model = Model::small();
    model.undigested = ["config.json", "tokenizer.json"].map(str::to_owned).into();
    let (machine, hub) = (Machine::new(), Hub::of(model));
    let outcome = machine.pull(&hub.endpoint());
    outcome.done();
    for name in ["config.json", "tokenizer.json"] {
        assert!(outcome.err.contains(&format!("warning: {name} is not checked")), "{outcome:?}");
    }
    assert_eq!(outcome.err.matches("warning").count(), 2, "{outcome:?}");
    let checked = Machine::new().pull(&Hub::of(Model::small()).endpoint());
    assert!(!checked.err.contains("warning"), "{checked:?}");
}

#[test]
fn a_full_disk_is_found_before_or_named_and_what_was_written_stays() {
    let mut model = Model::small();
    model.sizes.insert("model.safetensors".to_owned(), 1 << 60);
    let (machine, hub) = (Machine::new(), Hub::of(model));
    machine.pull(&hub.endpoint()).refused(1, &["expected room for", "make room"]);
    assert!(hub.requests_of("model.safetensors").is_empty());

    let (machine, hub) = (Machine::new(), Hub::of(Model::small()));
    let full = machine.pull_on_a_full_disk(&hub.endpoint(), 200_000);
    full.refused(1, &["model.safetensors.part", "no room is left"]);
    machine.pull(&hub.endpoint()).done();
    let last = hub.requests_of("model.safetensors").pop().expect("asked for");
    assert!(last.begin() > 0, "{last:?}");
    assert_eq!(machine.current("model.safetensors").as_deref(), Some(Model::small().weights()));
}

#[test]
fn a_token_is_for_the_hub_alone() {
    let model = Model::small();
    let elsewhere = Hub::start(move |request| Answer::file(model.weights(), request));
    let (model, place) = (Model::small(), format!("{}/blob?sig=1", elsewhere.endpoint()));
    let hub = Hub::start(move |request| {
        match request.path.ends_with("model.safetensors") && !request.path.starts_with("/moved") {
            true => Answer::redirect(&place),
            false if request.path.ends_with("tokenizer.json") => Answer::redirect("/moved"),
            false if request.path == "/moved" => Answer::ok("{}"),
            false => model.answer(request),
        }
    });
    let machine = Machine::new();
    let mut command = machine.command(&hub.endpoint());
    let outcome: Outcome = command.env("HF_TOKEN", "hf_secret").output().expect("it starts").into();
    outcome.done();
    let tokens = |hub: &Hub| -> HashSet<Option<String>> {
        hub.requests().iter().map(|one| one.header("authorization").map(str::to_owned)).collect()
    };
    assert_eq!(tokens(&hub), [Some("Bearer hf_secret".to_owned())].into());
    assert_eq!(tokens(&elsewhere), [None].into());
    assert_eq!(machine.current("model.safetensors").as_deref(), Some(Model::small().weights()));
}

#[test]
fn redirects_that_do_not_end_are_refused() {
    let hub = Hub::start(|request| Answer::redirect(&request.path));
    Machine::new().pull(&hub.endpoint()).refused(1, &["at most 8 redirects"]);
    for place in ["ftp://h/x", "http://192.0.2.1/x", "https://user@h/x", "http://"] {
        let hub = Hub::start(move |_| Answer::redirect(place));
        Machine::new().pull(&hub.endpoint()).refused(1, &["expected a redirect to"]);
    }
}

#[test]
fn a_body_of_another_length_than_described_is_refused() {
    let model = Model::small();
    let hub = Hub::start(move |request| {
        let is_weights = request.path.ends_with("model.safetensors");
        let answer = model.answer(request);
        if is_weights && request.begin() > 0 {
            answer.cut(0)
        } else if is_weights {
            answer.cut(9)
        } else {
            answer
        }
    });
    let machine = Machine::new();
    machine.pull(&hub.endpoint()).refused(3, &["model.safetensors", "what was fetched is kept"]);
    assert_eq!(hub.requests_of("model.safetensors").len(), 4, "one with bytes, three without");

    let mut model = Model::small();
    model.sizes.insert("model.safetensors".to_owned(), 1_000);
    let hub = Hub::of(model);
    machine.pull(&hub.endpoint()).refused(1, &["expected 1000 bytes, found more"]);
    let mut model = Model::small();
    model.sizes.insert("model.safetensors".to_owned(), 300_001);
    let hub = Hub::of(model);
    machine.pull(&hub.endpoint()).refused(3, &["expected 300001 bytes, found 300000"]);
}

#[test]
fn descriptions_that_are_too_long_or_no_descriptions_are_refused() {
    let hub = Hub::start(|_| Answer::ok(vec![b' '; (32 << 20) + 1]));
    Machine::new().pull(&hub.endpoint()).refused(1, &["expected at most 33554432 bytes"]);
    let hub = Hub::start(|_| Answer::ok("<html>"));
    Machine::new().pull(&hub.endpoint()).refused(1, &["expected a JSON object with sha"]);
    let mut model = Model::small();
    model.files.remove("model.safetensors");
    let hub = Hub::of(model);
    Machine::new().pull(&hub.endpoint()).refused(1, &["org/name", "weights in safetensors"]);
}

#[test]
fn two_pulls_of_a_model_take_turns() {
    let (model, gate) = (Model::small(), Arc::new((Mutex::new(false), Condvar::new())));
    let door = gate.clone();
    let hub = Hub::start(move |request| {
        if request.path.ends_with("model.safetensors") {
            let (open, opened) = &*door;
            drop(opened.wait_while(open.lock().expect("whole"), |open| !*open));
        }
        model.answer(request)
    });
    let machine = Machine::new();
    let mut pulls = [0, 1].map(|_| machine.command(&hub.endpoint()).spawn().expect("it starts"));
    // One of them has the lock, and the other waits for it.
    let waits = pulls.each_mut().map(|pull| pull.stderr.take().expect("piped"));
    let (found, has_found) = std::sync::mpsc::sync_channel(2);
    let readers = waits.map(|stderr| {
        let found = found.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if line.contains("another pull of this model runs") {
                    let _ = found.send(());
                }
            }
        })
    });
    has_found.recv_timeout(std::time::Duration::from_secs(60)).expect("one of them waits");
    *gate.0.lock().expect("whole") = true;
    gate.1.notify_all();
    for pull in &mut pulls {
        assert!(pull.wait().expect("it ends").success());
    }
    for reader in readers {
        reader.join().expect("it ends");
    }
    assert_eq!(hub.requests_of("model.safetensors").len(), 1, "the second found it there");
    assert_eq!(machine.current("model.safetensors").as_deref(), Some(Model::small().weights()));
}
