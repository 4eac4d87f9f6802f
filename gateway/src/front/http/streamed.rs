//! The body of a streamed answer, in the form that its writer has. The body is pulled by its connection, so a client that does not
//! read stops the answer by flow control, and one that leaves drops it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt as _, Stream};
use http_body::{Body, Frame};
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::paths::FieldPaths;
use paceline_protocols::protocol::AnswerWriter;
use paceline_protocols::sse::{KeepAlive, SseEvent};
use paceline_text::stream::AnswerEvent;
use tokio::time::{Sleep, sleep};

/// The body of a streamed answer.
#[derive(Debug)]
pub(super) struct StreamedBody<S, W> {
    /// The answer; `None` after its end.
    events: Option<S>,
    writer: W,
    paths: FieldPaths,
    /// Time without an event after which a keep-alive is written.
    interval: Duration,
    keep_alive: Pin<Box<Sleep>>,
    breaking: Breaking,
}

/// Whether the connection breaks, in a form in which clients take its end for the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breaking {
    /// It does not.
    No,
    /// It does when the error's line is on its way.
    Soon,
    /// It does now.
    Now,
}

impl<S, W: AnswerWriter> StreamedBody<S, W> {
    /// The events of an answer, as `writer` writes them.
    pub(super) fn new(events: S, writer: W, paths: FieldPaths, interval: Duration) -> Self {
        let keep_alive = Box::pin(sleep(interval));
        Self { events: Some(events), writer, paths, interval, keep_alive, breaking: Breaking::No }
    }

    /// Writes an answer's next event or its end. The answer ends with its last event, with an
    /// error, and with a panic in the writer, which is an error of this answer alone.
    fn write(&mut self, next: Option<Result<AnswerEvent>>) -> String {
        let writer = &mut self.writer;
        let (is_last, failed, written) = match next {
            Some(Ok(event)) => (false, false, caught(|| writer.event(event))),
            Some(Err(error)) => {
                let error = self.paths.translate(error);
                (true, true, caught(|| writer.error(&error)))
            }
            None => (true, false, caught(|| writer.end())),
        };
        if is_last || written.is_err() {
            self.events = None;
        }
        if (failed || written.is_err()) && W::FORM.breaks_after_error() {
            self.breaking = Breaking::Soon;
        }
        W::FORM.text(&written.unwrap_or_else(|error| {
            // The writer may be broken altogether.
            caught(|| self.writer.error(&error)).unwrap_or_default()
        }))
    }

    /// Ends the body, or breaks it. The connection sends its error's line while the body waits.
    fn over(&mut self, context: &Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.breaking {
            Breaking::No => Poll::Ready(None),
            Breaking::Soon => {
                self.breaking = Breaking::Now;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Breaking::Now => {
                self.breaking = Breaking::No;
                let failed = "the answer failed; its last line says why";
                Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::ConnectionAborted, failed))))
            }
        }
    }
}

/// Events from a writer, or the error of its panic.
fn caught(write: impl FnOnce() -> Vec<SseEvent>) -> Result<Vec<SseEvent>> {
    let written = catch_unwind(AssertUnwindSafe(write));
    written.map_err(|_| InferenceError::bug("a panic while writing an answer"))
}

