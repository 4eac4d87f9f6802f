//! The methods of gRPC that are described.

use paceline_proto::DESCRIPTORS;
use prost::Message as _;
use prost_types::FileDescriptorSet;

/// Every method there is a description of, served at the front or not: package.Service/Method.
pub fn methods() -> Vec<String> {
    let sets = [
        DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    ];
    let sets = sets.map(|set| FileDescriptorSet::decode(set).expect("compiled in"));
    let mut methods = Vec::new();
    for file in sets.iter().flat_map(|set| &set.file) {
        for service in &file.service {
            methods.extend(
                service.method.iter().map(|method| {
                    format!("{}.{}/{}", file.package(), service.name(), method.name())
                }),
            );
        }
    }
    methods
}
