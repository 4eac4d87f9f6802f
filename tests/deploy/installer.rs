//! Installing without a build: `deploy/install.sh` on an archive and a URL, `make install` and `make uninstall` for a user
//! who has no cargo, and what decides whether a build is needed.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use paceline_tests::{programs, repository};

use crate::archive::{hex, run};

fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("pl").tempdir().expect("a temporary directory")
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).expect("written");
}

/// A small archive of the same form as a release: a script in place of the program, and a link to it.
fn archive(dir: &Path) -> PathBuf {
    let root = dir.join("paceline-0-here");
    let files = [
        ("bin/paceline", "#!/bin/sh\necho \"I am ${0##*/}\"\n"),
        (
            "share/doc/paceline/installed.txt",
            "bin/paceline\nbin/paceline-gateway\nshare/doc/paceline/installed.txt\n",
        ),
    ];
    files.iter().for_each(|(name, text)| write(&root.join(name), text));
    fs::set_permissions(root.join("bin/paceline"), fs::Permissions::from_mode(0o755)).expect("set");
    symlink("paceline", root.join("bin/paceline-gateway")).expect("linked");
    fs::copy(repository().join("deploy/install.sh"), root.join("install.sh")).expect("copied");
    let names =
        ["bin/paceline", "bin/paceline-gateway", "install.sh", "share/doc/paceline/installed.txt"];
    let sum = |name: &str| format!("{}  {name}\n", hex(&fs::read(root.join(name)).expect("there")));
    write(&root.join("SHA256SUMS"), &names.map(sum).concat());
    let path = dir.join("paceline-0-here.tar.gz");
    run(Command::new("tar").arg("-czf").arg(&path).arg("-C").arg(dir).arg("paceline-0-here"));
    path
}

/// `install.sh` with these words, as it is fetched alone.
fn install(words: &[&str], digest: &str) -> Output {
    let mut command = Command::new("sh");
    command.arg(repository().join("deploy/install.sh")).args(words).env("SHA256", digest);
    command.env("no_proxy", "127.0.0.1").output().expect("sh")
}

/// Serves these files at these paths until the test ends; its address.
pub(crate) fn server(files: Vec<(&'static str, Vec<u8>)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let length = stream.read(&mut head).unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
            let found = files.iter().find(|(name, _)| *name == path);
            let (status, body) =
                found.map_or(("404 Not Found", &[][..]), |(_, body)| ("200 OK", body));
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            // A client that is gone needs no answer.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    address
}

#[test]
fn an_archive_is_installed_only_with_its_digest_and_removed_by_its_list() {
    let temp = temporary();
    let path = archive(temp.path());
    let text = |path: &Path| path.display().to_string();
    let bytes = fs::read(&path).expect("made");
    let (digest, prefix) = (hex(&bytes), temp.path().join("prefix"));
    let to = text(&prefix);
    write(&temp.path().join("other/README"), "another archive");
    run(Command::new("tar").args(["-czf", "other.tar.gz", "other"]).current_dir(temp.path()));
    let other = fs::read(temp.path().join("other.tar.gz")).expect("made");
    let address = server(vec![
        ("good.tar.gz", bytes.clone()),
        ("good.tar.gz.sha256", format!("{digest}  good.tar.gz\n").into_bytes()),
        ("bad.tar.gz", bytes.clone()),
        ("bad.tar.gz.sha256", format!("{}  bad.tar.gz\n", hex(b"other")).into_bytes()),
        ("bare.tar.gz", bytes),
        ("other.tar.gz", other.clone()),
        ("page.tar.gz", b"a page of a proxy".to_vec()),
    ]);
    let url = |name: &str| format!("{address}/{name}.tar.gz");

    let (other, page) = (hex(&other), hex(b"a page of a proxy"));
    let refused = [
        (text(&path), "", "expected the digest of "),
        (text(&path), "0123", "expected an archive with SHA-256 0123, found "),
        (url("bad"), "", "expected an archive with SHA-256 "),
        (url("bare"), "", "cannot fetch "),
        (url("none"), "", "cannot fetch "),
        (
            url("other"),
            &other,
            "expected a release archive of Paceline, found one without install.sh",
        ),
        (
            url("page"),
            &page,
            "expected a release archive of Paceline, found a file that tar cannot",
        ),
        (format!("{}x.tar.gz", text(&path)), &digest, "expected an archive, found nothing at "),
    ];
    for (from, digest, expected) in refused {
        let output = install(&[&from, &to], digest);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{from}: {said}");
        assert!(!prefix.exists(), "{from} installed something");
    }

    for (from, digest) in
        [(text(&path), digest.as_str()), (url("good"), ""), (url("bare"), &digest)]
    {
        let output = install(&[&from, &to], digest);
        assert!(output.status.success(), "{from}: {output:?}");
        let link = prefix.join("bin/paceline-gateway");
        assert_eq!(fs::read_link(&link).expect("a link"), Path::new("paceline"));
        let said = Command::new(&link).output().expect("it runs");
        assert_eq!(String::from_utf8_lossy(&said.stdout), "I am paceline-gateway\n");
        let output = install(&["--uninstall", &to], "");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read_dir(&prefix).map_or(0, Iterator::count), 0, "files are left");
    }
    let output = install(&["--uninstall", &to], "");
    assert!(!output.status.success(), "nothing is installed there: {output:?}");
}

