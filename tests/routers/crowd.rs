//! Clients that send one request after another while something happens to the services.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use paceline_tests::http;
use paceline_tests::router::Router;
use paceline_tests::{Stack, wait};
use serde_json::Value;

/// Clients at a time: more than there are services, so that each has a request at any time.
const CLIENTS: usize = 4;

/// Runs `change` while clients send this request of `/v1/chat/completions` again and again.
/// `change` gets a function that waits until some more are answered.
///
/// # Panics
/// A request is not answered with 200 and a text.
pub fn all_are_answered(router: &Router, body: &Value, change: impl FnOnce(&dyn Fn())) {
    let (over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let host = router.address();
    let client = || {
        while !over.load(Ordering::Relaxed) {
            let answer = match http::json(&host, "/v1/chat/completions", body) {
                Ok(answer) => answer,
                Err(error) => return Err(format!("no answer: {error}")),
            };
            let object: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            let text = object["choices"][0]["message"]["content"].as_str();
            if answer.status() != 200 || text.is_none_or(str::is_empty) {
                return Err(format!("{}\n{}", answer.head, answer.body));
            }
            answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        // However `change` ends, the clients do.
        let stop = StopAtDrop(&over);
        change(&|| {
            let before = answered.load(Ordering::Relaxed);
            wait("more answers", || {
                let failed = clients.iter().any(std::thread::ScopedJoinHandle::is_finished);
                let more = answered.load(Ordering::Relaxed) >= before + 2 * CLIENTS;
                (failed || more).then_some(())
            });
        });
        drop(stop);
        for client in clients {
            let outcome = client.join().expect("a client does not panic");
            outcome.unwrap_or_else(|failure| panic!("a request failed: {failure}"));
        }
    });
}

struct StopAtDrop<'a>(&'a AtomicBool);

impl Drop for StopAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requests that a service has given a lane since its supervisor started.
pub fn served(stack: &Stack) -> u64 {
    let status = stack.status().expect("a status");
    let routes = status["routing"]["routes"].as_array().cloned().unwrap_or_default();
    routes.iter().filter_map(|route| route["requests"].as_u64()).sum()
}
