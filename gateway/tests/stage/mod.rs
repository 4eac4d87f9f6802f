//! A gateway with a scripted supervisor behind it: real sockets, real tonic services, one process.
//! Every wait is on a state, with a bound against hangs.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod exchange;
pub mod http;
pub mod methods;
pub mod operations;
pub mod program;
pub mod raw;
pub mod seeing;
pub mod supervisor;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use paceline_gateway::guard::Guard;
use paceline_gateway::inference::languages::Languages;
use paceline_gateway::life::Life;
use paceline_gateway::{FrontListeners, Setup, run};
use paceline_process::{Config, RuntimeDir, task};
use paceline_proto::internal::v1::{ModelInfo, ServiceState};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{ChatRequest, ContentPart, GenerateRequest, Limits, Message, TokenIds};
use paceline_service_core::ending::Event;
use paceline_text::prompt::Language;
use paceline_vocabulary::Exit;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use supervisor::{Attachment, Fake};

/// Awaits with a bound that only a hang reaches.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("within 30 seconds")
}

/// Everything of one test.
pub struct Stage {
    pub dir: tempfile::TempDir,
    pub address: std::net::SocketAddr,
    /// Where it speaks HTTP.
    pub http: std::net::SocketAddr,
    pub channel: Channel,
    pub client: InferenceClient<Channel>,
    pub health: HealthClient<Channel>,
    /// Signals and the like.
    pub events: mpsc::Sender<Event>,
    pub exit: JoinHandle<Exit>,
}

impl Stage {
    /// A gateway for the demo model, without a supervisor yet.
    pub fn new(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
        Self::of(dir, &demo, change)
    }

    /// A gateway for a model that sees, with a supervisor that serves it.
    pub async fn seeing(change: impl FnOnce(&mut Config)) -> (Self, Fake, Attachment) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let model = dir.path().join("model");
        seeing::model(&model);
        let mut stage = Self::of(dir, &model, change);
        let (fake, attachment) = stage.attach_with(1, seeing::ready()).await;
        stage.health_until("", ServingStatus::Serving).await;
        (stage, fake, attachment)
    }

    fn of(dir: tempfile::TempDir, model: &Path, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.supervisor.runtime_dir = dir.path().display().to_string();
        change(&mut config);
        let runtime_dir = RuntimeDir::locate(&config).expect("a short path");
        let listener = listen();
        let http_listener = listen();
        let address = listener.local_addr().expect("bound");
        let http = http_listener.local_addr().expect("bound");
        let language = Arc::new(Language::read(model).expect("all its files are there"));
        let (events, receiver) = mpsc::channel(8);
        let guard = Guard::prepare(&config).expect("its files can be used");
        std::fs::write(dir.path().join("gateway.epoch"), "6").expect("writable");
        let life = Life::begin(&runtime_dir).expect("the first gateway");
        paceline_gateway::images::prepare(&runtime_dir).expect("a place for images");
        let setup = Setup {
            config,
            languages: Languages::from(language),
            runtime_dir,
            life,
            listeners: FrontListeners {
                grpc: listener,
                http: Some(http_listener),
                ollama: None,
                are_held: false,
            },
            guard,
        };
        let exit = task::spawn("gateway", run(setup, receiver));
        let channel =
            Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
        let client = InferenceClient::new(channel.clone());
        let health = HealthClient::new(channel.clone());
        Self { dir, address, http, channel, client, health, events, exit }
    }

    /// With a supervisor that serves.
    pub async fn serving(change: impl FnOnce(&mut Config)) -> (Self, Fake, Attachment) {
        let mut stage = Self::new(change);
        let (fake, attachment) = stage.attach(1).await;
        stage.health_until("", ServingStatus::Serving).await;
        (stage, fake, attachment)
    }

    /// A supervisor comes and reports that it serves.
    pub async fn attach(&mut self, term: u64) -> (Fake, Attachment) {
        self.attach_with(term, ready()).await
    }

    async fn attach_with(&mut self, term: u64, state: ServiceState) -> (Fake, Attachment) {
        let mut fake = Fake::start(&self.dir.path().join("supervisor.sock"), term);
        let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
        attachment.service(state).await;
        (fake, attachment)
    }

    pub async fn watch(&mut self, service: &str) -> Streaming<HealthCheckResponse> {
        let request = HealthCheckRequest { service: service.into() };
        within(self.health.watch(request)).await.expect("a watch").into_inner()
    }

    /// Waits until health answers `status`.
    pub async fn health_until(&mut self, service: &str, status: ServingStatus) {
        let mut watch = self.watch(service).await;
        loop {
            let seen = within(watch.message()).await.expect("fine").expect("open").status;
            if seen == status as i32 {
                return;
            }
        }
    }

    pub async fn health_now(&mut self, service: &str) -> bool {
        let request = HealthCheckRequest { service: service.into() };
        within(self.health.check(request)).await.expect("a known name").into_inner().status
            == ServingStatus::Serving as i32
    }

    pub async fn send(&self, event: Event) {
        self.events.send(event).await.expect("the gateway listens");
    }

    pub async fn ended(&mut self) -> Exit {
        within(&mut self.exit).await.expect("no panic")
    }
}

fn listen() -> std::net::TcpListener {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    listener
}

/// The demo model, served.
pub fn ready() -> ServiceState {
    let model = ModelInfo {
        name: "demo-target".into(),
        architecture: "qwen3".into(),
        context_length: 4096,
        vocab_size: 4096,
        ..Default::default()
    };
    ServiceState { can_serve: true, model: Some(model), ..Default::default() }
}

pub fn text(prompt: impl Into<String>) -> GenerateRequest {
    GenerateRequest { prompt: Some(Prompt::Text(prompt.into())), ..Default::default() }
}

pub fn ids(ids: &[u32]) -> GenerateRequest {
    GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: ids.to_vec() })),
        ..Default::default()
    }
}

pub fn limited(request: GenerateRequest, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        limits: Some(Limits {
            max_tokens: Some(max_tokens),
            ignore_eos: false,
            ..Default::default()
        }),
        ..request
    }
}

pub fn chat(words: &str) -> ChatRequest {
    let part = ContentPart { part: Some(Part::Text(words.into())) };
    ChatRequest {
        messages: vec![Message { role: "user".into(), content: vec![part], ..Default::default() }],
        ..Default::default()
    }
}

/// Checks code and reason.
#[track_caller]
pub fn is(status: &Status, code: Code, reason: Reason) {
    assert_eq!((status.code(), Reason::of(status)), (code, Some(reason)), "{status:?}");
}
