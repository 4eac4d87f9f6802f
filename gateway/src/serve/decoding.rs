//! Where a request's message is decoded and checked: a small one at once, a large one on a thread
//! of its own. A large one takes tens of milliseconds, which no stream on the threads that move
//! messages may wait for.

use std::sync::Arc;

use paceline_proto::strict::Deferred;
use prost::{Message, Name};
use tokio::sync::Semaphore;
use tonic::Status;

use crate::error::bug;
use crate::images::ReservedTokens;
use crate::prompt::Language;

/// Messages from so many bytes on take a millisecond and more.
const LARGE_BYTES: usize = 64 << 10;

/// Decodes and checks messages.
#[derive(Clone, Debug)]
pub struct Decoding {
    language: Arc<Language>,
    seats: Arc<Semaphore>,
}

impl Decoding {
    /// Works on at most `seats` large messages at once; others wait.
    pub fn new(language: Arc<Language>, seats: usize) -> Self {
        Self { language, seats: Arc::new(Semaphore::new(seats.max(1))) }
    }

    /// Decodes a message and checks its fields. A caller that stops waiting gives up its place;
    /// work that has begun ends unused.
    ///
    /// # Errors
    /// Those of the codec and of `check`.
    pub async fn read<M, T>(
        &self,
        message: Deferred<M>,
        check: fn(M, ReservedTokens<'_>) -> Result<T, Status>,
    ) -> Result<T, Status>
    where
        M: Message + Name + Default + 'static,
        T: Send + 'static,
    {
        if message.wire_bytes() < LARGE_BYTES {
            return read(message, check, &self.language);
        }
        let seat = Arc::clone(&self.seats)
            .acquire_owned()
            .await
            .map_err(|_| bug("the seats for messages are closed"))?;
        let language = Arc::clone(&self.language);
        let work = tokio::task::spawn_blocking(move || {
            let _seat = seat; // until the work is done, even if nobody waits for it
            read(message, check, &language)
        });
        work.await.unwrap_or_else(|_| Err(bug("a panic while decoding a message")))
    }
}

fn read<M, T>(
    message: Deferred<M>,
    check: fn(M, ReservedTokens<'_>) -> Result<T, Status>,
    language: &Language,
) -> Result<T, Status>
where
    M: Message + Name + Default,
{
    check(message.decode()?, ReservedTokens::new(language.images.as_deref()))
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use paceline_proto::strict::FromWire;
    use paceline_proto::v1::GenerateRequest;

    use super::*;

    async fn thread_of(decoding: &Decoding, bytes: usize) -> ThreadId {
        let message = GenerateRequest { model: "m".repeat(bytes), ..Default::default() };
        let message = Deferred::from_wire(message.encode_to_vec().into()).expect("bytes");
        decoding.read(message, |_: GenerateRequest, _| Ok(current().id())).await.expect("read")
    }

    #[tokio::test]
    async fn a_large_message_is_decoded_on_another_thread() {
        let decoding = Decoding::new(Arc::new(crate::demo::language()), 1);
        assert_eq!(thread_of(&decoding, 10).await, current().id());
        assert_ne!(thread_of(&decoding, LARGE_BYTES).await, current().id());
    }

    #[tokio::test]
    async fn large_messages_wait_for_a_seat_and_small_ones_do_not() {
        let decoding = Decoding::new(Arc::new(crate::demo::language()), 1);
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
        let decoding = Decoding::new(Arc::new(crate::demo::language()), 1);
        let large = || {
            let message = GenerateRequest { model: "m".repeat(LARGE_BYTES), ..Default::default() };
            Deferred::from_wire(message.encode_to_vec().into()).expect("bytes")
        };
        let broken =
            Deferred::<GenerateRequest>::from_wire(vec![0xff; LARGE_BYTES].into()).expect("bytes");
        let status =
            decoding.read(broken, |_: GenerateRequest, _| Ok(())).await.expect_err("no message");
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let status = decoding
            .read(large(), |_: GenerateRequest, _| -> Result<(), Status> { panic!("a bug") })
            .await;
        assert_eq!(status.expect_err("a bug").code(), tonic::Code::Internal);
        assert_eq!(decoding.seats.available_permits(), 1);
    }
}
