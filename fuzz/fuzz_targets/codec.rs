//! Bytes of a client or of another process are refused with a reason, or are a message within the
//! limits of its elements. Encoding that message and decoding it again gives the same bytes.
//! Conversations and prompts are checked on, as the gateway does: JSON in them too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_proto::internal::v1::{SubmitRequest, TokenBatch};
use paceline_proto::limits::{MAX_TOKEN_IDS, MAX_TOOLS, MAX_TURNS};
use paceline_proto::strict::decode;
use paceline_proto::v1::{ChatRequest, CountTokensRequest, GenerateRequest, GenerateResponse};
use paceline_protocols::grpc;
use paceline_protocols::inference::error::InferenceError;
use paceline_protocols::inference::input::RequestInput;
use paceline_protocols::inference::request;
use paceline_text::images::ReservedTokens;
use prost::{Message, Name};

/// Decodes a message, encodes it, and decodes the result.
fn message<M: Message + Name + Default>(wire: &[u8]) -> Option<M> {
    match decode::<M>(wire.to_vec().into()) {
        Ok(message) => {
            let encoded = message.encode_to_vec();
            let again = decode::<M>(encoded.clone().into()).expect("it was a message");
            assert_eq!(again.encode_to_vec(), encoded);
            Some(message)
        }
        Err(status) => {
            assert!(!status.message().is_empty());
            None
        }
    }
}

/// Checks a request as the gateway does.
fn check(input: Result<RequestInput, InferenceError>) {
    let checked = input.and_then(|input| request::check(input, ReservedTokens::new(None)));
    assert!(checked.map_err(|error| error.message).err().is_none_or(|words| !words.is_empty()));
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, wire)) = bytes.split_first() else { return };
    match kind % 6 {
        0 => {
            if let Some(chat) = message::<ChatRequest>(wire) {
                assert!(
                    chat.messages.len() <= MAX_TURNS as usize
                        && chat.tools.len() <= MAX_TOOLS as usize
                );
                check(grpc::decode::chat(chat));
            }
        }
        1 => {
            if let Some(generate) = message::<GenerateRequest>(wire) {
                check(grpc::decode::generate(generate));
            }
        }
        2 => drop(message::<CountTokensRequest>(wire)),
        3 => drop(message::<GenerateResponse>(wire)),
        4 => {
            if let Some(SubmitRequest { generation: Some(generation), .. }) = message(wire) {
                assert!(generation.prompt_ids.len() <= 2 * MAX_TOKEN_IDS as usize);
            }
        }
        _ => drop(message::<TokenBatch>(wire)),
    }
});
