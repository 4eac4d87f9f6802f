//! Spans as messages of OTLP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AttributeValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use super::ended::{EndedSpan, Kind, Origin, Value};

/// Name of the code that records the spans.
const SCOPE: &str = "paceline";
/// The flag of traces that are recorded.
const SAMPLED: u32 = 1;

/// The process, as every message names it.
pub(super) fn resource(origin: &Origin) -> Resource {
    let mut attributes = vec![
        attribute("service.name", origin.program.into()),
        attribute("service.version", env!("CARGO_PKG_VERSION").into()),
        attribute("process.pid", std::process::id().into()),
    ];
    attributes
        .extend(origin.numbers.iter().map(|(name, number)| attribute(name, (*number).into())));
    Resource { attributes, ..Default::default() }
}

/// One message of these spans.
pub(super) fn message(resource: &Resource, spans: Vec<EndedSpan>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    let spans = spans.into_iter().map(span).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..Default::default() }];
    let resource = Some(resource.clone());
    let resource_spans = vec![ResourceSpans { resource, scope_spans, ..Default::default() }];
    ExportTraceServiceRequest { resource_spans }
}

fn span(span: EndedSpan) -> Span {
    let kind = match span.kind {
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
        Kind::Internal => SpanKind::Internal,
    };
    let status = span
        .failure
        .map(|reason| Status { message: reason.to_owned(), code: StatusCode::Error.into() });
    Span {
        trace_id: span.context.trace.bytes().to_vec(),
        span_id: span.context.span.bytes().to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.bytes().to_vec()),
        flags: SAMPLED,
        name: span.name.to_owned(),
        kind: kind.into(),
        start_time_unix_nano: span.start_unix_ns,
        end_time_unix_nano: span.end_unix_ns,
        attributes: span
            .attributes
            .into_iter()
            .map(|(name, value)| attribute(name, value))
            .collect(),
        status,
        ..Default::default()
    }
}

fn attribute(name: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Integer(value) => AttributeValue::IntValue(value),
        Value::Number(value) => AttributeValue::DoubleValue(value),
        Value::Text(value) => AttributeValue::StringValue(value),
    };
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: name.to_owned(), value, ..Default::default() }
}
