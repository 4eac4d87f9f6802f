//! The recording of one piece of work.

use paceline_vocabulary::trace::{SpanId, TraceContext, TraceId};

use super::ended::{EndedSpan, Kind, Value};
use super::tracer::{Tracer, tracer};
use paceline_system::clock::{monotonic_ns, unix_ns};

/// A piece of work of a traced request, or nothing if the request is not traced. It ends when this
/// value is dropped.
#[derive(Debug, Default)]
pub struct Span(Option<Box<Recording>>);

#[derive(Debug)]
struct Recording {
    tracer: Tracer,
    context: TraceContext,
    parent: Option<SpanId>,
    name: &'static str,
    kind: Kind,
    started_ns: i64,
    ended_ns: Option<i64>,
    attributes: Vec<(&'static str, Value)>,
    failure: Option<&'static str>,
}

impl Span {
    /// Nothing is recorded.
    pub const NONE: Span = Span(None);

    /// The first span of a trace. Nothing if this process does not trace.
    pub(super) fn first(trace: Option<TraceId>, kind: Kind, name: &'static str) -> Self {
        match (tracer(), trace) {
            (Some(tracer), Some(trace)) => Self::record(tracer, trace, None, kind, name),
            _ => Self::NONE,
        }
    }

    /// A span below that of `parent`, which may be another process's. Nothing without a parent, if
    /// its trace is not recorded, and if this process does not trace.
    pub fn below(parent: Option<TraceContext>, kind: Kind, name: &'static str) -> Self {
        match (tracer(), parent) {
            (Some(tracer), Some(parent)) if parent.sampled => {
                Self::record(tracer, parent.trace, Some(parent.span), kind, name)
            }
            _ => Self::NONE,
        }
    }

    /// The first span of a request in this service: below that of its client if there is one, else
    /// the first of its trace.
    pub fn of_request(
        client: Option<TraceContext>,
        trace: Option<TraceId>,
        name: &'static str,
    ) -> Self {
        match client {
            Some(_) => Self::below(client, Kind::Server, name),
            None => Self::first(trace, Kind::Server, name),
        }
    }

    pub(super) fn record(
        tracer: &Tracer,
        trace: TraceId,
        parent: Option<SpanId>,
        kind: Kind,
        name: &'static str,
    ) -> Self {
        let mut bytes = [0; 8];
        // Without random numbers there is no span; the system always has some.
        let drawn = getrandom::fill(&mut bytes).ok().and_then(|()| SpanId::new(bytes));
        Self(drawn.map(|span| {
            Box::new(Recording {
                tracer: tracer.clone(),
                context: TraceContext { trace, span, sampled: true },
                parent,
                name,
                kind,
                started_ns: monotonic_ns(),
                ended_ns: None,
                attributes: Vec::new(),
                failure: None,
            })
        }))
    }

    /// A span below this one, of work inside this process.
    pub fn child(&self, name: &'static str) -> Self {
        match &self.0 {
            Some(own) => {
                let TraceContext { trace, span, .. } = own.context;
                Self::record(&own.tracer, trace, Some(span), Kind::Internal, name)
            }
            None => Self::NONE,
        }
    }

    /// The context for spans below this one, in this process or another.
    pub fn context(&self) -> Option<TraceContext> {
        self.0.as_ref().map(|own| own.context)
    }

    /// Whether anything is recorded.
    #[cfg(test)]
    pub(crate) fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// With this beginning, on the monotonic clock.
    pub fn from_ns(mut self, started_ns: i64) -> Self {
        if let Some(own) = &mut self.0 {
            own.started_ns = started_ns;
        }
        self
    }

    /// With this end, on the monotonic clock.
    pub fn to_ns(mut self, ended_ns: i64) -> Self {
        if let Some(own) = &mut self.0 {
            own.ended_ns = Some(ended_ns);
        }
        self
    }

    /// Adds an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(own) = &mut self.0 {
            own.attributes.push((name, value.into()));
        }
    }

    /// Adds an attribute if it has a value.
    pub fn set_some(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// The work failed, for this reason.
    pub fn fail(&mut self, reason: &'static str) {
        if let Some(own) = &mut self.0 {
            own.failure = Some(reason);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let (now_ns, now_unix) = (monotonic_ns(), unix_ns());
        // The wall clock is read once, so that no jump of it gets into a duration.
        let unix = |ns: i64| now_unix.saturating_sub_signed(now_ns.saturating_sub(ns));
        let start = unix(self.started_ns);
        self.tracer.take(EndedSpan {
            context: self.context,
            parent: self.parent,
            name: self.name,
            kind: self.kind,
            start_unix_ns: start,
            end_unix_ns: unix(self.ended_ns.unwrap_or(now_ns)).max(start),
            attributes: std::mem::take(&mut self.attributes),
            failure: self.failure,
        });
    }
}
