//! The body of an answer that is not streamed. Its bytes count in the budget, and its request keeps
//! its place, until the client has read it. A client that takes none of it for `limits.unread_s`,
//! and at most for twice as long, loses it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use paceline_process::task;
use tokio::task::AbortHandle;

use super::pieces::Pieces;
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
    /// How long the client may take none of it: `limits.unread_s`.
    pub limit: Duration,
}

#[derive(Debug)]
struct Left {
    /// Pieces that the client has not taken; `None` if they were dropped unread.
    pieces: Option<Pieces>,
    _held: Option<HeldAnswer>,
    /// How often the connection asked for more.
    asked: u64,
}

#[derive(Debug)]
struct WholeBody {
    left: Arc<Mutex<Left>>,
    watcher: AbortHandle,
}

/// The body with this text.
pub(super) fn body(text: Pieces, held: HeldAnswer) -> Body {
    let limit = held.limit;
    held.room.shrink(text.bytes() as u64);
    let left = Left { pieces: Some(text), _held: Some(held), asked: 0 };
    let left = Arc::new(Mutex::new(left));
    let watched = Arc::downgrade(&left);
    let watcher = task::spawn("unread whole answer", async move {
        let mut before = None;
        loop {
            tokio::time::sleep(limit).await;
            let Some(left) = watched.upgrade() else { return };
            let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
            if before.replace(left.asked) == Some(left.asked) {
                tracing::debug!("a whole answer was not read");
                (left.pieces, left._held) = (None, None);
                return;
            }
        }
    });
    Body::new(WholeBody { left, watcher: watcher.abort_handle() })
}

impl HttpBody for WholeBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.asked += 1;
        let Some(pieces) = &mut left.pieces else {
            return Poll::Ready(Some(Err(axum::Error::new("the answer was not read in time"))));
        };
        Poll::Ready(pieces.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let exact = |pieces: &Pieces| SizeHint::with_exact(pieces.bytes() as u64);
        left.pieces.as_ref().map_or_else(SizeHint::default, exact)
    }
}

impl Drop for WholeBody {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use serde_json::Value;

    use super::*;
    use crate::front::http::pieces::WholeAnswer;
    use crate::inference::admission::ByteBudget;

    const LIMIT: Duration = Duration::from_secs(60);
    const MIB: usize = 1 << 20;

    fn answer(bytes: usize) -> (ByteBudget, Body) {
        let budget = ByteBudget::new(64 << 20);
        let room = budget.hold(Party::default());
        room.grow_answer(bytes as u64).expect("room");
        let text = WholeAnswer::from(Value::from("x".repeat(bytes / 2 - 2))).pieces();
        (
            budget,
            body(text, HeldAnswer { room, party: Party::default(), _slot: None, limit: LIMIT }),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_whole_answer_is_counted_until_it_is_read() {
        let (budget, body) = answer(2 * MIB);
        assert_eq!(budget.figures().answers, MIB as u64, "as long as it was written");
        assert_eq!(body.size_hint().exact(), Some(MIB as u64));
        let mut frames = body.into_data_stream();
        let mut count = 0;
        while let Some(frame) = frames.next().await {
            count += frame.expect("fine").len();
            // A slow reader that reads on.
            tokio::time::sleep(LIMIT / 2).await;
        }
        assert_eq!(count, MIB);
        drop(frames);
        assert_eq!(budget.figures().answers, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_whole_answer_that_is_not_read_is_dropped_after_its_time() {
        let (budget, body) = answer(2 * MIB);
        let mut frames = body.into_data_stream();
        assert!(frames.next().await.expect("begun").is_ok());
        tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
        assert!(budget.figures().answers > 0);
        tokio::time::sleep(LIMIT + Duration::from_secs(2)).await;
        assert_eq!(budget.figures().answers, 0);
        let error = frames.next().await.expect("an end").expect_err("not whole");
        assert!(error.to_string().contains("not read in time"), "{error}");
    }
}
