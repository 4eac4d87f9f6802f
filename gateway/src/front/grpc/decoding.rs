//! Where a request's message is decoded and checked: a small one at once, a large one on a thread
//! of its own. A large one takes tens of milliseconds, which no stream on the threads that move
//! messages may wait for.

use std::sync::Arc;

use paceline_proto::strict::Deferred;
use prost::{Message, Name};
use tokio::sync::Semaphore;

use super::status;
use crate::inference::error::InferenceError;

/// Messages from so many bytes on take a millisecond and more.
const LARGE_BYTES: usize = 64 << 10;

/// Decodes and checks messages.
#[derive(Clone, Debug)]
pub(super) struct Decoding {
    seats: Arc<Semaphore>,
}

impl Decoding {
    /// Works on at most `seats` large messages at once; others wait.
    pub(super) fn new(seats: usize) -> Self {
        Self { seats: Arc::new(Semaphore::new(seats.max(1))) }
    }

    /// Decodes a message and checks its fields. A caller that stops waiting gives up its place;
    /// work that has begun ends unused.
    ///
    /// # Errors
    /// Those of the codec and of `check`.
    pub(super) async fn read<M, T>(
        &self,
        message: Deferred<M>,
        check: impl FnOnce(M) -> Result<T, InferenceError> + Send + 'static,
    ) -> Result<T, InferenceError>
    where
        M: Message + Name + Default + 'static,
        T: Send + 'static,
    {
        if message.wire_bytes() < LARGE_BYTES {
            return read(message, check);
        }
        let seat = Arc::clone(&self.seats).acquire_owned().await;
        let seat = seat.map_err(|_| InferenceError::bug("the seats for messages are closed"))?;
        let work = tokio::task::spawn_blocking(move || {
            let _seat = seat; // held until the work is done, even if the caller is gone
            read(message, check)
        });
        let panicked = |_| Err(InferenceError::bug("a panic while decoding a message"));
        work.await.unwrap_or_else(panicked)
    }
}

fn read<M, T>(
    message: Deferred<M>,
    check: impl FnOnce(M) -> Result<T, InferenceError>,
) -> Result<T, InferenceError>
where
    M: Message + Name + Default,
{
    check(message.decode().map_err(|status| status::error(&status))?)
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use paceline_proto::strict::FromWire;
    use paceline_proto::v1::GenerateRequest;
    use paceline_vocabulary::Reason;

    use super::*;

    async fn thread_of(decoding: &Decoding, bytes: usize) -> ThreadId {
        let message = GenerateRequest { model: "m".repeat(bytes), ..Default::default() };
        let message = Deferred::from_wire(message.encode_to_vec().into()).expect("bytes");
        decoding.read(message, |_: GenerateRequest| Ok(current().id())).await.expect("read")
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
        let large = || {
            let message = GenerateRequest { model: "m".repeat(LARGE_BYTES), ..Default::default() };
            Deferred::from_wire(message.encode_to_vec().into()).expect("bytes")
        };
        let broken =
            Deferred::<GenerateRequest>::from_wire(vec![0xff; LARGE_BYTES].into()).expect("bytes");
        let error =
            decoding.read(broken, |_: GenerateRequest| Ok(())).await.expect_err("no message");
        assert_eq!(error.kind, Reason::InvalidArgument);
        let outcome = decoding
            .read(large(), |_: GenerateRequest| -> Result<(), InferenceError> { panic!("a bug") })
            .await;
        assert_eq!(outcome.expect_err("a bug").kind, Reason::Bug);
        assert_eq!(decoding.seats.available_permits(), 1);
    }
}
