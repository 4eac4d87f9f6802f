//! The paths of HTTP without a socket: requests go to the router, and the supervisor is scripted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use paceline_gateway::front::decoding::Decoding;
use paceline_gateway::front::http::{HttpFront, router};
use paceline_gateway::guard::Guard;
use paceline_gateway::images::ImagePipeline;
use paceline_gateway::images::store::ImageStore;
use paceline_gateway::inference::Inference;
use paceline_gateway::inference::admission::{ByteBudget, RequestSlots};
use paceline_gateway::inference::languages::Languages;
use paceline_gateway::inference::loads::LoadQuestion;
use paceline_gateway::inference::standing::Standing;
use paceline_gateway::inference::upstream::Upstream;
use paceline_gateway::inference::upstream::attach::{Attachment, GatewayProcess};
use paceline_gateway::overview::Overview;
use paceline_gateway::prompter::Prompter;
use paceline_process::config::ModelAliases;
use paceline_process::{Config, RuntimeDir, socket};
use paceline_proto::internal::v1::{ModelInfo, ServiceState};
use paceline_protocols::aliases::Aliases;
use paceline_protocols::sse::KEEP_ALIVE;
use paceline_text::prompt::Language;
use paceline_vocabulary::Epoch;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::supervisor::{self, Fake};
use super::within;

/// Tokens of the context of the model here: room for an agent's prompt.
pub const CONTEXT: u32 = 32_768;

/// The router, attached to a scripted supervisor that serves the demo model with a template that
/// shows tools and thoughts.
pub struct Exchange {
    pub router: Router,
    pub fake: Fake,
    pub language: Arc<Language>,
    _attachment: supervisor::Attachment,
    _dir: tempfile::TempDir,
}

/// An answer.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

/// One server-sent event.
#[derive(Debug)]
pub struct Event {
    pub name: Option<String>,
    pub data: Value,
}

impl Exchange {
    pub async fn serving() -> Self {
        Self::keeping_alive(KEEP_ALIVE).await
    }

    /// With a keep-alive after this time without an event.
    pub async fn keeping_alive(keep_alive: Duration) -> Self {
        Self::of("qwen3.jinja", keep_alive).await
    }

    /// With this template of `text/tests/templates`.
    pub async fn with_template(template: &str) -> Self {
        Self::of(template, KEEP_ALIVE).await
    }

    async fn of(template: &str, keep_alive: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let model = dir.path().join("model");
        write_model(&model, template);
        let mut config = Config::default();
        config.supervisor.runtime_dir = dir.path().display().to_string();
        let runtime_dir = RuntimeDir::locate(&config).expect("a short path");
        paceline_gateway::images::prepare(&runtime_dir).expect("a place for images");
        let mut fake = Fake::start(&dir.path().join("supervisor.sock"), 1);
        let upstream = socket::channel(runtime_dir.socket("supervisor"));
        let standing = watch::Sender::new(Standing::default());
        let slots = RequestSlots::new(64, 64);
        let language = Arc::new(Language::read(&model).expect("all its files are there"));
        let languages = Languages::from(Arc::clone(&language));
        let attachment = Attachment {
            supervisor: upstream.clone(),
            process: GatewayProcess { epoch: Epoch(7), restarts: 0 },
            standing: standing.clone(),
            running: slots.watch(),
            orders: mpsc::channel(1).0,
            languages: languages.clone(),
            limits: config.limits.clone(),
        };
        attachment.start();
        let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
        attachment.service(ready()).await;
        let serves = |standing: &Standing| standing.serving().is_ok();
        within(standing.subscribe().wait_for(serves)).await.expect("attached");
        let inference = Inference {
            prompter: Prompter::new(2),
            languages,
            images: ImagePipeline::new(ImageStore::new(&runtime_dir, 7), &config.limits),
            budget: ByteBudget::new(config.limits.body_bytes),
            limits: config.limits,
            thinking_budget: config.gateway.thinking_budget,
            logs_texts: config.log.prompts,
            standing: standing.subscribe(),
            backlog: Arc::default(),
            metrics: Arc::default(),
            load_question: LoadQuestion::default(),
            upstream: Upstream::new(upstream.clone(), Epoch(7)),
            journals: Arc::default(),
            cancel: CancellationToken::new(),
        };
        let front = HttpFront {
            inference: Arc::new(inference),
            calls: slots,
            standing: standing.subscribe(),
            decoding: Decoding::new(2),
            aliases: Aliases { names: ModelAliases::Any, is_loopback: true },
            overview: Arc::new(Overview::new(Upstream::new(upstream, Epoch(7)))),
            guard: Guard::prepare(&Config::default()).expect("no files"),
            keep_alive,
        };
        let router = router(Arc::new(front), true);
        Self { router, fake, language, _attachment: attachment, _dir: dir }
    }

