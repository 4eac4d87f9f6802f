//! Compiles the .proto files with protox (no protoc needed) and keeps their descriptors for the strict decoder.

use protox::prost::Message as _;

const FILES: [&str; 8] = [
    "paceline/v1/inference.proto",
    "paceline/v1/operations.proto",
    "paceline/internal/v1/generation.proto",
    "paceline/internal/v1/worker.proto",
    "paceline/internal/v1/target.proto",
    "paceline/internal/v1/drafter.proto",
    "paceline/internal/v1/link.proto",
    "paceline/internal/v1/supervisor.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=paceline");
    let descriptors = protox::compile(FILES, ["."])?;
    #[expect(clippy::disallowed_methods, reason = "how cargo tells a build script where to write")]
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("paceline.bin"), descriptors.encode_to_vec())?;
    let mut prost = prost_build::Config::new();
    prost.enable_type_names().bytes(["."]);
    tonic_prost_build::configure().codec_path("crate::strict::StrictCodec").compile_fds_with_config(descriptors, prost)?;
    Ok(())
}
