//! Tasks with names. A panic in a task is a bug of ours. It ends the process with a log line that
//! names the task, and does not vanish in a dropped `JoinHandle`.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio::task::JoinHandle;

/// Runs `future` as a task. A panic in it aborts the process, whose state is then unknown; the
/// parent restarts it.
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
    tokio::spawn(async move {
        match AssertUnwindSafe(future).catch_unwind().await {
            Ok(value) => value,
            Err(_) => {
                tracing::error!(task = name, "a task panicked; aborting");
                std::process::abort()
            }
        }
    })
}
