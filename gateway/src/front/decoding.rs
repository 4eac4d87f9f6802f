//! Where requests are decoded and checked: a small one at once, a large one on a thread of its own.
//! A large one takes tens of milliseconds, which no stream on the threads that move messages may
//! wait for. All fronts share the seats.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::inference::error::InferenceError;

/// Messages from so many bytes on take a millisecond and more.
pub const LARGE_BYTES: usize = 64 << 10;

/// The seats of large messages that are decoded and checked.
#[derive(Clone, Debug)]
pub struct Decoding {
    seats: Arc<Semaphore>,
}

impl Decoding {
    /// Works on at most `seats` large messages at once; others wait.
    pub fn new(seats: usize) -> Self {
        Self { seats: Arc::new(Semaphore::new(seats.max(1))) }
    }

    /// Runs the work on a message of so many bytes. A caller that stops waiting gives up its place;
    /// work that has begun ends unused.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, InferenceError> + Send + 'static,
    ) -> Result<T, InferenceError> {
        if bytes < LARGE_BYTES {
            return work();
        }
        let seat = Arc::clone(&self.seats).acquire_owned().await;
        let seat = seat.map_err(|_| InferenceError::bug("the seats for messages are closed"))?;
        let work = tokio::task::spawn_blocking(move || {
            let _seat = seat; // held until the work is done, even if the caller is gone
            work()
        });
        let panicked = |_| Err(InferenceError::bug("a panic while decoding a message"));
        work.await.unwrap_or_else(panicked)
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use paceline_vocabulary::Reason;

    use super::*;

    async fn thread_of(decoding: &Decoding, bytes: usize) -> ThreadId {
        decoding.run(bytes, || Ok(current().id())).await.expect("read")
    }

    #[tokio::test]
    async fn a_large_message_is_decoded_on_another_thread() {
        let decoding = Decoding::new(1);
        assert_eq!(thread_of(&decoding, 10).await, current().id());
        assert_ne!(thread_of(&decoding, LARGE_BYTES).await, current().id());
    }

    #[tokio::test]
    async fn large_messages_wait_for_a_seat_and_small_ones_do_not() {
        let decoding = Decoding::new(1);
        let taken = Arc::clone(&decoding.seats).acquire_owned().await.expect("open");
        let mut large = std::pin::pin!(thread_of(&decoding, LARGE_BYTES));
        assert!(futures::poll!(large.as_mut()).is_pending());
        thread_of(&decoding, 10).await;
        assert!(futures::poll!(large.as_mut()).is_pending());
        drop(taken);
        large.await;
        assert_eq!(decoding.seats.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_message_that_is_refused_or_breaks_the_check_gives_its_seat_back() {
        let decoding = Decoding::new(1);
        let refused = || Err::<(), _>(InferenceError::invalid("f", "a message", "none"));
        let error = decoding.run(LARGE_BYTES, refused).await.expect_err("no message");
        assert_eq!(error.kind, Reason::InvalidArgument);
        let broken = || -> Result<(), InferenceError> { panic!("a bug") };
        let error = decoding.run(LARGE_BYTES, broken).await.expect_err("a bug");
        assert_eq!(error.kind, Reason::Bug);
        assert_eq!(decoding.seats.available_permits(), 1);
    }
}
