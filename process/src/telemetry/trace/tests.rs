use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use paceline_vocabulary::RequestId;
use paceline_vocabulary::trace::TraceId;
use tokio::sync::mpsc;

use super::ended::EndedSpan;
use super::tracer::{FINISH_TIMEOUT, QUEUE_SPANS};
use super::*;
use paceline_system::Clock;

fn trace_id() -> TraceId {
    let id = RequestId::parse("0af7651916cd43dd8448eb211c80319c").expect("an id");
    TraceId::of_request(&id).expect("a number of 128 bits")
}

fn origin() -> Origin {
    Origin { program: "paceline-test", numbers: vec![("paceline.epoch", 7)] }
}

/// A tracer whose queue has `places` places, and its reader.
fn queue(places: usize) -> (Tracer, mpsc::Receiver<EndedSpan>) {
    let (spans, ended) = mpsc::channel(places);
    let (finish, _) = mpsc::channel(1);
    (Tracer { spans, dropped: Arc::default(), finish }, ended)
}

#[test]
fn without_a_collector_there_is_no_tracer_and_no_span() {
    start(&LogConfig::default(), origin());
    assert!(tracer().is_none());
    let mut span = Span::first(Some(trace_id()), Kind::Server, "request");
    span.set("paceline.model", "some");
    assert!(!span.is_recorded() && !span.child("check").is_recorded());
    let header = ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"];
    assert_eq!(of_values(header), None);
    let mut metadata = MetadataMap::new();
    put(&mut metadata, span.context());
    assert!(metadata.is_empty());
}

#[test]
fn a_span_ends_with_its_value_and_names_its_parent() {
    let (tracer, mut ended) = queue(8);
    let mut root = Span::record(&tracer, trace_id(), None, Kind::Server, "request").from_ns(1_000);
    root.set("paceline.model", "m".repeat(1_000).as_str());
    root.set_some("paceline.lane", None::<&str>);
    root.fail("queue_full");
    let context = root.context().expect("it is recorded");
    drop(root.child("check").from_ns(2_000).to_ns(5_000));
    drop(root);
    let (child, root) = (ended.try_recv().expect("a child"), ended.try_recv().expect("a root"));
    assert_eq!((child.parent, child.context.trace), (Some(context.span), context.trace));
    assert_ne!(child.context.span, context.span);
    assert_eq!(child.end_unix_ns - child.start_unix_ns, 3_000);
    assert_eq!((root.parent, root.failure), (None, Some("queue_full")));
    let text = Value::Text("m".repeat(256));
    assert_eq!(root.attributes, [("paceline.model", text)], "a text is shortened");
    assert!(root.end_unix_ns > root.start_unix_ns);
}

#[test]
fn a_span_that_ends_before_its_beginning_has_no_duration() {
    let (tracer, mut ended) = queue(1);
    drop(Span::record(&tracer, trace_id(), None, Kind::Internal, "odd").from_ns(9).to_ns(3));
    let span = ended.try_recv().expect("it ended");
    assert_eq!(span.start_unix_ns, span.end_unix_ns);
}

#[test]
fn a_full_queue_drops_spans_and_counts_them() {
    let (tracer, mut ended) = queue(2);
    for _ in 0..5 {
        drop(Span::record(&tracer, trace_id(), None, Kind::Internal, "step"));
    }
    assert_eq!(tracer.dropped.load(Ordering::Relaxed), 3);
    assert!(ended.try_recv().is_ok() && ended.try_recv().is_ok() && ended.try_recv().is_err());
}

#[test]
fn a_message_has_the_process_and_its_spans() {
    let (tracer, mut ended) = queue(2);
    let root = Span::record(&tracer, trace_id(), None, Kind::Server, "request");
    let mut child = root.child("check");
    child.set("paceline.images", 2_u32);
    child.set("paceline.ttft_ms", 1.5);
    child.fail("bug");
    drop((child, root));
    let spans = [ended.try_recv(), ended.try_recv()].map(|span| span.expect("it ended"));
    let message = wire::message(&wire::resource(&origin()), spans.to_vec());
    let [resource] = &message.resource_spans[..] else { panic!("{message:?}") };
    let of_process = resource.resource.as_ref().expect("one").attributes.iter();
    let names: Vec<_> = of_process.map(|attribute| attribute.key.as_str()).collect();
    let expected = ["service.name", "service.version", "process.pid", "paceline.epoch"];
    assert_eq!(names, expected);
    let [child, root] = &resource.scope_spans[0].spans[..] else { panic!("{resource:?}") };
    assert_eq!(root.trace_id, trace_id().bytes());
    assert!(root.parent_span_id.is_empty() && root.status.is_none());
    assert_eq!((root.kind(), child.kind()), (SpanKind::Server, SpanKind::Internal));
    assert_eq!((&child.parent_span_id, child.attributes.len()), (&root.span_id, 2));
    assert_eq!(child.status.as_ref().map(|status| status.message.as_str()), Some("bug"));
}

/// Spans that end at once, and none of them waits. They are more than a collector could get in the
/// time of a test.
#[test]
fn a_collector_that_hangs_costs_spans_and_no_time() {
    // The system accepts connections, and nothing answers on them.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let tracer = Tracer::start(&endpoint, &origin()).expect("a thread");
    for _ in 0..50_000 {
        drop(Span::record(&tracer, trace_id(), None, Kind::Internal, "step"));
    }
    assert!(tracer.dropped.load(Ordering::Relaxed) > 0, "the queue has {QUEUE_SPANS} places");
    let clock = Clock::start();
    tracer.finish();
    let waited = Duration::from_millis(clock.now().0);
    assert!(waited < FINISH_TIMEOUT + Duration::from_secs(20), "{waited:?}");
}
