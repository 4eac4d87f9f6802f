//! On Linux the workers' own `cblas_sgemm` is the one that libmlx is bound to, in the programs as
//! they are linked.
#![cfg(target_os = "linux")]

use paceline_tests::programs;

/// The dynamic linker prints what it binds, all at the start. What the program does then
/// does not matter.
#[test]
fn libmlx_is_bound_to_the_workers_own_products() {
    for name in ["paceline-target", "paceline-drafter"] {
        let program = programs().join(name);
        let output = std::process::Command::new(&program)
            .arg("--help")
            .env("LD_BIND_NOW", "1")
            .env("LD_DEBUG", "bindings")
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        let bound: Vec<&str> = said
            .lines()
            .filter(|line| line.contains("symbol `cblas_sgemm'") && line.contains("libmlx.so"))
            .collect();
        assert!(
            !bound.is_empty(),
            "{name}: the dynamic linker does not speak of libmlx's cblas_sgemm"
        );
        for line in bound {
            assert!(
                line.contains(&format!(" to {} ", program.display())),
                "{name}: bound to another: {line}"
            );
        }
    }
}
