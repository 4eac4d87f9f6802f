//! Ends an answer whose reader stops reading.
//!
//! An answer is pulled by its reader. Messages that a client leaves unread fill its own window,
//! then the gateway's window towards the supervisor, and then the target joins its batches; nothing
//! here queues. The time begins when an event is handed to the reader, or when the reader is woken
//! for the next event. If the reader asks for no event within `limits.unread_s`, the answer is
//! dropped with all that it holds upstream. A reader that asks later gets the error that ends it.

use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::Stream;
use paceline_process::task;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_system::clock::monotonic_ns;
use paceline_text::stream::AnswerEvent;
use paceline_vocabulary::Reason;
use tokio::task::AbortHandle;

use super::answer::Answer;
use crate::lock::lock;

type Events = Pin<Box<dyn Stream<Item = Result<AnswerEvent>> + Send>>;

/// An answer on its way to its reader: a stream of events, which ends after its first error.
#[derive(Debug)]
pub struct AnswerStream {
    shared: Arc<Mutex<SharedUnread>>,
    watcher: AbortHandle,
}

struct SharedUnread {
    /// `None` after the end.
    events: Option<Events>,
    /// When the last event was handed to the reader, by the monotonic clock; `None` while the
    /// reader waits for the next one.
    handed_ns: Option<i64>,
    bell: Arc<Bell>,
    /// The error for a reader whose answer was dropped.
    over: Option<InferenceError>,
}

impl std::fmt::Debug for SharedUnread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedUnread")
            .field("handed_ns", &self.handed_ns)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

/// Wakes the reader when there is an event, and notes when that was.
#[derive(Debug, Default)]
struct Bell {
    /// When the reader was woken, by the monotonic clock; 0 if the reader has asked for an event
    /// since.
    rung_ns: AtomicI64,
    reader: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // The first time counts.
        let _ =
            self.rung_ns.compare_exchange(0, monotonic_ns(), Ordering::Relaxed, Ordering::Relaxed);
        let reader = lock(&self.reader).clone();
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl AnswerStream {
    /// `answer`, for a reader that may leave it unread for `limit`.
    pub fn watch(answer: Answer, limit: Duration) -> Self {
        let unread = answer.unread_flag();
        let events = futures::stream::unfold(answer, |mut answer| async move {
            Some((answer.next().await?, answer))
        });
        Self::of(Box::pin(events), limit, move || {
            // The answer reads it when it is dropped, for its log line.
            unread.store(true, Ordering::Relaxed);
            slow_reader(limit)
        })
    }

    /// A reader of any events. `over` makes the error for a reader whose answer is dropped.
    fn of(
        events: Events,
        limit: Duration,
        over: impl Fn() -> InferenceError + Send + 'static,
    ) -> Self {
        let inner = SharedUnread {
            events: Some(events),
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
                check(&watched, limit, &over)
            } {
                pause = left;
            }
        });
        Self { shared, watcher: watcher.abort_handle() }
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        // Otherwise the watcher would sleep on for `limit` after each answer.
        self.watcher.abort();
    }
}

/// Drops the answer if it has been unread for `limit`. Returns how long until the next check;
/// `None` if nothing is left to check.
fn check(
    watched: &Weak<Mutex<SharedUnread>>,
    limit: Duration,
    over: impl FnOnce() -> InferenceError,
) -> Option<Duration> {
    let shared = watched.upgrade()?;
    let events = {
        let mut inner = lock(&shared);
        inner.events.as_ref()?;
        let rung_ns = || Some(inner.bell.rung_ns.load(Ordering::Relaxed)).filter(|ns| *ns != 0);
        let Some(since_ns) = inner.handed_ns.or_else(rung_ns) else { return Some(limit) };
        let unread = Duration::from_nanos(monotonic_ns().saturating_sub(since_ns).max(0) as u64);
        if unread < limit {
            return Some(limit - unread);
        }
        inner.over = Some(over());
        inner.events.take()
    };
    // Outside the lock: this drops the answer with all that it holds.
    drop(events);
    None
}

fn slow_reader(limit: Duration) -> InferenceError {
    let seconds = limit.as_secs();
    let message = format!(
        "the client did not read its answer for {seconds} s (limits.unread_s), so the request was ended; read streams as they come"
    );
    let error = InferenceError::new(Reason::SlowReader, message).field("limits.unread_s");
    error.fact("unread_s", seconds)
}

impl Stream for AnswerStream {
    type Item = Result<AnswerEvent>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut inner = lock(&self.shared);
        let bell = Arc::clone(&inner.bell);
        *lock(&bell.reader) = Some(context.waker().clone());
        bell.rung_ns.store(0, Ordering::Relaxed);
        let Some(events) = &mut inner.events else {
            return Poll::Ready(inner.over.take().map(Err));
        };
        match events.as_mut().poll_next(&mut Context::from_waker(&bell.into())) {
            Poll::Pending => {
                inner.handed_ns = None;
                Poll::Pending
            }
            Poll::Ready(Some(event)) => {
                inner.handed_ns = Some(monotonic_ns());
                Poll::Ready(Some(event))
            }
            Poll::Ready(None) => {
                inner.events = None;
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
    async fn the_watcher_ends_with_the_answer() {
        let limit = Duration::from_secs(1_000_000);
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let events = || -> Events { Box::pin(futures::stream::iter([Ok(AnswerEvent::default())])) };
        let mut read = AnswerStream::of(events(), limit, move || slow_reader(limit));
        let left = AnswerStream::of(events(), limit, move || slow_reader(limit));
        assert_eq!(tasks(), 2);
        assert!(read.next().await.is_some() && read.next().await.is_none());
        drop((read, left));
        // An aborted task ends when the runtime polls it next.
        while tasks() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
