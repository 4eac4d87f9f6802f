use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::config::{Setting, Source};

fn dir(path: &Path) -> RuntimeDir {
    let mut config = Config::default();
    config.supervisor.runtime_dir = path.display().to_string();
    RuntimeDir::locate(&config).expect("a short path")
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn a_swap_holds_as_long_as_its_target_or_the_process_that_started_the_supervisor() {
    let temp = temp();
    let dir = dir(&temp.path().join("run"));
    dir.prepare().expect("made");
    assert_eq!(dir.swapped_model("target"), None);
    dir.keep_swap("/models/b").expect("written");
    assert_eq!(dir.swapped_model("target").as_deref(), Some("/models/b"), "the parent lives");
    let file = dir.path().join("target.swap");
    let mut swap: serde_json::Value =
        serde_json::from_slice(&fs::read(&file).expect("there")).expect("JSON");
    // Another process has its pid now.
    swap["parent"]["started"] = 1.into();
    fs::write(&file, swap.to_string()).expect("written");
    assert_eq!(dir.swapped_model("target"), None);
    let own = WorkerRecord::of(std::process::id(), 1).expect("alive");
    dir.write_record("target", &own).expect("written");
    assert_eq!(dir.swapped_model("target").as_deref(), Some("/models/b"), "the target lives");
    dir.forget_swap();
    assert_eq!(dir.swapped_model("target"), None);
}

#[test]
fn a_new_directory_is_private() {
    let temp = temp();
    let dir = dir(&temp.path().join("a/run"));
    dir.prepare().expect("made");
    assert_eq!(mode(dir.path()), 0o700);
    dir.prepare().expect("used again");
}

#[test]
fn a_directory_that_others_may_enter_is_refused_and_left_as_it_is() {
    let temp = temp();
    let path = temp.path().join("run");
    fs::create_dir(&path).expect("made");
    for open in [0o755, 0o710, 0o701, 0o770, 0o500] {
        fs::set_permissions(&path, fs::Permissions::from_mode(open)).expect("ours");
        let error = dir(&path).prepare().expect_err("open to others");
        assert_eq!(error.exit(), Exit::Config);
        let text = crate::chain(&error);
        assert!(text.contains(&format!("mode {open:04o}")) && text.contains("chmod 700"), "{text}");
        assert_eq!(mode(&path), open, "no caller asked for another mode");
    }
}

#[test]
fn a_directory_whose_last_component_is_a_link_is_refused_and_what_it_names_is_left_alone() {
    let temp = temp();
    let foreign = temp.path().join("foreign");
    fs::create_dir(&foreign).expect("made");
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).expect("ours");
    let link = temp.path().join("run");
    symlink(&foreign, &link).expect("linked");
    let text = dir(&link).prepare().expect_err("a link").to_string();
    assert!(text.contains("a symbolic link to") && text.contains("foreign"), "{text}");
    assert_eq!(mode(&foreign), 0o755);
    assert_eq!(fs::read_dir(&foreign).expect("there").count(), 0);
    // A link to nowhere makes no directory there either.
    fs::remove_file(&link).expect("ours");
    symlink(temp.path().join("nowhere"), &link).expect("linked");
    assert!(dir(&link).prepare().is_err() && !temp.path().join("nowhere").exists());
    // Links before the last component are how systems are made (/tmp and /var of macOS).
    fs::remove_file(&link).expect("ours");
    symlink(temp.path().join("real"), &link).expect("linked");
    fs::create_dir(temp.path().join("real")).expect("made");
    dir(&link.join("run")).prepare().expect("a directory behind a link");
}

#[test]
fn a_file_or_another_users_directory_is_refused() {
    let temp = temp();
    let file = temp.path().join("file");
    fs::write(&file, "x").expect("writable");
    let text = dir(&file).prepare().expect_err("a file").to_string();
    assert!(text.contains("found no directory"), "{text}");
    if nix::unistd::geteuid().is_root() {
        let other = temp.path().join("other");
        fs::create_dir(&other).expect("made");
        std::os::unix::fs::chown(&other, Some(65_534), None).expect("as root");
        let text = dir(&other).prepare().expect_err("not ours").to_string();
        assert!(text.contains("owner 65534"), "{text}");
    } else {
        // Root's, on every system.
        let text = private_dir(Path::new("/usr")).expect_err("not ours").to_string();
        assert!(text.contains("owner 0"), "{text}");
    }
}

