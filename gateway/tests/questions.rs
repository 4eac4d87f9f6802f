//! CountTokens and GetModel, and the state of a gateway while it counts large texts.

use std::time::{Duration, Instant};

use paceline_proto::status::Reason;
use paceline_proto::v1::count_tokens_request::Request as Kind;
use paceline_proto::v1::{CountTokensRequest, GetModelRequest, Tool};
use prost::Message as _;
use tonic::{Code, Request};

use crate::stage::{Stage, chat, ids, is, text, within};

fn count(request: Kind) -> CountTokensRequest {
    CountTokensRequest { request: Some(request), report_ids: false }
}

#[tokio::test]
async fn a_count_is_what_would_be_submitted() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let asked = CountTokensRequest { report_ids: true, ..count(Kind::Chat(chat("Hi"))) };
    let counted = within(stage.client.count_tokens(asked)).await.expect("counted").into_inner();
    assert_eq!(
        (counted.prompt_tokens as usize, counted.context_length),
        (counted.token_ids.len(), 4096)
    );
    assert!(fake.submissions.try_recv().is_err(), "nothing is generated");
    let mut client = stage.client.clone();
    let serve = async {
        let submission = fake.submission().await;
        let prompt = submission.generation().prompt_ids.clone();
        let _over = submission.accept().done(&[2]).await;
        prompt
    };
    let (answered, prompt) = within(async { tokio::join!(client.chat(chat("Hi")), serve) }).await;
    answered.expect("answered");
    assert_eq!(counted.token_ids, prompt);

    let plain = within(stage.client.count_tokens(count(Kind::Generate(ids(&[5, 6, 7])))))
        .await
        .expect("counted")
        .into_inner();
    assert_eq!((plain.prompt_tokens, plain.token_ids.len()), (3, 0));
}

#[tokio::test]
async fn a_count_is_refused_as_the_request_would_be() {
    let (mut stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    let tools = vec![Tool { name: "f".into(), ..Default::default() }];
    for (request, code, reason) in [
        (CountTokensRequest::default(), Code::InvalidArgument, Reason::InvalidArgument),
        (count(Kind::Generate(text(""))), Code::InvalidArgument, Reason::InvalidArgument),
        (count(Kind::Generate(ids(&[1; 5000]))), Code::InvalidArgument, Reason::PromptTooLong),
        (
            count(Kind::Chat(paceline_proto::v1::ChatRequest { tools, ..chat("Hi") })),
            Code::FailedPrecondition,
            Reason::NoTools,
        ),
    ] {
        let status = within(stage.client.count_tokens(request)).await.expect_err("refused");
        is(&status, code, reason);
        assert!(status.metadata().get(paceline_gateway::front::grpc::status::REQUEST_ID).is_some());
    }
}

#[tokio::test]
async fn get_model_describes_the_served_model() {
    let (mut stage, _fake, _attachment) = Stage::serving(|config| {
        config.limits.max_new_tokens = paceline_process::config::Auto::Is(100)
    })
    .await;
    let model = within(stage.client.get_model(GetModelRequest::default()))
        .await
        .expect("known")
        .into_inner();
    assert_eq!((model.name.as_str(), model.architecture.as_str()), ("demo-target", "qwen3"));
    assert_eq!((model.vocab_size, model.context_length), (4096, 4096));
    assert_eq!((model.max_prompt_tokens, model.max_new_tokens), (4096, 100));
    assert_eq!((model.chat, model.tools, model.vision), (true, false, false));
    assert_eq!(model.stop_token_ids, [2]);
    let sampling = model.default_sampling.expect("set");
    assert_eq!((sampling.temperature, sampling.top_p, sampling.seed), (Some(0.0), Some(1.0), None));
    let named = GetModelRequest { model: model.name };
    assert!(within(stage.client.get_model(named)).await.is_ok());
    let status = within(stage.client.get_model(GetModelRequest { model: "other".into() }))
        .await
        .expect_err("another");
    is(&status, Code::NotFound, Reason::UnknownModel);
}

#[tokio::test]
async fn an_operator_shortens_the_context_and_never_lengthens_it() {
    for (tokens, context) in [(100, 100), (1_000_000, 4096)] {
        let (mut stage, _fake, _attachment) = Stage::serving(|config| {
            config.limits.context_tokens = paceline_process::config::Auto::Is(tokens)
        })
        .await;
        let model = within(stage.client.get_model(GetModelRequest::default())).await;
        assert_eq!(model.expect("known").into_inner().context_length, context);
        let long = ids(&vec![1; context as usize]);
        let status = within(stage.client.count_tokens(count(Kind::Generate(long))))
            .await
            .expect_err("too long");
        is(&status, Code::InvalidArgument, Reason::PromptTooLong);
        let whose = if tokens == context { "limits.context_tokens" } else { "the model's context" };
        assert!(status.message().contains(whose), "{}", status.message());
    }
}

#[tokio::test]
async fn a_megabyte_of_anything_takes_a_second_at_most_and_keeps_nobody_waiting() {
    let (stage, _fake, attachment) = Stage::serving(|_| {}).await;
    paceline_process::task::spawn("reports", attachment.read_on());
    let mut others = stage.client.clone();
    for piece in ["a", " ", "\n", "_", "🦀", "ab ", "é"] {
        let mut client = stage.client.clone();
        let large = piece.repeat((1 << 20) / piece.len());
        let began = clock();
        let counting = paceline_process::task::spawn("count", async move {
            let refused = client
                .count_tokens(count(Kind::Generate(text(large))))
                .await
                .expect_err("too long for this model");
            (clock() - began, refused)
        });
        let mut meanwhile = 0u32;
        while !counting.is_finished() {
            let counted =
                within(others.count_tokens(count(Kind::Chat(chat("Hi"))))).await.expect("counted");
            assert!(counted.into_inner().prompt_tokens > 0);
            meanwhile += 1;
        }
        let (took, refused) = within(counting).await.expect("no panic");
        is(&refused, Code::InvalidArgument, Reason::PromptTooLong);
        // Six times what one core takes for the slowest of them: it shows a tokenizer that is
        // quadratic, not a busy machine.
        assert!(took < Duration::from_secs(6), "{piece:?}: {took:?}");
        assert!(meanwhile > 0, "{piece:?}: others were served");
        println!("{piece:?}: {took:?}, {meanwhile} others meanwhile");
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_by_name() {
    let (stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    /// A GenerateRequest whose text is any bytes.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Raw {
        #[prost(bytes = "vec", tag = "2")]
        text: Vec<u8>,
    }
    let mut grpc = tonic::client::Grpc::new(stage.channel.clone());
    grpc.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<Raw, paceline_proto::v1::GenerateResponse>::default();
    let path = "/paceline.v1.Inference/Generate".parse().expect("a path");
    let raw = Raw { text: [0xff, 0xfe].repeat(1 << 19) };
    assert_eq!(raw.encoded_len() >> 20, 1);
    let status =
        within(grpc.server_streaming(Request::new(raw), path, codec)).await.expect_err("no UTF-8");
    is(&status, Code::InvalidArgument, Reason::InvalidArgument);
    assert!(status.message().contains("UTF-8"), "{status:?}");
}

#[expect(clippy::disallowed_methods, reason = "how long it took is what is tested")]
fn clock() -> Instant {
    Instant::now()
}
