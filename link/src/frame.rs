//! Frames on the socket: a 4-byte little-endian length and a `LinkFrame` of that many bytes. Pure.

use paceline_proto::internal::v1::LinkFrame;
use prost::{DecodeError, Message as _};

use crate::wire::Message;

/// Longest message of a frame: contexts and requests of some ten thousand sessions.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// Bytes before the message.
pub const HEADER_BYTES: usize = 4;

/// Bytes that are no frame, or a message that makes none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than [`MAX_FRAME_BYTES`].
    #[error("a frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed")]
    TooLong {
        /// Bytes of its message.
        length: usize,
    },
    /// Bytes that are no protobuf message.
    #[error("a frame that cannot be read")]
    Unreadable(#[source] DecodeError),
    /// Fields that this version does not know, or fields that were given twice.
    #[error("a frame of {length} bytes of which {known} are known to this version")]
    Unknown {
        /// Bytes of its message.
        length: usize,
        /// Bytes of what was understood.
        known: usize,
    },
    /// No message.
    #[error("an empty frame")]
    Empty,
}

/// Appends a frame to `out`.
///
/// # Errors
/// [`FrameError::TooLong`]; nothing was appended then.
pub fn encode(message: Message, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let frame = LinkFrame { frame: Some(message) };
    let length = frame.encoded_len();
    if length > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong { length });
    }
    out.extend_from_slice(&(length as u32).to_le_bytes());
    frame.encode_raw(out);
    Ok(())
}

/// The first frame in `bytes` and how many of them it takes; `None` if it is not complete yet.
///
/// # Errors
/// It is too long, cannot be decoded, is empty, or has fields that this version does not know. An
/// overlong length is refused as soon as it is read, so the bytes that wait for the rest of a frame
/// are bounded.
pub fn decode(bytes: &[u8]) -> Result<Option<(Message, usize)>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*header) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong { length });
    }
    let Some(wire) = rest.get(..length) else { return Ok(None) };
    let frame = LinkFrame::decode(wire).map_err(FrameError::Unreadable)?;
    // prost skips unknown fields and keeps the last of repeated ones: such a frame is longer than
    // what was understood of it.
    let known = frame.encoded_len();
    if known != length {
        return Err(FrameError::Unknown { length, known });
    }
    let message = frame.frame.ok_or(FrameError::Empty)?;
    Ok(Some((message, HEADER_BYTES + length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::internal::v1::{
        Ack, Context, DraftRequest, DraftTokens, Feed, Hello, Proposal, ReadProgress, Refusal,
        RestoredPrefix, RetainedPages, SamplingRule, TensorRef, TokenDrafts, proposal,
    };
    use paceline_vocabulary::chain;
    use proptest::prelude::*;

    fn wire(frame: Message) -> Vec<u8> {
        let mut out = vec![];
        encode(frame, &mut out).expect("short enough");
        out
    }

    fn feed() -> Message {
        let tensor = TensorRef { number: 1, offset: 64, length: 8, rows: 1, columns: 2, r#type: 1 };
        Message::Feed(Feed {
            closed: vec![1, 2, u64::MAX],
            contexts: vec![
                Context { session: 3, rows: 1, fresh: true, ..Context::default() },
                Context::default(),
            ],
            hidden: Some(tensor),
            requests: vec![DraftRequest {
                session: 3,
                position: 1,
                block: 8,
                bonus_id: 5,
                sampling: Some(SamplingRule { temperature: -0.5, ..SamplingRule::default() }),
                ..DraftRequest::default()
            }],
            bonus: None,
            round: 4,
            retained: vec![RetainedPages { session: 2, first_page: 7, keys: vec![9; 64].into() }],
            restored: vec![RestoredPrefix { session: 3, key: vec![1; 32].into(), since: 0 }],
        })
    }

    fn frames() -> Vec<Message> {
        vec![
            feed(),
            Message::Ack(Ack { number: 9 }),
            Message::Ack(Ack::default()),
            Message::Hello(Hello { version: 1, token_digest: "ab".into(), ..Hello::default() }),
            Message::Progress(ReadProgress { sessions: vec![], missed: vec![3, u64::MAX] }),
            Message::Refusal(Refusal { reason: "expected 3, found 4".into() }),
            Message::Proposal(Proposal {
                round: 1,
                drafts: Some(proposal::Drafts::Tokens(TokenDrafts {
                    drafts: vec![DraftTokens { ids: vec![1, 0, 300], ..DraftTokens::default() }],
                })),
            }),
        ]
    }

    #[test]
    fn frames_are_decoded_one_after_another_and_incomplete_ones_wait() {
        let mut stream: Vec<u8> = frames().into_iter().flat_map(wire).collect();
        for expected in frames() {
            let (found, used) = decode(&stream).expect("fair").expect("complete");
            assert_eq!(found, expected);
            for short in 0..used {
                assert_eq!(decode(&stream[..short]), Ok(None));
            }
            stream.drain(..used);
        }
        assert!(stream.is_empty());
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused() {
        let table: [(&[u8], &str); 5] = [
            (&[0, 0, 0, 0], "an empty frame"),
            (&[0xff, 0xff, 0xff, 0xff], "at most 1048576"),
            (&[1, 0, 16, 0], "at most 1048576"),
            (&[2, 0, 0, 0, 0x0a, 0xff], "cannot be read"),
            (&[3, 0, 0, 0, 0x9a, 0x06, 0], "known to this version"),
        ];
        for (bytes, expected) in table {
            let error = chain(&decode(bytes).expect_err(expected));
            assert!(error.contains(expected), "{error}");
        }
        let long = Message::Refusal(Refusal { reason: "x".repeat(MAX_FRAME_BYTES) });
        let mut out = vec![7];
        encode(long, &mut out).expect_err("too long");
        assert_eq!(out, [7]);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
            let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
            framed.extend(&bytes);
            if let Ok(Some((_, used))) = decode(&framed) {
                prop_assert_eq!(used, framed.len());
            }
        }

        #[test]
        fn mutated_frames_never_panic_and_are_bounded(
            which in 0usize..6, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = wire(frames().swap_remove(which));
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            if let Ok(Some((frame, used))) = decode(&bytes) {
                prop_assert!(used <= bytes.len());
                prop_assert_eq!(wire(frame).len(), used);
            }
        }
    }
}
