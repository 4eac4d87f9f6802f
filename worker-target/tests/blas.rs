//! On Linux the program offers libmlx a `cblas_sgemm` of its own; that libmlx takes it where it is offered is tested in models.
#![cfg(all(target_os = "linux", feature = "mlx"))]

#[test]
fn the_program_exports_our_products() {
    // Of the binutils, as is what the compiler links with.
    let program = env!("CARGO_BIN_EXE_paceline-target");
    let output = std::process::Command::new("nm").args(["-D", "--defined-only", program]).output().expect("nm runs");
    let symbols = String::from_utf8_lossy(&output.stdout);
    assert!(symbols.lines().any(|line| line.ends_with(" T cblas_sgemm")), "not among the exported symbols:\n{symbols}");
}
