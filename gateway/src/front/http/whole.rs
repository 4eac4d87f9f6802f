//! The body of an answer that is not streamed. Its bytes count in the budget, and its request keeps
//! its place, until the client has read it. [`crate::front::connection::track`] drops it if the
//! client does not.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use paceline_protocols::pieces::Pieces;

use crate::inference::admission::{ByteHold, RequestSlot};
use crate::turns::Party;

/// Resources that a whole answer holds until it is read.
#[derive(Debug)]
pub struct HeldAnswer {
    /// Bytes of the answer in the budget.
    pub room: Arc<ByteHold>,
    /// Party whose turns the answer has.
    pub party: Party,
    /// The request's slot; `None` if no request is counted.
    pub _slot: Option<Arc<RequestSlot>>,
}

#[derive(Debug)]
struct WholeBody {
    /// Pieces that the client has not taken.
    left: Pieces,
    _held: HeldAnswer,
}

/// The body with this text.
pub(super) fn body(text: Pieces, held: HeldAnswer) -> Body {
    held.room.shrink(text.bytes() as u64);
    Body::new(WholeBody { left: text, _held: held })
}

impl HttpBody for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.left.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.bytes() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use serde_json::Value;

    use paceline_protocols::vllm::encode::AnswerRoom as _;

    use super::*;
    use crate::inference::admission::ByteBudget;
    use paceline_protocols::pieces::WholeAnswer;

    const MIB: usize = 1 << 20;

    fn answer(bytes: usize) -> (ByteBudget, Body) {
        let budget = ByteBudget::new(64 << 20);
        let room = budget.hold(Party::default());
        room.grow_answer(bytes as u64).expect("room");
        let text = WholeAnswer::from(Value::from("x".repeat(bytes / 2 - 2))).pieces();
        (budget, body(text, HeldAnswer { room, party: Party::default(), _slot: None }))
    }

    #[tokio::test]
    async fn a_whole_answer_is_counted_until_it_is_read() {
        let (budget, body) = answer(2 * MIB);
        assert_eq!(budget.figures().answers, MIB as u64, "as long as it was written");
        assert_eq!(body.size_hint().exact(), Some(MIB as u64));
        let mut frames = body.into_data_stream();
        let mut count = 0;
        while let Some(frame) = frames.next().await {
            count += frame.expect("fine").len();
        }
        assert_eq!(count, MIB);
        drop(frames);
        assert_eq!(budget.figures().answers, 0);
    }
}
