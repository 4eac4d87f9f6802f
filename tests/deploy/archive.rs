//! The release archive and the Debian package, made of the programs of the tests, and used where
//! nothing of the build can be reached.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_tests::{programs, repository, skip, wait};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The SHA-256 of these bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A script of the repository, on the programs of the tests.
pub(crate) fn script(name: &str, out: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg(repository().join("scripts").join(name)).env("OUT", out);
    command.env("PROFILE", "dev").env("BUILD", "no");
    command
}

/// The only file in `dir` that ends so.
pub(crate) fn only(dir: &Path, ending: &str) -> PathBuf {
    let files = fs::read_dir(dir).expect("there").flatten().map(|file| file.path());
    let mut found = files.filter(|path| path.to_string_lossy().ends_with(ending));
    let first = found.next().unwrap_or_else(|| panic!("no {ending} in {}", dir.display()));
    assert_eq!(found.next(), None);
    first
}

/// Installed programs, run by a user whose home has nothing of the build.
struct Installed {
    bin: PathBuf,
    home: PathBuf,
    settings: Vec<(&'static str, String)>,
}

impl Installed {
    fn new(bin: PathBuf, home: PathBuf) -> Self {
        fs::create_dir_all(&home).expect("made");
        let held = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [grpc, http] =
            held.each_ref().map(|held| held.local_addr().expect("bound").to_string());
        let run = home.join("run").display().to_string();
        let settings = vec![
            ("PACELINE_GATEWAY__GRPC", grpc),
            ("PACELINE_GATEWAY__HTTP", http),
            ("PACELINE_SUPERVISOR__RUNTIME_DIR", run),
            // No network is needed for it.
            ("PACELINE_TARGET__MODEL", "demo-target".to_owned()),
        ];
        Self { bin, home, settings }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &self.home);
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.home);
        command
    }

    /// Checks that the workers load MLX from beside themselves, and nothing from the build's cache.
    #[cfg(target_os = "linux")]
    fn loads_its_own_libraries(&self, dir: &Path) {
        for name in ["paceline-target", "paceline-drafter"] {
            let libraries = run(self.command(name).env("LD_TRACE_LOADED_OBJECTS", "1"));
            let mlx =
                libraries.lines().find(|line| line.contains("libmlx.so =>")).expect("it links MLX");
            assert!(mlx.contains(&dir.display().to_string()), "{mlx}");
            assert!(
                !libraries.contains("paceline/mlx/") && !libraries.contains("not found"),
                "{libraries}"
            );
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn loads_its_own_libraries(&self, _dir: &Path) {}

    fn serve(&self) -> Serving<'_> {
        let child = self.command("paceline").arg("serve").stdout(Stdio::null()).spawn();
        let serving = Serving { installed: self, child: child.expect("it starts") };
        wait("a service that is ready", || {
            let output =
                self.command("paceline").args(["status", "--json"]).output().expect("it starts");
            let status: Value = serde_json::from_slice(&output.stdout).ok()?;
            let ready = ["gateway", "target"].iter().all(|part| status[part]["state"] == "ready");
            ready.then_some(())
        });
        serving
    }

    /// Serves, answers, and stops.
    fn answers(&self, prompt: &str) -> String {
        let serving = self.serve();
        let mut ask = self.command("paceline");
        ask.args([
            "generate",
            "--message",
            prompt,
            "--temperature",
            "0",
            "--max-tokens",
            "16",
            "--json",
        ]);
        let answer: Value = serde_json::from_str(&run(&mut ask)).expect("an object");
        serving.stop();
        answer["text"].as_str().expect("a text").to_owned()
    }
}

/// `paceline serve`, which ends with the test.
struct Serving<'a> {
    installed: &'a Installed,
    child: Child,
}

impl Serving<'_> {
    fn stop(mut self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).expect("it lives");
        let status = wait("the end of the service", || self.child.try_wait().expect("ours"));
        assert!(status.success(), "{status} of {}", self.installed.bin.display());
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn temporary() -> tempfile::TempDir {
    programs();
    tempfile::Builder::new().prefix("pl").tempdir().expect("a temporary directory")
}

