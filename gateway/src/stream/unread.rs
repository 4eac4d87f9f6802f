//! A reader that stops reading is cut. An answer is pulled by its client: what a client leaves
//! unread fills its own window, then ours towards the supervisor, and behind them the target joins
//! what it has; nothing here queues. So all there is to see is that a message was handed on, or
//! that there is another, and that nobody came for it. After so long of that the answer is let go
//! of, with all that it holds below; whoever comes back for it finds the terminal status.

use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::Stream;
use paceline_process::clock::monotonic_ns;
use paceline_process::task;
use paceline_proto::status::{Reason, Refusal};
use paceline_proto::v1::GenerateResponse;
use tokio::task::AbortHandle;
use tonic::Status;

use super::Answer;

type Messages = Pin<Box<dyn Stream<Item = Result<GenerateResponse, Status>> + Send>>;

/// An answer on its way to its reader.
#[derive(Debug)]
pub struct Unread {
    shared: Arc<Mutex<Inner>>,
    watcher: AbortHandle,
}

struct Inner {
    /// `None` behind the end.
    messages: Option<Messages>,
    /// Since when a message is with the reader who has not come for the next one, by the monotonic
    /// clock.
    handed_ns: Option<i64>,
    bell: Arc<Bell>,
    /// What the reader is told who was cut.
    over: Option<Status>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("handed_ns", &self.handed_ns)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

/// Rings when there is something to come for.
#[derive(Debug, Default)]
struct Bell {
    /// Since when, by the monotonic clock; 0: it did not ring since the reader came last.
    rung_ns: AtomicI64,
    reader: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // The first time counts.
        let _ =
            self.rung_ns.compare_exchange(0, monotonic_ns(), Ordering::Relaxed, Ordering::Relaxed);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Unread {
    /// `answer`, for a reader who may leave it unread for `limit`.
    pub fn watch(answer: Answer, limit: Duration) -> Self {
        let (request_id, cut) = (answer.request_id.clone(), Arc::clone(&answer.unread));
        let messages = futures::stream::unfold(answer, |mut answer| async move {
            Some((answer.next().await?, answer))
        });
        Self::of(Box::pin(messages), limit, move || {
            // Seen by the answer as it is dropped: its log line says why.
            cut.store(true, Ordering::Relaxed);
            crate::error::with_request_id(slow_reader(limit), &request_id)
        })
    }

    /// The same of any messages; `over` is what the reader is told who is cut.
    fn of(messages: Messages, limit: Duration, over: impl Fn() -> Status + Send + 'static) -> Self {
        let inner = Inner {
            messages: Some(messages),
            handed_ns: Some(monotonic_ns()),
            bell: Arc::default(),
            over: None,
        };
        let shared = Arc::new(Mutex::new(inner));
        let watched = Arc::downgrade(&shared);
        let watcher = task::spawn("unread", async move {
            let mut pause = limit;
            while let Some(left) = {
                tokio::time::sleep(pause).await;
                look(&watched, limit, &over)
            } {
                pause = left;
            }
        });
        Self { shared, watcher: watcher.abort_handle() }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // Else it would sleep on for `limit` behind each answer.
        self.watcher.abort();
    }
}

/// How long until the next look; `None`: there is nothing to look at any more.
fn look(
    watched: &Weak<Mutex<Inner>>,
    limit: Duration,
    over: impl FnOnce() -> Status,
) -> Option<Duration> {
    let shared = watched.upgrade()?;
    let messages = {
        let mut inner = shared.lock().unwrap_or_else(PoisonError::into_inner);
        inner.messages.as_ref()?;
        let rung_ns = || Some(inner.bell.rung_ns.load(Ordering::Relaxed)).filter(|ns| *ns != 0);
        let Some(since_ns) = inner.handed_ns.or_else(rung_ns) else { return Some(limit) };
        let unread = Duration::from_nanos(monotonic_ns().saturating_sub(since_ns).max(0) as u64);
        if unread < limit {
            return Some(limit - unread);
        }
        inner.over = Some(over());
        inner.messages.take()
    };
    // Outside the lock: it lets go of all that is below.
    drop(messages);
    None
}

fn slow_reader(limit: Duration) -> Status {
    let seconds = limit.as_secs();
    let message = format!(
        "the client did not read its answer for {seconds} s (limits.unread_s), so the request was ended; read streams as they come"
    );
    Refusal::new(Reason::SlowReader, message)
        .field("limits.unread_s")
        .fact("unread_s", seconds)
        .into()
}

impl Stream for Unread {
    type Item = Result<GenerateResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut inner = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let bell = Arc::clone(&inner.bell);
        *bell.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        bell.rung_ns.store(0, Ordering::Relaxed);
        let Some(messages) = &mut inner.messages else {
            return Poll::Ready(inner.over.take().map(Err));
        };
        match messages.as_mut().poll_next(&mut Context::from_waker(&bell.into())) {
            Poll::Pending => {
                inner.handed_ns = None;
                Poll::Pending
            }
            Poll::Ready(Some(message)) => {
                inner.handed_ns = Some(monotonic_ns());
                Poll::Ready(Some(message))
            }
            Poll::Ready(None) => {
                inner.messages = None;
                Poll::Ready(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn behind_an_answer_nobody_watches_it() {
        let limit = Duration::from_secs(1_000_000);
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let messages =
            || -> Messages { Box::pin(futures::stream::iter([Ok(GenerateResponse::default())])) };
        let mut read = Unread::of(messages(), limit, move || slow_reader(limit));
        let left = Unread::of(messages(), limit, move || slow_reader(limit));
        assert_eq!(tasks(), 2);
        assert!(read.next().await.is_some() && read.next().await.is_none());
        drop((read, left));
        // What is aborted ends when it is its turn.
        while tasks() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
