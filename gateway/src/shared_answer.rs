//! One question for many: an answer that is younger than a bound is given to all who ask.

use std::fmt::{Debug, Formatter};
use std::time::Duration;

use paceline_system::Clock;
use paceline_vocabulary::Millis;
use tokio::sync::Mutex;

/// The last answer to a question that many ask at once.
pub struct SharedAnswer<T> {
    clock: Clock,
    max_age: Duration,
    /// The last answer, and when it came. The lock is held while the question is open, so a
    /// caller that asks meanwhile gets its answer.
    last: Mutex<Option<(Millis, T)>>,
}

impl<T: Clone> SharedAnswer<T> {
    /// No answer yet. One that is as old as `max_age` is not given again.
    pub fn new(max_age: Duration) -> Self {
        Self { clock: Clock::start(), max_age, last: Mutex::default() }
    }

    /// The last answer if it is young enough, else the result of `ask`. It may be dropped at any
    /// await: then the next one asks.
    pub async fn get(&self, ask: impl Future<Output = T>) -> T {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && u128::from(self.clock.now().since(*at)) < self.max_age.as_millis()
        {
            return answer.clone();
        }
        let answer = ask.await;
        // From its end on: a question that was answered late is not asked again at once.
        *last = Some((self.clock.now(), answer.clone()));
        answer
    }
}

impl<T> Debug for SharedAnswer<T> {
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("SharedAnswer").field("max_age", &self.max_age).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn one_question_answers_all_that_asked_while_it_was_open() {
        let (shared, asked, open) =
            (SharedAnswer::new(Duration::MAX), AtomicU32::new(0), Notify::new());
        let ask = || async {
            let number = asked.fetch_add(1, Ordering::SeqCst);
            open.notified().await;
            number
        };
        let release = async { open.notify_one() };
        let (first, second, third, ()) =
            tokio::join!(shared.get(ask()), shared.get(ask()), shared.get(ask()), release);
        assert_eq!((first, second, third), (0, 0, 0));
        assert_eq!(shared.get(ask()).await, 0, "young enough");
    }

    #[tokio::test]
    async fn an_answer_that_is_too_old_is_asked_for_again() {
        let shared = SharedAnswer::new(Duration::ZERO);
        assert_eq!(shared.get(async { 1 }).await, 1);
        assert_eq!(shared.get(async { 2 }).await, 2);
    }

    #[tokio::test]
    async fn a_question_whose_asker_left_is_asked_by_the_next() {
        let shared = SharedAnswer::new(Duration::MAX);
        {
            let left = shared.get(std::future::pending());
            tokio::pin!(left);
            assert!(futures::poll!(&mut left).is_pending());
        }
        assert_eq!(shared.get(async { 3 }).await, 3);
    }
}
