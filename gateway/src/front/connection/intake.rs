//! How the bytes of a body are counted in the one budget (`limits.body_bytes`) before they come.
//!
//! A body takes bytes for its whole length when the length is known: from `content-length`, or from
//! the first five bytes of a gRPC message. A body without a length takes a mebibyte when it has more
//! than [`FREE_BYTES`], and the longest length when that is full. Until the bytes are there, the body
//! is not read, so that they wait in the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use paceline_protocols::inference::error::{Result, refuse};

use crate::inference::admission::{ByteHold, ByteKind, FREE_BYTES, SMALL_BYTES, TakeBytes};

/// Bytes before a message of gRPC: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// As many bytes as the headers say; `None` if they say nothing.
    Declared(Option<u64>),
    /// That of one message of gRPC, which says itself how long it is.
    Message,
    /// The service that reads the body takes no long ones. They are not counted.
    Short,
}

impl BodyLength {
    /// The length in these headers of HTTP.
    pub fn of(headers: &HeaderMap) -> Self {
        let length = headers.get(CONTENT_LENGTH);
        Self::Declared(length.and_then(|value| value.to_str().ok()?.parse().ok()))
    }
}

/// The bytes of one body.
#[derive(Debug)]
pub struct Intake {
    hold: Arc<ByteHold>,
    length: BodyLength,
    /// The longest body (`limits.max_message_bytes`).
    most: u64,
    /// The first bytes of a message of gRPC.
    prefix: Vec<u8>,
    received: u64,
    granted: u64,
    taking: Option<TakeBytes>,
}

impl Intake {
    /// For a body of this length, of at most `most` bytes, which are held by `hold`.
    pub fn new(hold: Arc<ByteHold>, length: BodyLength, most: u64) -> Self {
        Self { hold, length, most, prefix: vec![], received: 0, granted: 0, taking: None }
    }

    /// Ready when the next bytes may be received.
    pub fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(taking) = &mut self.taking {
                ready!(Pin::new(taking).poll(context));
                self.taking = None;
            }
            let Some((kind, bytes)) = self.needed() else { return Poll::Ready(()) };
            self.granted += bytes;
            self.taking = Some(self.hold.take(kind, bytes));
        }
    }

    /// Kind and number of bytes that the body needs in the budget before its next bytes.
    fn needed(&self) -> Option<(ByteKind, u64)> {
        let small = SMALL_BYTES.min(self.most);
        match self.length() {
            // Who reads a longer body than may be refuses it.
            Some(length) if length <= FREE_BYTES || length > self.most || self.granted > 0 => None,
            Some(length) if length <= SMALL_BYTES => Some((ByteKind::Small, length)),
            Some(length) => Some((ByteKind::Large, length)),
            None if self.length == BodyLength::Short || self.received < FREE_BYTES => None,
            None if self.granted == 0 => Some((ByteKind::Small, small)),
            None if self.granted < self.received && self.granted < self.most => {
                Some((ByteKind::Large, self.most - self.granted))
            }
            None => None,
        }
    }

    /// The length, if it is known.
    fn length(&self) -> Option<u64> {
        match self.length {
            BodyLength::Declared(length) => length,
            BodyLength::Short => None,
            BodyLength::Message => {
                let length = self.prefix.get(1..PREFIX_BYTES)?.try_into().ok()?;
                Some(u64::from(u32::from_be_bytes(length)))
            }
        }
    }

    /// Notes bytes that came.
    ///
    /// # Errors
    /// They are more than one message of gRPC.
    pub fn received(&mut self, data: &[u8]) -> Result<()> {
        self.received = self.received.saturating_add(data.len() as u64);
        if self.length != BodyLength::Message {
            return Ok(());
        }
        let missing = PREFIX_BYTES.saturating_sub(self.prefix.len()).min(data.len());
        self.prefix.extend_from_slice(&data[..missing]);
        match self.length() {
            Some(length) if self.received > length.saturating_add(PREFIX_BYTES as u64) => {
                refuse("message", "one message in a request", "more bytes after it")
            }
            _ => Ok(()),
        }
    }

    /// The body is whole: what it did not need is given back.
    pub fn ended(&mut self) {
        self.taking = None;
        self.hold.shrink(self.received);
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker_ref;

    use super::*;
    use crate::inference::admission::ByteBudget;
    use crate::turns::Party;

    const MIB: u64 = 1 << 20;

    struct Body {
        budget: ByteBudget,
        intake: Intake,
    }

    impl Body {
        fn new(length: BodyLength) -> Self {
            let budget = ByteBudget::new(256 * MIB);
            let hold = budget.hold(Party::default());
            Self { budget, intake: Intake::new(hold, length, 16 * MIB) }
        }

        /// Bytes that are held for it once it may go on.
        fn held(&mut self) -> u64 {
            let ready = self.intake.poll_ready(&mut Context::from_waker(noop_waker_ref()));
            assert!(ready.is_ready());
            self.budget.figures().bodies
        }

        fn receive(&mut self, bytes: u64) -> u64 {
            self.intake.received(&vec![0; bytes as usize]).expect("fine");
            self.held()
        }
    }

    #[test]
    fn a_body_with_a_length_is_counted_before_its_first_byte() {
        for (length, held) in
            [(0, 0), (FREE_BYTES, 0), (100_000, 100_000), (15 * MIB, 15 * MIB), (17 * MIB, 0)]
        {
            let mut body = Body::new(BodyLength::Declared(Some(length)));
            assert_eq!(body.held(), held);
            assert_eq!(body.receive(length.min(MIB)), held, "all of it is there");
        }
    }

    #[test]
    fn a_body_without_a_length_is_counted_as_it_grows_and_gives_back_what_it_does_not_need() {
        let mut body = Body::new(BodyLength::Declared(None));
        assert_eq!((body.held(), body.receive(1_000)), (0, 0));
        assert_eq!(body.receive(FREE_BYTES), MIB);
        assert_eq!(body.receive(MIB), 16 * MIB);
        assert_eq!(body.receive(MIB), 16 * MIB);
        body.intake.ended();
        assert_eq!(body.budget.figures().bodies, 2 * MIB + FREE_BYTES + 1_000);
        drop(body.intake);
        assert_eq!(body.budget.figures().bodies, 0);
    }

    #[test]
    fn a_message_of_grpc_says_its_length_itself() {
        let mut body = Body::new(BodyLength::Message);
        let length = (3 * MIB as u32).to_be_bytes();
        body.intake.received(&[0, length[0], length[1]]).expect("a part");
        assert_eq!(body.held(), 0);
        body.intake.received(&[length[2], length[3], 7]).expect("the rest of it");
        assert_eq!(body.held(), 3 * MIB);
        assert_eq!(body.receive(3 * MIB - 1), 3 * MIB);
        let error = body.intake.received(&[0]).expect_err("a byte more");
        assert!(error.message.contains("one message in a request"), "{error}");
    }

    #[test]
    fn bodies_of_services_that_take_no_long_ones_are_not_counted() {
        let mut body = Body::new(BodyLength::Short);
        assert_eq!((body.held(), body.receive(2 * MIB)), (0, 0));
    }
}
