//! Where requests are decoded and checked, and whole answers written: a small one at once, a large
//! one on a thread of its own. A large one takes tens of milliseconds, which no stream on the
//! threads that move messages may wait for. All fronts share the seats, and the senders of large
//! messages have them in turn.

use paceline_protocols::inference::error::{InferenceError, Result};

use crate::inference::Sender;
use crate::turns::seats::Seats;

/// Bytes of a large message. Its decoding takes a millisecond and more.
pub const LARGE_BYTES: usize = 64 << 10;
/// Bytes of a message above which it is huge: its decoding takes a tenth of a second and more. Huge
/// messages have seats of their own, so that no shorter one waits for them.
const HUGE_BYTES: usize = 1 << 20;

/// The seats of large messages that are decoded and checked.
#[derive(Clone, Debug)]
pub struct Decoding {
    large: Seats,
    huge: Seats,
}

impl Decoding {
    /// Works on at most `seats` large messages at once and on as many huge ones; others wait.
    pub fn new(seats: usize) -> Self {
        Self { large: Seats::new(seats), huge: Seats::new(seats) }
    }

    /// Runs the work on a message of `bytes` bytes. A caller that stops waiting gives up its place.
    /// The result of work that has begun is dropped.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn run<T: Send + 'static>(
        &self,
        sender: Sender,
        bytes: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let seats = match bytes {
            0..LARGE_BYTES => return work(),
            LARGE_BYTES..=HUGE_BYTES => &self.large,
            _ => &self.huge,
        };
        let seat = seats.take(&sender.party).await;
        let work = tokio::task::spawn_blocking(move || {
            // Held until the work is done, even if the caller is gone.
            let _held = (seat, sender);
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
    use crate::turns::Party;

    fn anyone() -> Sender {
        Sender::default()
    }

    async fn thread_of(decoding: &Decoding, bytes: usize) -> ThreadId {
        decoding.run(anyone(), bytes, || Ok(current().id())).await.expect("read")
    }

    #[tokio::test]
    async fn a_large_message_is_decoded_on_another_thread() {
        let decoding = Decoding::new(1);
        assert_eq!(thread_of(&decoding, 10).await, current().id());
        assert_ne!(thread_of(&decoding, LARGE_BYTES).await, current().id());
        assert_ne!(thread_of(&decoding, HUGE_BYTES + 1).await, current().id());
    }

    #[tokio::test]
    async fn messages_wait_for_a_seat_of_their_size_alone() {
        let decoding = Decoding::new(1);
        let taken = decoding.huge.take(&Party::default()).await;
        let mut huge = std::pin::pin!(thread_of(&decoding, HUGE_BYTES + 1));
        assert!(futures::poll!(huge.as_mut()).is_pending());
        thread_of(&decoding, 10).await;
        thread_of(&decoding, HUGE_BYTES).await;
        assert!(futures::poll!(huge.as_mut()).is_pending());
        drop(taken);
        huge.await;
        let _taken = decoding.large.take(&Party::default()).await;
        let mut large = std::pin::pin!(thread_of(&decoding, LARGE_BYTES));
        assert!(futures::poll!(large.as_mut()).is_pending());
        thread_of(&decoding, HUGE_BYTES + 1).await;
        assert_eq!((decoding.huge.free(), decoding.large.free()), (1, 0));
    }

    #[tokio::test]
    async fn a_message_beside_a_flood_is_decoded_after_one_of_the_flood() {
        let decoding = Decoding::new(1);
        let order = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
        let taken = decoding.huge.take(&Party::of_key("a")).await;
        let one = |party: &str, name: &'static str| {
            let (decoding, order) = (decoding.clone(), std::sync::Arc::clone(&order));
            let whose = Sender { party: Party::of_key(party), ..Default::default() };
            let work = move || {
                order.lock().expect("fine").push(name);
                Ok(())
            };
            async move { decoding.run(whose, HUGE_BYTES + 1, work).await }
        };
        let mut flood: Vec<_> = (0..4).map(|_| Box::pin(one("a", "flood"))).collect();
        for one in &mut flood {
            assert!(futures::poll!(one.as_mut()).is_pending());
        }
        let mut his = Box::pin(one("b", "his"));
        assert!(futures::poll!(his.as_mut()).is_pending());
        drop(taken);
        let all = futures::future::join(futures::future::join_all(flood), his);
        all.await.1.expect("decoded");
        assert_eq!(*order.lock().expect("fine"), ["flood", "his", "flood", "flood", "flood"]);
    }

    #[tokio::test]
    async fn a_message_that_is_refused_or_breaks_the_check_gives_its_seat_back() {
        let decoding = Decoding::new(1);
        let refused = || Err::<(), _>(InferenceError::invalid("f", "a message", "none"));
        let error = decoding.run(anyone(), LARGE_BYTES, refused).await.expect_err("no message");
        assert_eq!(error.kind, Reason::InvalidArgument);
        let broken = || -> Result<(), InferenceError> { panic!("a bug") };
        let error = decoding.run(anyone(), LARGE_BYTES, broken).await.expect_err("a bug");
        assert_eq!(error.kind, Reason::Bug);
        assert_eq!(decoding.large.free(), 1);
    }
}
