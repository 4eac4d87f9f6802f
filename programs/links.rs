// The names by which one program is started as several, made beside it while it is built. In the build scripts of the
// packages that have such a program:
//
//     include!("../links.rs");
//
//     fn main() {
//         link_names("paceline", &["paceline-gateway"]);
//     }
//
// scripts/install.sh makes the same names where the programs are installed.

/// Makes a symbolic link to `program` for each of the names in the directory where cargo puts programs:
/// `OUT_DIR` is `<that directory>/build/<package>/out`. The program itself may not be there yet.
#[allow(clippy::disallowed_methods, reason = "a build script's arguments are environment variables")]
fn link_names(program: &str, names: &[&str]) {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let dir = out.ancestors().nth(3).expect("cargo's folders");
    for name in names {
        let link = dir.join(name);
        if std::fs::read_link(&link).is_ok_and(|there| there.as_os_str() == program) {
            continue;
        }
        // What an earlier version of the project built under this name.
        let _ = std::fs::remove_file(&link);
        if let Err(error) = std::os::unix::fs::symlink(program, &link) {
            panic!("cannot make the link {}: {error}", link.display());
        }
    }
}
