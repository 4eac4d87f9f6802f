//! Spans of the sessions of traced requests, from the first context to the session's end.

use std::collections::HashMap;

use paceline_process::telemetry::trace::{Kind, Span};
use paceline_vocabulary::link::{DraftShape, Feed, SessionId};

/// The spans of the open sessions of a link. They end with the link at the latest.
#[derive(Debug, Default)]
pub(crate) struct SessionSpans(HashMap<SessionId, SessionSpan>);

#[derive(Debug)]
struct SessionSpan {
    span: Span,
    /// Drafts that went to the target.
    drafts: u64,
    /// Their tokens.
    tokens: u64,
    /// Positions that were sent to be read.
    rows: u64,
}

impl SessionSpans {
    /// Follows a checked feed: sessions end, others begin. Sessions whose requests are not traced
    /// have no span.
    pub(crate) fn feed(&mut self, feed: &Feed) {
        for session in &feed.closed {
            self.0.remove(session);
        }
        for context in &feed.contexts {
            if let Some(trace) = context.trace.filter(|_| context.fresh) {
                self.0.entry(context.session).or_insert_with(|| {
                    let mut span = Span::below(Some(trace), Kind::Internal, "drafts");
                    let id = context.request_id.as_ref();
                    span.set_some("paceline.request_id", id.map(|id| id.as_str()));
                    SessionSpan { span, drafts: 0, tokens: 0, rows: 0 }
                });
            }
            if let Some(one) = self.0.get_mut(&context.session) {
                one.rows += u64::from(context.rows);
            }
        }
    }

    /// Counts drafts that go to the target.
    pub(crate) fn proposed(&mut self, shapes: &[DraftShape]) {
        for shape in shapes {
            if let Some(one) = self.0.get_mut(&shape.session) {
                one.drafts += 1;
                one.tokens += u64::from(shape.rows);
            }
        }
    }

    /// Whether no session is traced.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for SessionSpan {
    fn drop(&mut self) {
        self.span.set("paceline.drafts", self.drafts);
        self.span.set("paceline.drafted", self.tokens);
        self.span.set("paceline.context_rows", self.rows);
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::TraceContext;
    use paceline_vocabulary::link::Context;

    use super::*;

    #[test]
    fn a_session_is_followed_from_a_traced_context_to_its_end() {
        let trace = TraceContext::parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        assert!(trace.is_some());
        let context = |session, fresh, trace| Feed {
            contexts: vec![Context { session, rows: 3, fresh, trace, ..Context::default() }],
            ..Feed::default()
        };
        let mut spans = SessionSpans::default();
        spans.feed(&context(1, true, None));
        spans.feed(&context(2, false, trace));
        assert!(spans.is_empty(), "neither is a fresh context of a traced request");
        spans.feed(&context(1, true, trace));
        spans.feed(&context(1, false, None));
        spans.feed(&context(1, true, trace));
        spans.proposed(&[1, 5].map(|session| DraftShape { session, position: 9, rows: 4 }));
        let one = &spans.0[&1];
        assert_eq!((spans.0.len(), one.rows, one.drafts, one.tokens), (1, 9, 1, 4));
        spans.feed(&Feed { closed: vec![1], ..Feed::default() });
        assert!(spans.is_empty());
    }
}