/// MLX's library in this folder.
fn library(folder: &str) -> String {
    format!("{folder}/libmlx{}", std::env::consts::DLL_SUFFIX)
}

/// A source tree with the programs of this build, as `make build` leaves one.
fn built_tree(tree: &Path) {
    fs::create_dir_all(tree).expect("made");
    let copy = "git ls-files -z | tar -cf - --null -T - | tar -xf - -C \"$0\"";
    run(Command::new("sh").args(["-c", copy]).arg(tree).current_dir(repository()));
    let bin = tree.join("target/debug");
    fs::create_dir_all(bin.join("parts/lib")).expect("made");
    for name in ["paceline", "paceline-worker", "paceline-pull"] {
        fs::copy(programs().join(name), bin.join(name)).expect("copied");
    }
    for name in ["parts/THIRD-PARTY.txt", "parts/sbom.cdx.json", &library("parts/lib"), ".built"] {
        write(&bin.join(name), "of a build");
    }
}

#[test]
#[ignore = "more: copies 300 MB"]
fn after_a_build_another_user_installs_without_cargo_and_nothing_of_it_is_left() {
    let temp = temporary();
    let path = |name: &str| temp.path().join(name);
    // Cargo of another user would build everything again.
    write(&path("bin/cargo"), "#!/bin/sh\necho \"$*\" >>\"${0%/*}/../calls\"\nexit 1\n");
    fs::set_permissions(path("bin/cargo"), fs::Permissions::from_mode(0o755)).expect("set");
    built_tree(&path("tree"));
    let root = path("root").display().to_string();
    let make = |recipe: &str, search: &str| {
        let mut make = Command::new("make");
        make.args([recipe, "PROFILE=dev", "PREFIX=/opt/paceline", &format!("DESTDIR={root}")]);
        make.current_dir(path("tree")).env_clear().env("HOME", "/empty").env("PATH", search);
        run(&mut make);
    };
    make("install", "/usr/bin:/bin");
    // What a run of tests leaves in the tree is newer than the programs.
    for name in ["tests/http_clients/.hypothesis/a", "scripts/__pycache__/a.pyc", "dist/a"] {
        write(&path("tree").join(name), "left");
    }
    make("install", &format!("{}:/usr/bin:/bin", path("bin").display()));
    let installed = path("root/opt/paceline");
    run(Command::new(installed.join("bin/paceline")).arg("--version"));
    let link = fs::read_link(installed.join("bin/paceline-drafter")).expect("a link");
    assert_eq!(link, Path::new("paceline-worker"));
    // A build leaves that library without its symbols, and it is installed in place of the one that MLX's wheel has.
    let stripped = fs::read_to_string(installed.join(library("lib/paceline")));
    assert_eq!(stripped.expect("the build's own"), "of a build");
    // Where a build puts its files is asked, and nothing is built.
    let calls = fs::read_to_string(path("calls")).expect("cargo was there");
    assert!(calls.lines().all(|call| call.starts_with("metadata --no-deps")), "{calls}");
    make("uninstall", "/usr/bin:/bin");
    assert_eq!(fs::read_dir(installed).map_or(0, Iterator::count), 0, "files are left");
}

#[test]
fn programs_are_built_again_only_after_a_change_of_a_source() {
    let temp = temporary();
    let path = |name: &str| temp.path().join(name);
    fs::create_dir_all(path("scripts")).expect("made");
    fs::copy(repository().join("scripts/lib.sh"), path("scripts/lib.sh")).expect("copied");
    write(
        &path("scripts/ask.sh"),
        ". \"$(dirname -- \"$0\")/lib.sh\"\nis_built \"$ROOT/target/debug\"\n",
    );
    write(&path("cli/src/lib.rs"), "");
    let is_built =
        || Command::new("sh").arg(path("scripts/ask.sh")).status().expect("sh").success();
    assert!(!is_built(), "nothing is there");
    for name in ["paceline", "paceline-worker", "paceline-pull", ".built"] {
        write(&path(&format!("target/debug/{name}")), "");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path(&format!("target/debug/{name}")), mode).expect("set");
    }
    let touch = |name: &str, when: &str| {
        let status = Command::new("touch").args(["-t", when]).arg(path(name)).status();
        assert!(status.expect("touch").success());
    };
    for name in ["scripts/lib.sh", "scripts/ask.sh", "cli/src/lib.rs"] {
        touch(name, "202001010000");
    }
    touch("target/debug/.built", "202101010000");
    assert!(is_built());
    write(&path("README.md"), "a new text");
    write(&path("target/test.log"), "a new log");
    write(&path("dist/paceline.rb"), "a new formula");
    write(&path("tests/http_clients/.hypothesis/examples"), "what a test leaves");
    assert!(is_built(), "neither a document nor an output is a source");
    touch("cli/src/lib.rs", "202201010000");
    assert!(!is_built(), "a source is newer");
    touch("cli/src/lib.rs", "202001010000");
    fs::remove_file(path("target/debug/paceline-worker")).expect("there");
    assert!(!is_built(), "a program is missing");
}
