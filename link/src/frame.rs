//! Frames on the socket: a 4-byte little-endian length and a `LinkFrame` of so many bytes. Pure.

use paceline_proto::internal::v1::LinkFrame;
use prost::Message as _;

/// What a frame says.
pub type Frame = paceline_proto::internal::v1::link_frame::Frame;

/// Longest message of a frame: contexts and wants of some ten thousand sessions.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// Bytes before the message.
pub const HEADER_BYTES: usize = 4;

/// Appends a frame to `out`.
///
/// # Errors
/// It is longer than [`MAX_FRAME_BYTES`]; nothing was appended.
pub fn encode(frame: Frame, out: &mut Vec<u8>) -> Result<(), String> {
    let frame = LinkFrame { frame: Some(frame) };
    let length = frame.encoded_len();
    if length > MAX_FRAME_BYTES {
        return Err(format!("a frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed"));
    }
    out.extend_from_slice(&(length as u32).to_le_bytes());
    frame.encode(out).map_err(|error| error.to_string())
}

/// The first frame in `bytes` and how many of them it takes; `None` if it is not complete yet.
///
/// # Errors
/// It is too long, cannot be decoded, is empty, or has fields this version does not know. An
/// overlong length is refused as soon as it is read, so what waits for the rest of a frame is
/// bounded.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, String> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*header) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(format!("a frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed"));
    }
    let Some(wire) = rest.get(..length) else { return Ok(None) };
    let message =
        LinkFrame::decode(wire).map_err(|error| format!("a frame that cannot be read: {error}"))?;
    // Fields that prost skips in silence, and fields given twice, make a frame longer than what was
    // understood of it.
    let understood = message.encoded_len();
    if understood != length {
        return Err(format!(
            "a frame of {length} bytes of which {understood} are known to this version"
        ));
    }
    let frame = message.frame.ok_or("an empty frame")?;
    Ok(Some((frame, HEADER_BYTES + length)))
}

/// Its name in link.proto, for messages.
pub fn name(frame: &Frame) -> &'static str {
    match frame {
        Frame::Hello(_) => "Hello",
        Frame::Welcome(_) => "Welcome",
        Frame::Refusal(_) => "Refusal",
        Frame::MaskRow(_) => "MaskRow",
        Frame::Feed(_) => "Feed",
        Frame::Proposal(_) => "Proposal",
        Frame::Reach(_) => "Reach",
        Frame::Ack(_) => "Ack",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::internal::v1::{
        Ack, Context, Draft, Feed, Hello, Keep, Proposal, Reach, Recall, Refusal, TensorRef, Want,
    };
    use proptest::prelude::*;

    fn wire(frame: Frame) -> Vec<u8> {
        let mut out = vec![];
        encode(frame, &mut out).expect("short enough");
        out
    }

    fn feed() -> Frame {
        let tensor = TensorRef { number: 1, offset: 64, length: 8, rows: 1, columns: 2, r#type: 1 };
        Frame::Feed(Feed {
            closed: vec![1, 2, u64::MAX],
            contexts: vec![
                Context { session: 3, position: 0, rows: 1, fresh: true },
                Context::default(),
            ],
            taps: Some(tensor),
            wants: vec![Want {
                session: 3,
                position: 1,
                block: 8,
                bonus_id: 5,
                temperature: -0.5,
                ..Want::default()
            }],
            bonus: None,
            round: 4,
            keeps: vec![Keep { session: 2, first_page: 7, keys: vec![9; 64].into() }],
            recalls: vec![Recall { session: 3, key: vec![1; 32].into(), since: 0 }],
        })
    }

    fn frames() -> Vec<Frame> {
        vec![
            feed(),
            Frame::Ack(Ack { number: 9 }),
            Frame::Ack(Ack::default()),
            Frame::Hello(Hello { version: 1, tokenizer_sha256: "ab".into(), ..Hello::default() }),
            Frame::Reach(Reach { sessions: vec![], missed: vec![3, u64::MAX] }),
            Frame::Refusal(Refusal { reason: "expected 3, found 4".into() }),
            Frame::Proposal(Proposal {
                round: 1,
                drafts: vec![Draft { ids: vec![1, 0, 300], ..Draft::default() }],
                hidden: None,
            }),
        ]
    }

    #[test]
    fn frames_come_back_one_after_another_and_incomplete_ones_wait() {
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
    fn what_is_no_frame_is_refused() {
        let table: [(&[u8], &str); 5] = [
            (&[0, 0, 0, 0], "an empty frame"),
            (&[0xff, 0xff, 0xff, 0xff], "at most 1048576"),
            (&[1, 0, 16, 0], "at most 1048576"),
            (&[2, 0, 0, 0, 0x0a, 0xff], "cannot be read"),
            (&[3, 0, 0, 0, 0x9a, 0x06, 0], "known to this version"),
        ];
        for (bytes, expected) in table {
            let error = decode(bytes).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
        let long = Frame::Refusal(Refusal { reason: "x".repeat(MAX_FRAME_BYTES) });
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