#[test]
fn a_counter_survives_the_files_that_a_power_cut_leaves() {
    let temp = temp();
    let dir = dir(temp.path());
    let write = |name: &str, text: &[u8]| fs::write(dir.path().join(name), text).expect("writable");
    let remove = |name: &str| fs::remove_file(dir.path().join(name)).expect("there");
    let count = || dir.count_up("term").expect("it counts");
    assert_eq!((count(), count()), (1, 2));
    assert_eq!(fs::read_to_string(dir.path().join("term")).expect("there"), "2");
    // Between the spare and the counter itself.
    write("term.spare", b"3");
    assert_eq!(count(), 4);
    // A name that reached the disk before its content did, as older versions wrote it; cut short;
    // garbage; gone.
    let long: &[u8] = &[b'9'; 400];
    for (name, damage) in [
        ("term", &b""[..]),
        ("term.spare", b""),
        ("term", b"1"),
        ("term", b"\0\0\0\0"),
        ("term.spare", b"4x"),
        ("term", b"\xff\xfe"),
        ("term", long),
        ("term.spare", b"-1"),
        ("term", b"99999999999"),
    ] {
        let last = count();
        write(name, damage);
        assert_eq!(count(), last + 1, "{name} {damage:?}");
    }
    let last = count();
    remove("term");
    assert_eq!(count(), last + 1);
    remove("term.spare");
    assert_eq!(count(), last + 2);
    // What an interrupted write left does not matter.
    write("term.77.new", b"1");
    assert_eq!(count(), last + 3);
}

#[test]
fn a_counter_with_both_copies_damaged_is_refused() {
    let temp = temp();
    let dir = dir(temp.path());
    for (counter, spare) in
        [(&b""[..], Some(&b""[..])), (b"x", Some(b"y")), (b"", None), (b"4294967295", None)]
    {
        let paths = ["term", "term.spare"].map(|name| dir.path().join(name));
        fs::write(&paths[0], counter).expect("writable");
        match spare {
            Some(spare) => fs::write(&paths[1], spare).expect("writable"),
            None => fs::remove_file(&paths[1]).unwrap_or_default(),
        }
        let error = dir.count_up("term").expect_err("damaged");
        assert_eq!(error.exit(), Exit::Config);
        let text = crate::chain(&error);
        assert!(
            text.contains("expected a number")
                && text.contains("term.spare")
                && text.contains("remove"),
            "{text}"
        );
        assert_eq!(fs::read(&paths[0]).expect("there"), counter, "it is left as evidence");
    }
}

/// Set in the process that may write no file.
const FULL: &str = "PACELINE_TEST_FULL";

#[test]
fn a_full_disk_costs_no_count_and_no_record() {
    let full_record = || WorkerRecord::of(std::process::id(), 3).expect("alive");
    if let Some(path) = std::env::var_os(FULL) {
        paceline_system::start::settle();
        // As a full disk, without being root: no file of this process may grow (SIGXFSZ is
        // ignored).
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE, 0, 0)
            .expect("lowered");
        let dir = dir(Path::new(&path));
        assert_eq!(
            [dir.count_up("term"), dir.count_up("term")].map(|n| n.expect("a name")),
            [2, 3]
        );
        assert_eq!(dir.count_up("new").expect("a name"), 1);
        for record in [WorkerRecord { epoch: 2, ..full_record() }, full_record()] {
            dir.write_record("target", &record).expect("a name");
            assert_eq!(dir.record("target"), Some(record.clone()));
            assert_eq!(dir.records(), [("target".to_owned(), record)]);
        }
        // The lock needs no byte.
        return drop(dir.lock("supervisor").expect("free"));
    }
    let temp = temp();
    let dir = dir(temp.path());
    let names = || {
        let entries = fs::read_dir(dir.path()).expect("there");
        let names = entries.map(|entry| entry.expect("fine").file_name().into_string());
        let mut names: Vec<String> = names.map(|name| name.expect("UTF-8")).collect();
        names.sort();
        names
    };
    let record = WorkerRecord::of(std::process::id(), 1).expect("alive");
    dir.write_record("target", &record).expect("room");
    assert_eq!(dir.count_up("term").expect("room"), 1);
    let name = "runtime_dir::tests::a_full_disk_costs_no_count_and_no_record";
    let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
    let output = again.args([name, "--exact"]).env(FULL, temp.path()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert!(names().contains(&"term=3".to_owned()), "{:?}", names());
    assert_eq!(dir.record("target").expect("in a name").epoch, 3);
    // With room again nothing is left in names.
    assert_eq!(dir.count_up("term").expect("room again"), 4);
    assert_eq!(dir.count_up("new").expect("room again"), 2);
    dir.write_record("target", &WorkerRecord { epoch: 4, ..record }).expect("room again");
    assert_eq!(dir.record("target").expect("in the file").epoch, 4);
    let files = ["new", "new.spare", "supervisor.lock", "target.json", "term", "term.spare"];
    assert_eq!(names(), files, "a half file or a name is left");
    // A dead worker leaves no record in a name either.
    let named = format!("target.json={}", serde_json::to_string(&full_record()).expect("JSON"));
    fs::write(dir.path().join(named), "").expect("writable");
    dir.clear("target");
    assert_eq!((dir.record("target"), dir.records()), (None, vec![]));
}

