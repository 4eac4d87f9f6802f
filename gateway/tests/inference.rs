//! The middle of the gateway without a front: requests go in as the gateway's own types, and events
//! and errors come back. The upstream is a scripted supervisor.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::stage::supervisor::{self, Fake};
use crate::stage::within;
use futures::StreamExt as _;
use paceline_gateway::images::ImagePipeline;
use paceline_gateway::images::store::ImageStore;
use paceline_gateway::inference::admission::{ByteBudget, RequestSlots};
use paceline_gateway::inference::languages::Languages;
use paceline_gateway::inference::loads::{LoadQuestion, Loads, SpeculationLoad};
use paceline_gateway::inference::record::Method;
use paceline_gateway::inference::standing::Standing;
use paceline_gateway::inference::unread::AnswerStream;
use paceline_gateway::inference::upstream::Upstream;
use paceline_gateway::inference::upstream::attach::{Attachment, GatewayProcess};
use paceline_gateway::inference::{Inference, RequestContext};
use paceline_gateway::metrics::EndedRequest;
use paceline_gateway::prompter::Prompter;
use paceline_process::{Config, RuntimeDir, socket};
use paceline_proto::status::Refusal;
use paceline_proto::v1::{KvStatus, ModelStatus, RequestsStatus, StatusResponse};
use paceline_protocols::inference::error::InferenceError;
use paceline_protocols::inference::input::{
    ContentPartInput, ConversationInput, MessageInput, PromptInput, RequestInput, ToolInput,
};
use paceline_protocols::inference::params::GenerationParams;
use paceline_system::clock::monotonic_ns;
use paceline_text::prompt::Language;
use paceline_text::stream::{AnswerEvent, Usage};
use paceline_vocabulary::generation::{FinishReason, Speculation};
use paceline_vocabulary::{Epoch, Reason};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// The middle, attached to a scripted supervisor that serves the demo model.
struct Middle {
    inference: Arc<Inference>,
    fake: Fake,
    _attachment: supervisor::Attachment,
    _dir: tempfile::TempDir,
}

impl Middle {
    async fn serving() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut config = Config::default();
        config.supervisor.runtime_dir = dir.path().display().to_string();
        let runtime_dir = RuntimeDir::locate(&config).expect("a short path");
        paceline_gateway::images::prepare(&runtime_dir).expect("a place for images");
        let mut fake = Fake::start(&dir.path().join("supervisor.sock"), 1);
        let supervisor = socket::channel(runtime_dir.socket("supervisor"));
        let standing = watch::Sender::new(Standing::default());
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
        let language = Arc::new(Language::read(&demo).expect("all its files are there"));
        let languages = Languages::from(language);
        let attachment = Attachment {
            supervisor: supervisor.clone(),
            process: GatewayProcess { epoch: Epoch(7), restarts: 0 },
            standing: standing.clone(),
            running: RequestSlots::new(4, 4).watch(),
            orders: mpsc::channel(1).0,
            languages: languages.clone(),
            limits: config.limits.clone(),
        };
        attachment.start();
        let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
        attachment.service(crate::stage::ready()).await;
        let serves = |standing: &Standing| standing.serving().is_ok();
        within(standing.subscribe().wait_for(serves)).await.expect("attached");
        let inference = Inference {
            prompter: Prompter::new(2),
            languages,
            images: ImagePipeline::new(ImageStore::new(&runtime_dir, 7), &config.limits),
            budget: ByteBudget::new(config.limits.body_bytes),
            limits: config.limits,
            thinking_budget: 0,
            logs_texts: false,
            standing: standing.subscribe(),
            backlog: Arc::default(),
            upstream: Upstream::new(supervisor, Epoch(7)),
            journals: Arc::default(),
            cancel: CancellationToken::new(),
            metrics: Arc::default(),
            load_question: LoadQuestion::default(),
        };
        Self { inference: Arc::new(inference), fake, _attachment: attachment, _dir: dir }
    }

    async fn answer(&self, input: RequestInput) -> Result<AnswerStream, InferenceError> {
        within(answer(&self.inference, input)).await
    }
}

fn context(name: &'static str) -> RequestContext {
    let code = |reason: Option<Reason>| reason.map_or("fine", Reason::word).to_owned();
    RequestContext::new(Method { name, code }, monotonic_ns(), None)
}

async fn answer(
    inference: &Arc<Inference>,
    input: RequestInput,
) -> Result<AnswerStream, InferenceError> {
    let mut open = inference.open(context("answer"));
    let request = open.within(async { inference.check(input) }).await?;
    open.answer(request).await
}