/// An installation's list of parts in CycloneDX: each crate has name, version, licence, address and digest, each library the
/// digest of its file.
fn check_parts(root: &Path) {
    let path = root.join("share/doc/paceline/sbom.cdx.json");
    let text = fs::read_to_string(path).expect("there");
    let parts: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&parts["bomFormat"], &parts["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = parts["components"].as_array().expect("a list");
    let is = |part: &Value, name: &str| part["name"] == name;
    for name in ["tokio", "mlx-rs", "paceline-gateway", "tokenizers"] {
        let found: Vec<_> = components.iter().filter(|part| is(part, name)).collect();
        assert_eq!(found.len(), 1, "{name}");
    }
    assert!(!components.iter().any(|part| is(part, "proptest")), "tests are not shipped");
    for part in components.iter().filter(|part| part["type"] == "library") {
        let (name, version) =
            (part["name"].as_str().expect("a name"), part["version"].as_str().expect("a version"));
        assert_eq!(part["purl"], format!("pkg:cargo/{name}@{version}"));
        assert!(part["licenses"][0]["expression"].is_string(), "{part}");
        let is_ours = name.starts_with("paceline") || name == "mlx-sys";
        assert_eq!(part["hashes"][0]["content"].is_string(), !is_ours, "{part}");
    }
    let files: Vec<_> = components.iter().filter(|part| part["type"] == "file").collect();
    assert!(
        files.iter().any(|part| part["name"].as_str().is_some_and(|name| name.contains("mlx")))
    );
    for part in files {
        let file = root.join("lib/paceline").join(part["name"].as_str().expect("a name"));
        assert_eq!(
            part["hashes"][0]["content"],
            hex(&fs::read(file).expect("installed")),
            "{part}"
        );
    }
    let refs: Vec<_> = components.iter().map(|part| &part["bom-ref"]).collect();
    for one in parts["dependencies"].as_array().expect("a list") {
        for to in one["dependsOn"].as_array().expect("a list") {
            assert!(refs.contains(&to), "{to} of {} is a part", one["ref"]);
        }
    }
}

#[test]
#[ignore = "more: packs and unpacks 300 MB"]
fn a_release_archive_serves_where_it_was_unpacked() {
    let temp = temporary();
    let (out, to) = (temp.path().join("dist"), temp.path().join("elsewhere"));
    run(&mut script("dist.sh", &out));
    let archive = only(&out, ".tar.gz");
    fs::create_dir(&to).expect("made");
    run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&to));
    let root = only(&to, "");
    check_parts(&root);
    let licences =
        fs::read_to_string(root.join("share/doc/paceline/THIRD-PARTY.txt")).expect("there");
    for part in ["tokio 1.", "MLX ", "Permission is hereby granted"] {
        assert!(licences.contains(part), "{part}");
    }

    // The programs run where they were unpacked.
    let unpacked = Installed::new(root.join("bin"), temp.path().join("home"));
    unpacked.loads_its_own_libraries(&root);
    assert!(!unpacked.answers("Count from one to five.").is_empty());

    // The archive's own script installs a copy, which needs the archive no more, and removes it.
    let prefix = temp.path().join("prefix");
    let install = |flag: &[&str]| {
        run(Command::new("sh").arg(root.join("install.sh")).args(flag).arg(&prefix));
    };
    install(&[]);
    let copy = Installed::new(prefix.join("bin"), temp.path().join("home"));
    copy.loads_its_own_libraries(&prefix);
    let models = run(copy.command("paceline").arg("models"));
    assert!(models.contains("demo-target") && models.contains("demo-vision"), "{models}");
    install(&["--uninstall"]);
    assert!(fs::read_dir(&prefix).map_or(0, Iterator::count) == 0, "files are left");

    // A damaged file is noticed before anything is copied.
    fs::write(root.join("bin/paceline-pull"), "damaged").expect("written");
    let output = Command::new("sh").arg(root.join("install.sh")).arg(&prefix).output().expect("sh");
    assert!(!output.status.success() && !prefix.join("bin").exists(), "{output:?}");
}

