//! The order of the crate's modules (see the head of `src/lib.rs`): a module imports only modules
//! before it, so that there is no circle.

use std::fs;
use std::path::{Path, PathBuf};

/// Every module, each after all that it may import.
const ORDER: [&str; 19] = [
    "error",
    "device",
    "exact_lanes",
    "id_cell",
    "products",
    "info",
    "segment",
    "testing",
    "load",
    "transfer",
    "hidden_states",
    "layers",
    "batch",
    "kv",
    "sample",
    "vision",
    "families",
    "draft",
    "lib",
];

/// Imports that the order of the lines would allow, and the head of `lib.rs` does not: modules of
/// one line that stand beside each other.
const APART: [(&str, &str); 6] = [
    ("kv", "batch"),
    ("sample", "batch"),
    ("sample", "kv"),
    ("vision", "batch"),
    ("vision", "kv"),
    ("vision", "sample"),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).expect("a folder of the crate") {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// The module at the top of the crate that a file belongs to.
fn module_of(file: &Path, src: &Path) -> String {
    let inside = file.strip_prefix(src).expect("a file of the crate");
    let first = inside.iter().next().expect("a name").to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Names after `crate::` in code; comments may refer to any module.
fn imports(text: &str) -> impl Iterator<Item = String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect())
}

#[test]
fn modules_import_only_modules_before_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let place = |module: &str| {
        ORDER.iter().position(|other| *other == module).unwrap_or_else(|| {
            panic!("expected module {module} in the order that this test checks, found it nowhere")
        })
    };
    for file in sources(&src) {
        let module = module_of(&file, &src);
        for import in imports(&fs::read_to_string(&file).expect("text")) {
            let what = format!("{} imports {import}", file.display());
            assert!(place(&import) <= place(&module), "{what}, which comes after it");
            assert!(!APART.contains(&(module.as_str(), import.as_str())), "{what} beside it");
        }
    }
}
