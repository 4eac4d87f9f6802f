//! `grpc.reflection.v1`: describes to tools the RPCs of clients. Only the public contract: the
//! messages between our processes are not described.

use paceline_proto::DESCRIPTORS;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

/// The files of the public contract.
const PUBLIC: [&str; 1] = ["paceline/v1/inference.proto"];

/// Longest message, which has a name or an extension. Its bytes are not counted in the budget.
const MAX_MESSAGE_BYTES: usize = 1 << 10;

/// The descriptors of all that is served at the front.
fn descriptors() -> FileDescriptorSet {
    let mut all = Vec::new();
    for set in [
        DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    ] {
        let set = FileDescriptorSet::decode(set).expect("compiled in, and checked by a test");
        let ours = |name: &str| !name.starts_with("paceline/") || PUBLIC.contains(&name);
        all.extend(set.file.into_iter().filter(|file| ours(file.name())));
    }
    FileDescriptorSet { file: all }
}

/// The service.
pub(super) fn service() -> ServerReflectionServer<impl ServerReflection> {
    // It adds its own descriptors by itself.
    let mut set = descriptors();
    set.file.retain(|file| !file.package().starts_with("grpc.reflection."));
    tonic_reflection::server::Builder::configure()
        .register_file_descriptor_set(set)
        .build_v1()
        .expect("compiled in, and checked by a test")
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_services_of_the_front_are_described() {
        let set = descriptors();
        let services = set.file.iter().flat_map(|file| {
            file.service.iter().map(move |service| format!("{}.{}", file.package(), service.name()))
        });
        let mut services: Vec<String> = services.collect();
        services.sort();
        assert_eq!(
            services,
            [
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "paceline.v1.Inference",
                "vllm.grpc.engine.VllmEngine"
            ]
        );
        drop(service());
    }
}