#[test]
#[ignore = "more: packs 300 MB"]
fn the_formula_of_homebrew_names_the_archive_and_its_digest() {
    let temp = temporary();
    let out = temp.path().join("dist");
    run(&mut script("dist.sh", &out));
    let archive = only(&out, ".tar.gz");
    let digest = hex(&fs::read(&archive).expect("there"));
    let formula = fs::read_to_string(out.join("paceline.rb")).expect("there");
    let name = archive.file_name().expect("a name").to_string_lossy();
    let version = env!("CARGO_PKG_VERSION");
    let expected = [
        format!(
            "  url \"https://github.com/paceline/paceline/releases/download/v{version}/{name}\"\n"
        ),
        format!("  version \"{version}\"\n"),
        format!("  sha256 \"{digest}\"\n"),
    ];
    expected.iter().for_each(|line| assert!(formula.contains(line), "{line}: {formula}"));
    assert!(!formula.contains('@'), "a placeholder is left: {formula}");
    // Ruby is no part of what the tests install.
    if let Ok(output) = Command::new("ruby").arg("-c").arg(out.join("paceline.rb")).output() {
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
#[ignore = "more: packs and unpacks 300 MB"]
fn smollm2_is_served_by_an_unpacked_archive() {
    let Some(model) = skip::smollm2("smollm2_is_served_by_an_unpacked_archive") else { return };
    let temp = temporary();
    let (out, to) = (temp.path().join("dist"), temp.path().join("elsewhere"));
    run(&mut script("dist.sh", &out));
    fs::create_dir(&to).expect("made");
    run(Command::new("tar").arg("-xzf").arg(only(&out, ".tar.gz")).arg("-C").arg(&to));
    let home = temp.path().join("home");
    // Of the cache of this machine only the model.
    let models = home.join(".cache/paceline/models");
    fs::create_dir_all(&models).expect("made");
    std::os::unix::fs::symlink(model, models.join("smollm2")).expect("linked");
    let mut unpacked = Installed::new(only(&to, "").join("bin"), home.clone());
    unpacked.settings.push(("XDG_CACHE_HOME", home.join(".cache").display().to_string()));
    unpacked.settings.push(("PACELINE_TARGET__MODEL", "smollm2".into()));
    let answer = unpacked.answers("What is the capital of France?");
    assert!(answer.contains("Paris"), "{answer}");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "more: packs and unpacks 300 MB"]
fn a_debian_package_is_installed_run_and_removed_with_nothing_left() {
    let Some(path) =
        skip::cargo_deb("a_debian_package_is_installed_run_and_removed_with_nothing_left")
    else {
        return;
    };
    let temp = temporary();
    let out = temp.path().join("dist");
    run(script("deb.sh", &out).env("PATH", path));
    let package = only(&out, ".deb");

    // A system of its own, of which dpkg alone writes the files. Its scripts run with DPKG_ROOT.
    let system = temp.path().join("system");
    fs::create_dir_all(system.join("var/lib/dpkg/info")).expect("made");
    fs::create_dir_all(system.join("var/lib/dpkg/updates")).expect("made");
    fs::write(system.join("var/lib/dpkg/status"), "").expect("written");
    let files = || {
        let listed = run(Command::new("find")
            .arg(&system)
            .args(["-not", "-type", "d", "-not", "-path", "*/var/*"]));
        listed.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let dpkg = || {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", system.display()));
        dpkg.args([
            "--force-not-root",
            "--force-script-chrootless",
            "--force-depends",
            "--log=/dev/null",
        ]);
        dpkg
    };
    run(dpkg().arg("--install").arg(&package));
    check_parts(&system.join("usr"));
    let names = run(dpkg().args(["--listfiles", "paceline"]));
    for name in [
        "/usr/bin/paceline",
        "/usr/lib/paceline/libmlx.so",
        "/usr/share/doc/paceline/copyright",
        "/usr/share/bash-completion/completions/paceline",
        "/usr/share/zsh/site-functions/_paceline",
        "/usr/share/fish/vendor_completions.d/paceline.fish",
        "/usr/share/man/man1/paceline-status.1.gz",
    ] {
        assert!(names.lines().any(|found| found == name), "{name}: {names}");
    }
    let installed = Installed::new(system.join("usr/bin"), temp.path().join("home"));
    installed.loads_its_own_libraries(&system);
    assert!(!installed.answers("Count from one to five.").is_empty());
    run(dpkg().args(["--purge", "paceline"]));
    assert_eq!(files(), Vec::<String>::new(), "left");
    assert!(
        !system.join("usr/lib/paceline").exists() && !system.join("usr/share/paceline").exists()
    );
}
