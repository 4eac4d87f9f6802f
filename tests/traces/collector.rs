//! A collector of OpenTelemetry: it takes spans by OTLP/gRPC and keeps them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// A span as the collector got it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Name of the process.
    pub service: String,
    pub name: String,
    pub trace: String,
    pub id: String,
    /// Empty for the first span of a trace.
    pub parent: String,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Numbers are written in digits.
    pub attributes: BTreeMap<String, String>,
    /// Empty if the work did not fail.
    pub failure: String,
}

impl Seen {
    /// An attribute.
    ///
    /// # Panics
    /// There is none of this name.
    pub fn get(&self, name: &str) -> &str {
        let found = self.attributes.get(name);
        found.unwrap_or_else(|| panic!("expected {name}, found {self:?}"))
    }

    /// A number of an attribute.
    pub fn number(&self, name: &str) -> f64 {
        self.get(name).parse().expect("a number")
    }
}

#[derive(Debug, Default)]
struct Taken {
    spans: Vec<Seen>,
    /// All messages as they came.
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Sink(Arc<Mutex<Taken>>);

/// A collector that listens; it ends when this is dropped.
pub struct Collector {
    sink: Sink,
    endpoint: String,
    _runtime: Runtime,
}

impl Collector {
    pub fn start() -> Self {
        let runtime = Runtime::new().expect("threads");
        let sink = Sink::default();
        let service = TraceServiceServer::new(sink.clone());
        let endpoint = runtime.block_on(async {
            let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address"));
            let incoming = incoming.expect("a port");
            let address = incoming.local_addr().expect("it listens");
            let server = tonic::transport::Server::builder().add_service(service);
            paceline_process::task::spawn("collector", server.serve_with_incoming(incoming));
            format!("http://{address}")
        });
        Self { sink, endpoint, _runtime: runtime }
    }

    /// Value of `log.otlp`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<Seen> {
        self.sink.0.lock().expect("no panic").spans.clone()
    }

    /// Whether this text is in any message.
    pub fn has(&self, text: &str) -> bool {
        let taken = self.sink.0.lock().expect("no panic");
        taken.bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let message = request.into_inner();
        let mut taken = self.0.lock().expect("no panic");
        taken.bytes.extend(message.encode_to_vec());
        for of_process in message.resource_spans {
            let process = attributes(of_process.resource.expect("a process").attributes);
            for span in of_process.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let mut all = process.clone();
                all.extend(attributes(span.attributes));
                taken.spans.push(Seen {
                    service: process["service.name"].clone(),
                    name: span.name,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    start_ns: span.start_time_unix_nano,
                    end_ns: span.end_time_unix_nano,
                    attributes: all,
                    failure: span.status.map(|status| status.message).unwrap_or_default(),
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn attributes(list: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |attribute: KeyValue| {
        let value = attribute.value.and_then(|value| value.value);
        let text = match value {
            Some(Value::StringValue(text)) => text,
            Some(Value::IntValue(number)) => number.to_string(),
            Some(Value::DoubleValue(number)) => number.to_string(),
            other => panic!("expected a text or a number, found {other:?}"),
        };
        (attribute.key, text)
    };
    list.into_iter().map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
