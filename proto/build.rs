//! Compiles the .proto files with protox (no protoc needed), keeps their descriptors for the strict
//! decoder, and sets `PACELINE_WIRE_HASH`, the digest of the internal messages.

#[path = "src/wire_hash.rs"]
mod wire_hash;

use prost_build::{Service, ServiceGenerator};
use protox::prost::Message as _;

/// Files of the contract with clients and operators.
const PUBLIC: [&str; 2] = ["paceline/v1/inference.proto", "paceline/v1/operations.proto"];

/// Files of the protocol by which a router of others drives this service.
const ROUTER: [&str; 2] = ["vllm/common.proto", "vllm/engine.proto"];

/// Messages whose fields are their JSON as they are, in the service's status (`src/convert/service.rs`),
/// and their attributes. A schema is for `docs/openapi.json`.
const JSON: [(&str, &str); 6] = [
    (".paceline.v1.ImageLimits", "#[derive(serde::Serialize)]"),
    (".paceline.v1.PolicySetting", "#[derive(serde::Serialize)]"),
    (
        ".paceline.v1.RefusedDrafter",
        "#[derive(serde::Serialize, utoipa::ToSchema)]\n#[schema(as = RefusedDrafterReport)]",
    ),
    (
        ".paceline.v1.RequestsStatus",
        "#[derive(serde::Serialize, utoipa::ToSchema)]\n#[schema(as = RequestsReport)]",
    ),
    (".paceline.v1.RoutingBucket", "#[derive(serde::Serialize)]"),
    (".paceline.v1.StepCost", "#[derive(serde::Serialize)]"),
];

/// Files of the messages between our own processes.
const INTERNAL: [&str; 6] = [
    "paceline/internal/v1/generation.proto",
    "paceline/internal/v1/worker.proto",
    "paceline/internal/v1/target.proto",
    "paceline/internal/v1/drafter.proto",
    "paceline/internal/v1/link.proto",
    "paceline/internal/v1/supervisor.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=paceline");
    println!("cargo:rerun-if-changed=vllm");
    let internal = protox::compile(INTERNAL, ["."])?;
    println!("cargo:rustc-env=PACELINE_WIRE_HASH={}", wire_hash::wire_hash(internal));
    let descriptors = protox::compile(PUBLIC.iter().chain(&ROUTER).chain(&INTERNAL), ["."])?;
    #[expect(clippy::disallowed_methods, reason = "how cargo tells a build script where to write")]
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("paceline.bin"), descriptors.encode_to_vec())?;
    let mut prost = prost_build::Config::new();
    prost.enable_type_names().bytes(["."]).out_dir(out);
    if cfg!(feature = "services") {
        prost.service_generator(Box::new(Services::new()));
    }
    for (message, attributes) in JSON {
        prost.type_attribute(message, attributes);
    }
    // It is the name of the setting, which has the rest of the message.
    prost.field_attribute(".paceline.v1.PolicySetting.key", "#[serde(skip)]");
    prost.compile_fds(descriptors)?;
    Ok(())
}

/// Requests that the server's side gets as bytes: they may be large, and the service decodes them
/// off the threads that serve connections. Clients send the plain message. Each has the Rust path of
/// its package.
const DEFERRED: [(&str, &str, &str); 4] = [
    ("paceline.v1", "GenerateRequest", "crate::v1"),
    ("paceline.v1", "ChatRequest", "crate::v1"),
    ("paceline.v1", "CountTokensRequest", "crate::v1"),
    ("vllm.grpc.engine", "GenerateRequest", "crate::vllm::grpc::engine"),
];

/// Generates the two sides of a service, which differ in the type of a request.
struct Services {
    client: Box<dyn ServiceGenerator>,
    server: Box<dyn ServiceGenerator>,
}

impl Services {
    fn new() -> Self {
        let side = || tonic_prost_build::configure().codec_path("crate::strict::StrictCodec");
        Self {
            client: side().build_server(false).service_generator(),
            server: side().build_client(false).service_generator(),
        }
    }
}

impl ServiceGenerator for Services {
    fn generate(&mut self, mut service: Service, buffer: &mut String) {
        self.client.generate(service.clone(), buffer);
        for method in &mut service.methods {
            let deferred = DEFERRED.iter().find(|(package, message, _)| {
                *package == service.package && *message == method.input_type
            });
            if let Some((_, message, path)) = deferred {
                method.input_type = format!("crate::strict::Deferred<{path}::{message}>");
            }
        }
        self.server.generate(service, buffer);
    }
}
