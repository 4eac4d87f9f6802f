//! A prost codec that refuses a message before it is decoded. It refuses field numbers that our
//! .proto files do not have, at any depth (I5), and more elements than [`crate::limits`] allows.
//!
//! prost skips unknown fields in silence. A client that sets a field of a newer contract would get
//! an answer that ignores it; here it gets INVALID_ARGUMENT that names the message and the number.
//! prost also decodes whatever number of elements a message holds; here they are counted on the
//! wire first. Unknown enum values are kept by prost as numbers and refused by the code that reads
//! the field.

mod walk;

use std::fmt;
use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use crate::status::{Reason, ReasonStatus as _, Refusal};
use walk::Problem;

/// Checks `wire` and decodes it as a message of type `U`.
///
/// # Errors
/// INVALID_ARGUMENT: a field that is not known, more elements than a limit allows, or no message of
/// this type.
pub fn decode<U: Message + Name + Default>(wire: Bytes) -> Result<U, Status> {
    walk::check(&U::full_name(), &wire)?;
    U::decode(wire).map_err(|error| {
        Reason::InvalidArgument.status(format!("expected a message {}: {error}", U::full_name()))
    })
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Unknown { number, message } => Reason::InvalidArgument.status(format!(
                "field number {number} of {message} is not known to this version; leave it out or update the service"
            )),
            Problem::TooDeep { field, limit } => {
                let what = format!("{field}: expected at most {limit} levels of messages, found more");
                Refusal::new(Reason::InvalidArgument, what).field(&field).fact("limit", limit).into()
            }
            Problem::TooMany { field, limit, found } => {
                let what = format!("{field}: expected at most {limit} elements, found {found}; send fewer");
                Refusal::new(Reason::InvalidArgument, what).field(&field).fact("limit", limit).fact("found", found).into()
            }
            Problem::TooManyInAll { field, kind, limit } => {
                let what = format!("{field}: expected at most {limit} {kind} in all fields of a message, found more; send fewer");
                Refusal::new(Reason::InvalidArgument, what).field(&field).fact("limit", limit).into()
            }
        }
    }
}

/// A type that the codec makes from a message's bytes.
pub trait FromWire: Sized {
    /// The message in `wire`.
    ///
    /// # Errors
    /// The bytes are no message that is served.
    fn from_wire(wire: Bytes) -> Result<Self, Status>;
}

impl<U: Message + Name + Default> FromWire for U {
    fn from_wire(wire: Bytes) -> Result<Self, Status> {
        decode(wire)
    }
}

/// A received message that is still bytes. The codec runs on the threads that serve connections; a
/// service that takes this in place of `U` chooses the thread that decodes a large message.
#[derive(Clone)]
pub struct Deferred<U> {
    wire: Bytes,
    message: PhantomData<fn() -> U>,
}

impl<U> fmt::Debug for Deferred<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prompts are never logged (I9).
        write!(f, "Deferred({} bytes)", self.wire.len())
    }
}

impl<U> FromWire for Deferred<U> {
    fn from_wire(wire: Bytes) -> Result<Self, Status> {
        Ok(Self { wire, message: PhantomData })
    }
}

impl<U> Deferred<U> {
    /// Bytes of the encoded message.
    pub fn wire_bytes(&self) -> usize {
        self.wire.len()
    }
}

impl<U: Message + Name + Default> Deferred<U> {
    /// The message.
    ///
    /// # Errors
    /// See [`decode`].
    pub fn decode(self) -> Result<U, Status> {
        decode(self.wire)
    }
}

/// The codec of all our services: encodes as prost does, decodes strictly.
#[derive(Debug, Clone, Copy)]
pub struct StrictCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for StrictCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for StrictCodec<T, U>
where
    T: Message + Send + 'static,
    U: FromWire + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = StrictDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        StrictDecoder(PhantomData)
    }
}

/// Decodes one message type strictly.
#[derive(Debug, Clone, Copy)]
pub struct StrictDecoder<U>(PhantomData<U>);

impl<U: FromWire> Decoder for StrictDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::from_wire(src.copy_to_bytes(src.remaining())).map(Some)
    }
}

#[cfg(test)]
mod tests;