impl<S, W> Body for StreamedBody<S, W>
where
    S: Stream<Item = Result<AnswerEvent>> + Unpin,
    W: AnswerWriter,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        loop {
            let Some(events) = &mut this.events else { return this.over(context) };
            let text = match Pin::new(events).poll_next(context) {
                Poll::Ready(next) => this.write(next),
                Poll::Pending => {
                    std::task::ready!(this.keep_alive.poll_unpin(context));
                    match this.writer.keep_alive() {
                        KeepAlive::Comment => ": keep-alive\n\n".to_owned(),
                        KeepAlive::Event(event) => W::FORM.text(&[event]),
                    }
                }
            };
            // Some events of an answer make none of the protocol.
            if !text.is_empty() {
                this.keep_alive.set(sleep(this.interval));
                return Poll::Ready(Some(Ok(Frame::data(text.into()))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.events.is_none() && self.breaking == Breaking::No
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use paceline_vocabulary::Reason;
    use serde_json::Value;

    use super::*;
    use paceline_protocols::pieces::WholeAnswer;
    use paceline_protocols::sse::KEEP_ALIVE;

    struct Plain;

    impl AnswerWriter for Plain {
        fn event(&mut self, event: AnswerEvent) -> Vec<SseEvent> {
            assert_ne!(event.sample_index, 9, "a mistake in the writer");
            let token = |id: &u32| SseEvent::named("token", id.to_string());
            event.token_ids.iter().map(token).collect()
        }

        fn end(&mut self) -> Vec<SseEvent> {
            vec![SseEvent::data("[DONE]")]
        }

        fn error(&mut self, error: &InferenceError) -> Vec<SseEvent> {
            vec![SseEvent::named("error", error.kind.word())]
        }

        fn whole(self, events: Vec<AnswerEvent>) -> WholeAnswer {
            Value::from(events.len()).into()
        }
    }

    fn tokens(ids: &[u32]) -> Result<AnswerEvent, InferenceError> {
        Ok(AnswerEvent { token_ids: ids.to_vec(), ..Default::default() })
    }

    async fn next<S>(body: &mut StreamedBody<S, Plain>) -> Option<String>
    where
        S: Stream<Item = Result<AnswerEvent, InferenceError>> + Unpin,
    {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        frame.map(|frame| {
            let data = frame.expect("infallible").into_data().expect("data");
            String::from_utf8(data.to_vec()).expect("text")
        })
    }

    async fn all(events: Vec<Result<AnswerEvent, InferenceError>>) -> Vec<String> {
        let events = futures::stream::iter(events);
        let mut body = StreamedBody::new(events, Plain, FieldPaths::default(), KEEP_ALIVE);
        let mut written = Vec::new();
        while let Some(text) = next(&mut body).await {
            written.push(text);
        }
        assert!(body.is_end_stream());
        written
    }

    #[tokio::test]
    async fn events_are_written_in_order_and_the_end_follows_the_last() {
        let written = all(vec![tokens(&[1, 2]), tokens(&[]), tokens(&[3])]).await;
        let first = "event: token\ndata: 1\n\nevent: token\ndata: 2\n\n";
        assert_eq!(written, [first, "event: token\ndata: 3\n\n", "data: [DONE]\n\n"]);
    }

    #[tokio::test]
    async fn an_error_ends_the_answer_without_its_end() {
        let error = InferenceError::new(Reason::TargetGone, "gone");
        let written = all(vec![tokens(&[1]), Err(error), tokens(&[2])]).await;
        assert_eq!(written, ["event: token\ndata: 1\n\n", "event: error\ndata: TARGET_GONE\n\n"]);
    }

    #[tokio::test]
    async fn a_panic_in_a_writer_ends_its_answer_alone() {
        let broken = AnswerEvent { sample_index: 9, ..Default::default() };
        let written = all(vec![tokens(&[1]), Ok(broken), tokens(&[2])]).await;
        assert_eq!(written, ["event: token\ndata: 1\n\n", "event: error\ndata: BUG\n\n"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_answer_is_kept_alive() {
        let pause = Duration::from_secs(40);
        let events = futures::stream::once(sleep(pause)).map(|()| tokens(&[1]));
        let mut body =
            StreamedBody::new(Box::pin(events), Plain, FieldPaths::default(), KEEP_ALIVE);
        for _ in 0..2 {
            assert_eq!(next(&mut body).await.as_deref(), Some(": keep-alive\n\n"));
        }
        assert_eq!(next(&mut body).await.as_deref(), Some("event: token\ndata: 1\n\n"));
    }
}