#[test]
fn what_a_cleaner_removes_is_made_anew() {
    let temp = temp();
    let dir = dir(&temp.path().join("cache/run"));
    dir.prepare().expect("made");
    let lock = dir.lock("supervisor").expect("free");
    assert_eq!((dir.count_up("term").expect("1"), dir.count_up("term").expect("2")), (1, 2));
    dir.know("target.epoch", 7);
    let record = WorkerRecord::of(std::process::id(), 7).expect("alive");
    let setting =
        Setting { key: "kv.type".to_owned(), value: "int8".to_owned(), source: Source::Kept };
    let kept = Kept {
        locks: vec!["supervisor".to_owned()],
        record: Some(("target".to_owned(), record.clone())),
        settings: Some(("target".to_owned(), vec![setting])),
        images: true,
    };
    let mut held = vec![];
    for _ in 0..2 {
        fs::remove_dir_all(temp.path().join("cache")).expect("removed");
        dir.restore(&kept, &mut held).expect("made anew");
        assert_eq!((mode(dir.path()), mode(&dir.images())), (0o700, 0o700));
        assert!(matches!(dir.lock("supervisor"), Err(RuntimeDirError::Taken { .. })));
        assert_eq!(dir.record("target"), Some(record.clone()));
        let used = dir.used_settings("target").expect("noted");
        assert_eq!(used.get("kv.type").map(String::as_str), Some("int8"));
        assert_eq!(fs::read_to_string(dir.path().join("term")).expect("there"), "2");
    }
    dir.restore(&kept, &mut held).expect("nothing to do");
    assert_eq!(held.len(), 2, "a lock that is there is not taken again");
    drop(lock);
    // No count goes back, also if it is the first look at the emptied directory.
    fs::remove_dir_all(dir.path()).expect("removed");
    dir.prepare().expect("made");
    assert_eq!(dir.count_up("target.epoch").expect("counted"), 8);
}

#[test]
fn one_process_holds_a_lock_at_a_time() {
    let temp = temp();
    let dir = dir(temp.path());
    let held = dir.lock("supervisor").expect("free");
    let error = dir.lock_within("supervisor", Duration::ZERO).expect_err("taken").to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    // A process that waits for it has it when it is free.
    let waiting = dir.clone();
    let waiter = std::thread::spawn(move || {
        waiting.lock_within("supervisor", Duration::from_secs(30)).map(drop)
    });
    drop(held);
    waiter.join().expect("no panic").expect("free again");
    // A lock's file that is a link is not written through.
    fs::write(temp.path().join("mine"), "precious").expect("writable");
    symlink(temp.path().join("mine"), dir.path().join("gateway.lock")).expect("linked");
    dir.lock("gateway").expect_err("a link");
    assert_eq!(fs::read_to_string(temp.path().join("mine")).expect("there"), "precious");
}

