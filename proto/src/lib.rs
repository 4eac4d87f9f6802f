//! The contract between Paceline's processes and with its clients: messages and services of the
//! .proto files, the one table of reasons, words of enums, and limits of elements. Its codec
//! refuses unknown fields and messages over a limit. No behaviour.

pub mod convert;
pub mod ids;
pub mod limits;
pub mod report;
#[cfg(feature = "services")]
pub mod status;
#[cfg(feature = "services")]
pub mod strict;
#[cfg(test)]
mod wire_hash;
mod words;

/// The public package `paceline.v1`.
pub mod v1 {
    #![allow(
        missing_docs,
        clippy::all,
        reason = "generated; the .proto files carry the documentation"
    )]
    include!(concat!(env!("OUT_DIR"), "/paceline.v1.rs"));
}

/// `paceline.internal.v1`: between gateway, supervisor and workers.
pub mod internal {
    /// Version 1.
    pub mod v1 {
        #![allow(
            missing_docs,
            clippy::all,
            reason = "generated; the .proto files carry the documentation"
        )]
        include!(concat!(env!("OUT_DIR"), "/paceline.internal.v1.rs"));
    }
}

/// `vllm.grpc.engine`: the protocol by which a router drives this service. The nesting is that of the
/// package, by which generated code refers to `smg`.
pub mod vllm {
    /// The package `vllm.grpc`.
    pub mod grpc {
        /// The package `vllm.grpc.engine`.
        pub mod engine {
            #![allow(
                missing_docs,
                clippy::all,
                reason = "generated; the .proto files carry the documentation"
            )]
            include!(concat!(env!("OUT_DIR"), "/vllm.grpc.engine.rs"));
        }
    }
}

/// Messages that the router's protocols share.
pub mod smg {
    /// The package `smg.grpc`.
    pub mod grpc {
        /// The package `smg.grpc.common`.
        pub mod common {
            #![allow(
                missing_docs,
                clippy::all,
                reason = "generated; the .proto files carry the documentation"
            )]
            include!(concat!(env!("OUT_DIR"), "/smg.grpc.common.rs"));
        }
    }
}

/// Version of the program, and digest of the messages between our own processes (`wire_hash.rs`):
/// `0.1.0+0123456789abcdef`. A supervisor takes over only workers of its own build.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("PACELINE_WIRE_HASH"));

/// Encoded `FileDescriptorSet` of every .proto file here.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/paceline.bin"));
