//! Images through the gateway: what is submitted for them, what happens to their files, what is
//! refused and how.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use paceline_proto::internal::v1::Image;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::count_tokens_request::Request as Kind;
use paceline_proto::v1::{ChatRequest, CountTokensRequest, GetModelRequest, Message};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tonic::{Code, Status};

use crate::hostile::plain_png;
use crate::stage::http::HttpClient;
use crate::stage::seeing::{PAD, chat, file, image, says, text, url};
use crate::stage::{Stage, is, within};

fn folder(stage: &Stage) -> PathBuf {
    stage.dir.path().join("images")
}

fn names(folder: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).expect("there").map(|entry| entry.expect("fine").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn data_url(name: &str) -> String {
    format!(
        "data:image/png;base64,{}",
        base64::engine::general_purpose::STANDARD.encode(file(name))
    )
}

/// A conversation with an image of 100 x 60 (3 x 2 rows: it becomes 96 x 64) before one of 33 x
/// 400.
fn two() -> ChatRequest {
    chat(vec![says(
        "user",
        vec![text("a"), image(file("up.png")), url(&data_url("tall.png")), text("which?")],
    )])
}

/// Reads an image as the target does.
fn read(folder: &Path, image: &Image) -> Vec<u8> {
    let path = folder.join(&image.file);
    let meta = std::fs::symlink_metadata(&path).expect("there");
    assert!(meta.is_file() && meta.mode() & 0o777 == 0o600, "{:o}", meta.mode());
    let pixels = std::fs::read(&path).expect("readable");
    assert_eq!((pixels.len() as u64, meta.len()), (image.bytes, image.bytes));
    let mut hasher = Sha256::new();
    hasher.update(image.rows.to_le_bytes());
    hasher.update(image.columns.to_le_bytes());
    image.scale.iter().chain(&image.bias).for_each(|number| hasher.update(number.to_le_bytes()));
    hasher.update(&pixels);
    let digest = hasher.finalize();
    assert_eq!(digest[..], image.digest[..]);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(image.file.starts_with(&hex), "{}", image.file);
    pixels
}

#[tokio::test]
async fn images_stand_in_the_prompt_and_in_files() {
    let (mut stage, mut fake, _attachment) = Stage::seeing(|_| {}).await;
    let folder = folder(&stage);
    assert_eq!(std::fs::metadata(&folder).expect("made").mode() & 0o777, 0o700);
    let counting = CountTokensRequest { request: Some(Kind::Chat(two())), report_ids: true };
    let counted = within(stage.client.count_tokens(counting)).await.expect("counted").into_inner();
    assert!(names(&folder).is_empty(), "counting writes nothing");

    let mut client = stage.client.clone();
    let asked = paceline_process::task::spawn("chat", async move { client.chat(two()).await });
    let submission = fake.submission().await;
    let generation = submission.generation().clone();
    assert_eq!(generation.prompt_ids, counted.token_ids);
    assert_eq!(generation.traffic_class, "image");
    let [first, second] = generation.images.as_slice() else {
        panic!("two, found {}", generation.images.len())
    };
    assert_eq!((first.rows, first.columns, second.rows, second.columns), (4, 6, 24, 2));
    assert_eq!((first.scale.len(), first.bias.as_slice()), (3, &[-1.0; 3][..]));
    for image in [first, second] {
        let rows = (image.rows * image.columns / 4) as usize;
        let place = &generation.prompt_ids[image.first as usize..];
        assert!(
            place[..rows].iter().all(|id| *id == PAD) && place[rows] == 4098,
            "its rows, and the end behind them"
        );
        assert_eq!(
            generation.prompt_ids[image.first as usize - 1],
            4096,
            "the beginning before them"
        );
        assert_eq!(image.bytes, u64::from(image.rows * image.columns) * 16 * 16 * 3);
        read(&folder, image);
    }
    assert_eq!(generation.prompt_ids.iter().filter(|id| **id == PAD).count(), 6 + 12);
    // Each has a file for this target and one for the next, if this one ends.
    assert_eq!(names(&folder).len(), 4);
    // The target took one and left one.
    std::fs::remove_file(folder.join(&first.file)).expect("there");
    let mut accepted = submission.accept();
    accepted.tokens(&[300]).await;
    let mut stream = within(asked).await.expect("no panic").expect("answered").into_inner();
    within(stream.message()).await.expect("fine").expect("tokens");
    let left = names(&folder);
    assert!(
        left.len() == 3 && left.contains(&second.file),
        "the others stay as long as their request: {left:?}"
    );
    let over = accepted.done(&[2]).await;
    while within(stream.message()).await.expect("a good stream").is_some() {}
    let _ = within(over).await;
    assert!(names(&folder).is_empty(), "and goes with it");
}

#[tokio::test]
async fn the_same_image_is_the_same_however_it_comes_and_another_is_not() {
    let (stage, mut fake, _attachment) = Stage::seeing(|_| {}).await;
    let mut digests = vec![];
    for part in [image(file("up.png")), url(&data_url("up.png")), image(file("odd.png"))] {
        let mut client = stage.client.clone();
        let request = chat(vec![says("user", vec![part, text("what?")])]);
        let asked =
            paceline_process::task::spawn(
                "chat",
                async move { client.chat(request).await.map(|_| ()) },
            );
        let submission = fake.submission().await;
        digests.push(submission.generation().images[0].digest.clone());
        submission.refuse(Reason::CrashLoop.status("not yet"));
        is(
            &within(asked).await.expect("no panic").expect_err("refused"),
            Code::Unavailable,
            Reason::CrashLoop,
        );
        assert!(names(&folder(&stage)).is_empty(), "a refused request leaves no file");
    }
    assert!(digests[0] == digests[1] && digests[0] != digests[2]);
}

#[tokio::test]
async fn every_sample_has_files_of_its_own() {
    let (mut stage, mut fake, _attachment) = Stage::seeing(|_| {}).await;
    let folder = folder(&stage);
    let mut client = stage.client.clone();
    let request = ChatRequest { samples: 3, ..two() };
    let asked = paceline_process::task::spawn("chat", async move { client.chat(request).await });
    let mut files = vec![];
    let mut accepted = vec![];
    for _ in 0..3 {
        let submission = fake.submission().await;
        for image in &submission.generation().images {
            read(&folder, image);
            std::fs::remove_file(folder.join(&image.file)).expect("its own");
            files.push(image.file.clone());
        }
        accepted.push(submission.accept());
    }
    files.sort();
    files.dedup();
    assert_eq!(files.len(), 6);
    accepted[0].tokens(&[300]).await;
    let response = within(asked).await.expect("no panic").expect("answered");
    drop(response);
    for one in accepted {
        let _ = within(one.over).await;
    }
    // The gateway drops its end when it sees the client gone; a request behind it sees the folder
    // empty.
    let _ = within(stage.client.get_model(GetModelRequest::default())).await;
    within(async {
        while !names(&folder).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn refused(stage: &Stage, request: ChatRequest) -> Status {
    within(stage.client.clone().chat(request)).await.map(|_| ()).expect_err("refused")
}

#[tokio::test]
async fn an_image_is_never_left_out_and_never_made_of_text() {
    let (mut stage, mut fake, _attachment) =
        Stage::seeing(|config| config.limits.max_images = 3).await;
    let image = || image(file("up.png"));
    // The template shows none of the system's.
    let hidden =
        chat(vec![says("system", vec![image(), text("s")]), says("user", vec![text("u")])]);
    let status = refused(&stage, hidden.clone()).await;
    is(&status, Code::InvalidArgument, Reason::Template);
    assert!(
        status.message().contains("each of 1 images") && status.message().contains("found 0"),
        "{status:?}"
    );
    // Nor does a text beside it take its place.
    let said =
        chat(vec![says("system", vec![image()]), says("user", vec![text("see <|image_pad|>")])]);
    let status = refused(&stage, said).await;
    is(&status, Code::InvalidArgument, Reason::Template);
    // An id has no ordinary form.
    let request = crate::stage::ids(&[5, PAD]);
    is(
        &within(stage.client.generate(request)).await.expect_err("refused"),
        Code::InvalidArgument,
        Reason::InvalidArgument,
    );
    let counting = CountTokensRequest { request: Some(Kind::Chat(hidden)), report_ids: false };
    is(
        &within(stage.client.count_tokens(counting)).await.expect_err("no number"),
        Code::InvalidArgument,
        Reason::Template,
    );
    assert!(fake.submissions.try_recv().is_err() && names(&folder(&stage)).is_empty());
}

#[tokio::test]
async fn more_images_than_allowed_are_refused() {
    let (stage, mut fake, _attachment) = Stage::seeing(|config| config.limits.max_images = 3).await;
    let many = chat(vec![says("user", (0..4).map(|_| image(file("up.png"))).collect())]);
    let status = refused(&stage, many).await;
    is(&status, Code::InvalidArgument, Reason::BadImage);
    assert!(status.message().contains("at most 3 images"), "{status:?}");
    assert!(fake.submissions.try_recv().is_err() && names(&folder(&stage)).is_empty());
}

#[tokio::test]
async fn an_assistants_image_is_shown_and_text_alone_has_the_default_class() {
    let (mut stage, mut fake, _attachment) = Stage::seeing(|_| {}).await;
    let model = within(stage.client.get_model(GetModelRequest::default()))
        .await
        .expect("served")
        .into_inner();
    assert!(model.vision);
    let mut client = stage.client.clone();
    let answer = chat(vec![
        says("assistant", vec![image(file("up.png"))]),
        says("user", vec![text("more")]),
    ]);
    let _first =
        paceline_process::task::spawn("chat", async move { client.chat(answer).await.map(|_| ()) });
    assert_eq!(fake.submission().await.generation().images.len(), 1);
    let mut client = stage.client.clone();
    let _second = paceline_process::task::spawn("text", async move {
        client.generate(crate::stage::text("Hi")).await.map(|_| ())
    });
    let submission = fake.submission().await;
    assert_eq!(
        (submission.generation().traffic_class.as_str(), submission.generation().images.len()),
        ("default", 0)
    );
}

#[tokio::test]
async fn images_that_the_context_cannot_hold_are_not_decoded() {
    let (stage, _fake, _attachment) = Stage::seeing(|config| {
        config.limits.max_prompt_tokens = paceline_process::config::Auto::Is(17)
    })
    .await;
    let status = refused(&stage, two()).await;
    is(&status, Code::InvalidArgument, Reason::PromptTooLong);
    assert!(status.message().contains("images that alone become 18"), "{status:?}");
}

#[tokio::test]
async fn addresses_are_refused_with_the_reason_and_nothing_is_fetched() {
    let (stage, _fake, _attachment) = Stage::seeing(|_| {}).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let here = format!("http://{}/a.png", listener.local_addr().expect("bound"));
    for (address, word) in [
        (here.as_str(), "fetches nothing"),
        ("https://example.com/a.png", "fetches nothing"),
        ("file:///etc/passwd", "fetches nothing"),
        ("/etc/passwd", "fetches nothing"),
        ("", "fetches nothing"),
        ("data:image/png;base64,@@@@", "base64"),
        ("data:image/svg+xml,<svg/>", "not base64"),
        ("data:image/png;base64,", "empty"),
    ] {
        let status = refused(&stage, chat(vec![says("user", vec![text("a"), url(address)])])).await;
        is(&status, Code::InvalidArgument, Reason::BadImage);
        assert!(
            status.message().starts_with("messages[0].content[1]: ")
                && status.message().contains(word),
            "{status:?}"
        );
    }
    assert_eq!(listener.accept().expect_err("nobody came").kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn hostile_images_are_refused_by_name_when_counted_too() {
    let (mut stage, mut fake, _attachment) = Stage::seeing(|_| {}).await;
    for one in crate::hostile::all().into_iter().filter(|one| one.file.len() < 1 << 16) {
        let request = chat(vec![says("user", vec![image(one.file), text("?")])]);
        let counting = CountTokensRequest { request: Some(Kind::Chat(request)), report_ids: false };
        let status = within(stage.client.count_tokens(counting)).await.expect_err(one.name);
        is(&status, Code::InvalidArgument, Reason::BadImage);
        assert!(status.message().contains(one.word), "{}: {status:?}", one.name);
    }
    assert!(fake.submissions.try_recv().is_err());
}

#[tokio::test]
async fn an_image_of_low_detail_has_at_most_the_pixels_of_a_square_of_512() {
    let (stage, mut fake, _attachment) = Stage::seeing(|_| {}).await;
    let client = HttpClient::new(stage.http);
    let url = |width, height| {
        let file = base64::engine::general_purpose::STANDARD.encode(plain_png(width, height));
        format!("data:image/png;base64,{file}")
    };
    // Width and height of the file, the detail, and the pixels of the submitted image.
    for (width, height, detail, pixels) in [
        (1280, 640, None, 1280 * 640),
        (1280, 640, Some("auto"), 1280 * 640),
        (1280, 640, Some("high"), 1280 * 640),
        (1280, 640, Some("low"), 704 * 352),
        (96, 64, Some("low"), 96 * 64),
    ] {
        let url = url(width, height);
        let image = json!({"url": url, "detail": detail});
        let chat = json!({"max_tokens": 4, "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": image}]},
        ]});
        let image = json!({"type": "input_image", "image_url": url, "detail": detail});
        let input = json!([{"role": "user", "content": [image]}]);
        let responses = json!({"max_output_tokens": 16, "input": input});
        for (path, body) in [("/v1/chat/completions", chat), ("/v1/responses", responses)] {
            let serving = async {
                let submission = fake.submission().await;
                let images = submission.generation().images.clone();
                let _over = submission.accept().done(&[2]).await;
                images
            };
            let (reply, images) =
                within(async { tokio::join!(client.post(path, &body), serving) }).await;
            assert_eq!(reply.status, http::StatusCode::OK, "{reply:?}");
            let [image] = &images[..] else { panic!("one image") };
            assert_eq!(image.rows * image.columns * 256, pixels, "{path} {detail:?}");
        }
    }
}

/// How many placeholders a prompt has.
async fn placeholders(stage: &Stage, request: Kind) -> usize {
    let counting = CountTokensRequest { request: Some(request), report_ids: true };
    let counted = within(stage.client.clone().count_tokens(counting)).await.expect("served");
    counted.into_inner().token_ids.iter().filter(|id| **id == PAD).count()
}

#[tokio::test]
async fn a_text_that_spells_the_placeholder_is_ordinary_text() {
    let (stage, _fake, _attachment) = Stage::seeing(|_| {}).await;
    let up = || image(file("up.png"));
    let word = || text("see <|image_pad|>");
    let answer = |content| Message { tool_call_id: "c".into(), ..says("tool", content) };
    for (messages, rows) in [
        (vec![says("user", vec![word()])], 0),
        (vec![says("user", vec![text("<|image_"), text("pad|>")])], 0),
        (vec![says("user", vec![text("<|image_"), up(), text("pad|>"), word()])], 6),
        (vec![says("system", vec![word()]), says("user", vec![word(), up()])], 6),
        (vec![says("user", vec![up()]), says("assistant", vec![word()]), answer(vec![word()])], 6),
        (
            vec![
                says("user", vec![word()]),
                says("assistant", vec![word()]),
                says("user", vec![up()]),
            ],
            6,
        ),
    ] {
        let asked = Kind::Chat(chat(messages.clone()));
        assert_eq!(placeholders(&stage, asked).await, rows, "{messages:?}");
    }
    for prompt in ["<|image_pad|>", "a <|vision_start|><|image_pad|><|image_pad|> b"] {
        let asked = Kind::Generate(crate::stage::text(prompt));
        assert_eq!(placeholders(&stage, asked).await, 0, "{prompt}");
    }
    let client = HttpClient::new(stage.http);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "<|image_pad|>"}]});
    let reply = client.post("/v1/messages/count_tokens", &body).await;
    assert_eq!(reply.status, http::StatusCode::OK, "{reply:?}");
}