#[test]
fn a_record_names_one_process_of_one_boot() {
    let temp = temp();
    let dir = dir(temp.path());
    let record = WorkerRecord::of(std::process::id(), 3).expect("we are alive");
    dir.write_record("target", &record).expect("writable");
    assert_eq!(dir.record("target"), Some(record.clone()));
    assert!(record.alive());
    assert_eq!(dir.records(), [("target".to_owned(), record.clone())]);
    assert!(!WorkerRecord { started: record.started + 1, ..record.clone() }.alive());
    // Same pid, same ticks since the boot: another boot's process all the same.
    assert!(
        !WorkerRecord { boot: "d8a3f2c4-0000-4000-8000-000000000000".to_owned(), ..record }.alive()
    );
    // A record without a boot id, or a damaged one, does not count.
    for text in [&b"{\"pid\":1,\"started\":1,\"epoch\":1}"[..], b"", b"{\"pid\":1", b"\xff"] {
        fs::write(dir.path().join("target.json"), text).expect("writable");
        assert_eq!((dir.record("target"), dir.records().len()), (None, 0));
    }
}

#[test]
fn a_path_too_long_for_sockets_is_refused() {
    let mut config = Config::default();
    config.supervisor.runtime_dir = format!("/tmp/{}", "x".repeat(120));
    assert!(matches!(RuntimeDir::locate(&config), Err(RuntimeDirError::TooLong { .. })));
}

#[test]
fn the_longest_socket_of_the_longest_path_can_be_bound() {
    let temp =
        tempfile::Builder::new().prefix("pl").tempdir_in("/tmp").expect("a temporary directory");
    let located = |longer: usize| {
        let fixed = temp.path().join("x").join(LONGEST_SOCKET).as_os_str().len() - 1;
        let path = temp.path().join("x".repeat(platform::MAX_SOCKET_PATH - fixed + longer));
        let mut config = Config::default();
        config.supervisor.runtime_dir = path.display().to_string();
        RuntimeDir::locate(&config)
    };
    let longest = located(0).expect("allowed");
    longest.prepare().expect("made");
    for process in ["supervisor", "target", "target.link", "drafter-1", "drafter-1.link"] {
        std::os::unix::net::UnixListener::bind(longest.socket(process)).expect(process);
    }
    let error = located(1).expect_err("one byte too long");
    assert!(
        matches!(error, RuntimeDirError::TooLong { length, .. } if length == platform::MAX_SOCKET_PATH + 1),
        "{error}"
    );
}

#[tokio::test]
async fn a_directory_in_the_place_of_a_file_is_named_with_what_to_do() {
    let temp = temp();
    let dir = dir(&temp.path().join("run"));
    dir.prepare().expect("made");
    let record = WorkerRecord::of(std::process::id(), 1).expect("this process lives");
    type Use<'a> = (&'a str, Box<dyn Fn() -> String + 'a>);
    let text = |error: RuntimeDirError| crate::chain(&error);
    let uses: [Use<'_>; 7] = [
        ("service.lock", Box::new(|| text(dir.lock("service").expect_err("no file")))),
        ("term", Box::new(|| text(dir.count_up("term").expect_err("no file")))),
        ("target.epoch.spare", Box::new(|| text(dir.count_up("target.epoch").expect_err("none")))),
        (
            "target.json",
            Box::new(|| text(dir.write_record("target", &record).expect_err("no file"))),
        ),
        (
            "target.sock",
            Box::new(|| {
                crate::socket::bind(&dir.socket("target")).expect_err("no socket").to_string()
            }),
        ),
        (
            "target.log",
            Box::new(|| {
                crate::telemetry::child_log(&dir.log("target"), 9).expect_err("no file").to_string()
            }),
        ),
        (
            "gateway.log.1",
            Box::new(|| {
                fs::write(dir.log("gateway"), "more than nine bytes").expect("writable");
                let outcome = crate::telemetry::child_log(&dir.log("gateway"), 9);
                outcome.expect_err("no file").to_string()
            }),
        ),
    ];
    for (name, error) in uses {
        let path = dir.path().join(name);
        fs::create_dir(&path).expect("made");
        let text = error();
        let whole =
            [path.to_str().expect("UTF-8"), "expected", "found a directory", "move it away"];
        assert!(whole.iter().all(|part| text.contains(part)), "{name}: {text}");
        assert!(path.is_dir(), "{name} is left as it is");
        fs::remove_dir(&path).expect("ours");
    }
}
