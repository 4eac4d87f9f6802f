//! Tasks with names: a panic in a task is our bug and ends the process with a line that names the
//! task, instead of vanishing in a dropped `JoinHandle`.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio::task::JoinHandle;

/// Runs `future` as a task. A panic in it aborts the process: its state is unknown, and restarting
/// is the trade of whoever started us.
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