    /// Posts a body, and reads the whole answer.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        reply(self.router.clone(), path, body).await
    }

    /// Posts a body, and answers it with this text. Returns the prompt as well.
    pub async fn answered(&mut self, path: &str, body: &Value, answer: &Answer<'_>) -> Served {
        self.answered_text(path, body.to_string(), answer).await
    }

    /// Sends a body as text, which may have a key twice, and answers it.
    pub async fn answered_text(&mut self, path: &str, body: String, answer: &Answer<'_>) -> Served {
        let mut ids = self.language.tokens.encode(answer.text, false).expect("encodes");
        let router = self.router.clone();
        let serving = async {
            let submission = self.fake.submission().await;
            let prompt = submission.generation().prompt_ids.clone();
            let asked = submission.generation().report_so_far;
            let max_tokens = submission.generation().max_tokens;
            let grammar = submission.generation().grammar.clone();
            let frame = grammar.map(|grammar| grammar.frame).unwrap_or_default();
            let mut accepted = submission.accept();
            let last = ids.split_off(ids.len().saturating_sub(1));
            accepted.cached = answer.cached;
            accepted.so_far = asked;
            accepted.tokens(&ids).await;
            let over = accepted.done(&last).await;
            (prompt, max_tokens, frame, over)
        };
        let (reply, (prompt, max_tokens, frame, _over)) =
            within(async { tokio::join!(reply_to_text(router, path, body), serving) }).await;
        Served { reply, prompt, max_tokens, frame }
    }

    /// The text of a prompt, with its special tokens.
    pub fn text(&self, ids: &[u32]) -> String {
        let special = |id: &u32| self.language.tokens.is_skipped(*id);
        let mut text = String::new();
        for run in ids.chunk_by(|one, next| !special(one) && !special(next)) {
            text += &match run {
                [id] if special(id) => self.language.tokens.text(*id).expect("a token"),
                _ => self.language.tokens.decode(run).expect("decodes"),
            };
        }
        text
    }
}

/// The scripted supervisor's answer.
pub struct Answer<'a> {
    pub text: &'a str,
    /// Tokens of the prompt that came from the cache.
    pub cached: u32,
}

/// A request that was served.
pub struct Served {
    pub reply: Reply,
    pub prompt: Vec<u32>,
    /// Most tokens that the target may generate.
    pub max_tokens: u32,
    /// The frame of its grammar; empty if the answer is free.
    pub frame: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// Events of a streamed reply, without comments.
    pub fn events(&self) -> Vec<Event> {
        assert_eq!(self.headers["content-type"], "text/event-stream", "{}", self.body);
        let field = |event: &str, name: &str| {
            event.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
        };
        let one = |event: &str| {
            let data = field(event, "data: ")?;
            let data = serde_json::from_str(&data).unwrap_or(Value::String(data));
            Some(Event { name: field(event, "event: "), data })
        };
        self.body.split("\n\n").filter_map(one).collect()
    }
}

pub async fn reply(router: Router, path: &str, body: &Value) -> Reply {
    reply_to_text(router, path, body.to_string()).await
}

/// Posts a body as text.
pub async fn reply_to_text(router: Router, path: &str, body: String) -> Reply {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(Body::from(body)).expect("a request");
    let response = within(router.oneshot(request)).await.expect("infallible");
    let (parts, body) = response.into_parts();
    let body = within(axum::body::to_bytes(body, 16 << 20)).await.expect("a whole body");
    let body = String::from_utf8(body.to_vec()).expect("UTF-8");
    Reply { status: parts.status, headers: parts.headers, body }
}

/// The demo's tokenizer, and a template of text/tests/templates.
pub fn write_model(dir: &Path, template: &str) {
    std::fs::create_dir_all(dir).expect("writable");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let demo = root.join("../demo/target");
    for name in ["tokenizer.json", "config.json", "tokenizer_config.json"] {
        std::fs::copy(demo.join(name), dir.join(name)).expect("copied");
    }
    let template = root.join("../text/tests/templates").join(template);
    std::fs::copy(template, dir.join("chat_template.jinja")).expect("copied");
}

pub fn ready() -> ServiceState {
    let model = ModelInfo {
        name: "agentic".into(),
        architecture: "qwen3".into(),
        context_length: CONTEXT,
        vocab_size: 4096,
        ..Default::default()
    };
    ServiceState { can_serve: true, model: Some(model), ..Default::default() }
}

/// A request of a client, from tests/fixtures/clients.
pub fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clients").join(name);
    let text = std::fs::read_to_string(&path).expect("in the repository");
    serde_json::from_str(&text).expect("JSON")
}
