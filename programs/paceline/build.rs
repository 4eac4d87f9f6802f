//! Makes the names under which the program is a process of the service, or the bench.

include!("../links.rs");

fn main() {
    link_names("paceline", &["paceline-supervisor", "paceline-gateway", "paceline-bench"]);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../links.rs");
}