#[tokio::test]
async fn new_images_replace_the_oldest_ones() {
    let (stage, mut fake, _attachment) = Stage::seeing(|_| {}).await;
    let client = HttpClient::new(stage.http);
    let url = data_url("up.png");
    let data = url.split_once(',').expect("data").1;
    let turns = |image: serde_json::Value| {
        let mut turns = vec![];
        for at in 0..9 {
            turns.push(json!({"role": "user", "content": [image]}));
            if at < 8 {
                turns.push(json!({"role": "assistant", "content": "I see."}));
            }
        }
        turns
    };
    let of_chat = turns(json!({"type": "image_url", "image_url": {"url": url}}));
    let of_responses = turns(json!({"type": "input_image", "image_url": url}));
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let of_messages = turns(json!({"type": "image", "source": source}));
    let mut found = vec![];
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": of_chat, "max_tokens": 4})),
        ("/v1/responses", json!({"input": of_responses, "max_output_tokens": 16})),
        (
            "/v1/responses",
            json!({"input": of_responses, "max_output_tokens": 16, "truncation": "auto"}),
        ),
        ("/v1/messages", json!({"model": "m", "messages": of_messages, "max_tokens": 4})),
    ] {
        let serving = async {
            let submission = fake.submission().await;
            let images = submission.generation().images.len();
            let _over = submission.accept().done(&[2]).await;
            images
        };
        // An answer comes, or the submission does.
        let posting = client.post(path, &body);
        tokio::pin!(posting, serving);
        let images = tokio::select! {
            reply = &mut posting => panic!("{path}: {reply:?}"),
            images = &mut serving => images,
        };
        assert_eq!(within(posting).await.status, http::StatusCode::OK, "{path}");
        found.push(images);
    }
    // A quarter of the bound at a time.
    assert_eq!(found, [7; 4]);
    let says_image = |at: usize| match at % 2 {
        0 => says("user", vec![image(file("up.png"))]),
        _ => says("assistant", vec![text("I see.")]),
    };
    let grpc = |turns: usize| Kind::Chat(chat((0..turns).map(says_image).collect()));
    for (turns, images) in [(15, 8), (17, 7), (19, 8), (21, 7)] {
        assert_eq!(placeholders(&stage, grpc(turns)).await, images * 6, "{turns} turns");
    }
    // New images are never left out.
    let mut messages: Vec<Message> = (0..4).map(says_image).collect();
    messages.push(says("user", (0..8).map(|_| image(file("up.png"))).collect()));
    let all = Kind::Chat(chat(messages.clone()));
    assert_eq!(placeholders(&stage, all).await, 8 * 6);
    messages[4].content.push(image(file("up.png")));
    let status = refused(&stage, chat(messages)).await;
    is(&status, Code::InvalidArgument, Reason::BadImage);
    assert!(status.message().contains("at most 8 images"), "{status:?}");
    assert!(status.message().starts_with("messages[4].content[8]"), "{status:?}");
}

#[tokio::test]
async fn an_earlier_image_that_cannot_be_shown_does_not_end_a_conversation() {
    let (stage, _fake, _attachment) = Stage::seeing(|_| {}).await;
    for bad in [url("https://example.com/a.png"), image(b"RIFF".to_vec()), url("")] {
        let asked = vec![says("user", vec![text("a"), bad, image(file("up.png"))])];
        let status = refused(&stage, chat(asked.clone())).await;
        is(&status, Code::InvalidArgument, Reason::BadImage);
        let answered = vec![says("assistant", vec![text("b")]), says("user", vec![text("c")])];
        let later = Kind::Chat(chat([asked, answered].concat()));
        assert_eq!(placeholders(&stage, later).await, 6);
    }
}