/// A conversation of one message of this role.
fn conversation(role: &str, words: &str) -> ConversationInput {
    let content = vec![ContentPartInput::Text(words.into())];
    let message = MessageInput { role: role.into(), content, ..Default::default() };
    ConversationInput { messages: vec![message], ..Default::default() }
}

fn request(conversation: ConversationInput) -> RequestInput {
    let prompt = PromptInput::Conversation(conversation);
    RequestInput { prompt, params: GenerationParams::default() }
}

#[tokio::test]
async fn a_conversation_is_answered_without_a_protocol() {
    let mut middle = Middle::serving().await;
    let language = middle.inference.languages.now().language;
    let (ids, prompt) = (
        language.tokens.encode("Grüße 🦀!", false).expect("encodes"),
        language
            .tokens
            .encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", false)
            .expect("encodes"),
    );
    let (head, tail) = ids.split_at(ids.len() - 2);
    let Middle { inference, fake, .. } = &mut middle;
    let serving = async {
        let submission = fake.submission().await;
        assert_eq!(submission.generation().prompt_ids, prompt);
        let mut accepted = submission.accept();
        accepted.tokens(head).await;
        accepted
    };
    let answering = answer(inference, request(conversation("user", "Hi")));
    let (answer, accepted) = within(async { tokio::join!(answering, serving) }).await;
    let over = accepted.done(&[tail, &[2]].concat()).await;
    let events: Vec<_> = within(answer.expect("served").collect()).await;
    let events: Result<Vec<AnswerEvent>, InferenceError> = events.into_iter().collect();
    let events = events.expect("it ends well");
    assert!(within(over).await.is_err(), "the upstream's stream ended");

    let text: String = events.iter().map(|event| event.text()).collect();
    let token_ids = events.iter().flat_map(|event| event.token_ids.clone()).collect::<Vec<_>>();
    assert_eq!((text.as_str(), token_ids), ("Grüße 🦀!", [&ids[..], &[2]].concat()));
    let (last, rest) = events.split_last().expect("events");
    assert!(rest.iter().all(|event| event.last.is_none()));
    let end = last.last.as_ref().expect("the last has the end");
    assert_eq!(end.finish_reason, Some(FinishReason::Stop));
    let usage = Usage {
        prompt_tokens: prompt.len() as u32,
        completion_tokens: ids.len() as u32 + 1,
        ..Default::default()
    };
    assert_eq!((end.usage, end.timing.queue_ms), (usage, 1.5));
    assert!(0.0 < end.timing.ttft_ms && end.timing.ttft_ms <= end.timing.total_ms);
}

#[tokio::test]
async fn a_refusal_has_its_reason_and_its_field() {
    let mut middle = Middle::serving().await;
    let with = |params| RequestInput { params, ..request(conversation("user", "Hi")) };
    let twice = ConversationInput {
        template_arguments: r#"{"enable_thinking": true, "enable_thinking": false}"#.into(),
        ..conversation("user", "Hi")
    };
    let tools = ConversationInput {
        tools: vec![ToolInput { name: "f".into(), ..Default::default() }],
        ..conversation("user", "Hi")
    };
    let refusals = [
        (request(conversation("wizard", "Hi")), Reason::InvalidArgument, "messages[0].role"),
        (request(twice), Reason::InvalidArgument, "template_arguments"),
        (request(tools), Reason::NoTools, "tools"),
        (
            with(GenerationParams { max_tokens: Some(5_000), ..Default::default() }),
            Reason::InvalidArgument,
            "limits.max_tokens",
        ),
        (
            with(GenerationParams { model: "other".into(), ..Default::default() }),
            Reason::UnknownModel,
            "model",
        ),
        (
            RequestInput { prompt: PromptInput::Ids(vec![5; 5_000]), ..with(Default::default()) },
            Reason::PromptTooLong,
            "token_ids.ids",
        ),
    ];
    for (input, kind, field) in refusals {
        let error = middle.answer(input).await.expect_err("refused");
        assert_eq!((error.kind, error.field.as_deref()), (kind, Some(field)), "{error}");
    }
    assert!(middle.fake.submissions.try_recv().is_err(), "nothing was submitted");

    // A refusal of the upstream arrives whole.
    let pause = Duration::from_millis(250);
    let full = Refusal::new(Reason::QueueFull, "64 wait").retry_after(pause).field("queue");
    let Middle { inference, fake, .. } = &mut middle;
    let refusing = async { fake.submission().await.refuse(full.fact("limit", 64).into()) };
    let answering = answer(inference, request(conversation("user", "Hi")));
    let (answer, ()) = within(async { tokio::join!(answering, refusing) }).await;
    let expected = InferenceError {
        retry_after: pause,
        ..InferenceError::new(Reason::QueueFull, "64 wait").field("queue").fact("limit", 64)
    };
    assert_eq!(answer.expect_err("refused"), expected);
}

#[tokio::test]
async fn tokens_are_counted_and_the_model_is_described_without_a_protocol() {
    let mut middle = Middle::serving().await;
    let request = middle.inference.check(request(conversation("user", "Hi"))).expect("fine");
    let counted = middle.inference.open(context("count")).count(request);
    let counted = within(counted).await.expect("counted");
    assert!(!counted.ids.is_empty() && counted.context_length == 4096);
    assert!(middle.fake.submissions.try_recv().is_err(), "nothing is generated");
    let model = middle.inference.model("").expect("served");
    assert_eq!((model.name.as_str(), model.chat, model.tools), ("demo-target", true, false));
    assert_eq!(middle.inference.model("other").expect_err("another").kind, Reason::UnknownModel);
}

/// The files of a folder, those of its folders included.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("in the repository");
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The first word in a source file that belongs to a protocol.
fn protocol_word(file: &Path) -> Option<&'static str> {
    let text = std::fs::read_to_string(file).expect("a source file");
    // Ids of requests and bounds of their elements are the same in all protocols.
    let text = text.replace("paceline_proto::ids::", "");
    let text = text.replace("paceline_proto::limits", "");
    // The service's status, and what programs print of a model, are plain data.
    let text = text.replace("paceline_proto::convert::service::", "");
    let text = text.replace("paceline_proto::report::", "");
    ["tonic::", "prost::", "paceline_proto::"].into_iter().find(|word| text.contains(word))
}

#[test]
fn only_fronts_and_the_upstream_know_a_protocol() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (fronts, upstream) = (source.join("front"), source.join("inference/upstream"));
    // The module that connects the fronts and the upstream.
    let process = source.join("run.rs");
    for file in files(&source) {
        if ![&fronts, &upstream, &process].into_iter().any(|place| file.starts_with(place)) {
            assert_eq!(protocol_word(&file), None, "in {}", file.display());
        }
    }
    // The search finds the words of files that have some.
    for file in [fronts.join("grpc/mod.rs"), upstream.join("wire.rs"), process] {
        assert!(protocol_word(&file).is_some(), "none in {}", file.display());
    }
}

#[tokio::test]
async fn routers_that_ask_at_once_for_the_load_are_one_question() {
    let middle = Middle::serving().await;
    let operator = &middle.fake.operator;
    operator.report(StatusResponse {
        requests: Some(RequestsStatus {
            active: 5,
            queued: 3,
            unstarted: 2,
            most_active: 32,
            queued_tokens: 600,
            unstarted_tokens: 200,
            ..Default::default()
        }),
        kv: Some(KvStatus {
            budget_bytes: 1_000,
            held_bytes: 250,
            prefix_bytes: 500,
            pressure: 0.25,
            ..Default::default()
        }),
        model: Some(ModelStatus { position_bytes: 10, ..Default::default() }),
        ..Default::default()
    });
    let metrics = &middle.inference.metrics;
    metrics.ended(&EndedRequest {
        outcome: Ok(()),
        route: None,
        seconds: 1.0,
        prompt_tokens: 400,
        cached_tokens: 300,
        completion_tokens: 9,
    });
    metrics.drafts(Speculation { cycles: 4, drafted: 20, accepted: 10 });
    let loads = within(futures::future::join_all((0..50).map(|_| middle.inference.loads()))).await;
    let expected = Loads {
        running: 3,
        waiting: 5,
        waiting_tokens: 200,
        used_tokens: 25,
        most_tokens: 100,
        usage: 0.25,
        tokens_per_s: 0.0,
        cached_share: 0.75,
        most_running: 32,
        speculation: Some(SpeculationLoad { accept_length: 3.5, accept_rate: 0.5 }),
    };
    assert!(loads.iter().all(|load| *load == Some(expected)), "{:?}", loads.first());
    // A busy machine may take longer for fifty answers than the age of one.
    assert!(operator.asked.load(Ordering::SeqCst) < 50);
}

#[tokio::test]
async fn without_an_answer_of_the_supervisor_there_is_no_load() {
    let middle = Middle::serving().await;
    assert_eq!(within(middle.inference.loads()).await, None);
}
