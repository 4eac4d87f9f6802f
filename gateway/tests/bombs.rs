//! Hostile images at the program itself: each refused by name within two seconds, together within
//! a bound on memory, and the program serves on.

#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use crate::stage::program::Program;
use crate::stage::seeing::{chat, file, image, says, text};
use crate::stage::supervisor::Fake;
use crate::stage::{is, within};
use paceline_proto::status::{Reason, ReasonStatus as _};
use tonic::{Code, Status};

/// Memory that images may add at their worst.
const MAX_ADDED: u64 = 256 << 20;
/// Time that a refusal may take, on a machine that does something else as well.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_images_cost_little_and_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    paceline_process::runtime_dir::private_dir(&dir.path().join("run")).expect("made");
    let mut fake = Fake::start(&dir.path().join("run/supervisor.sock"), 1);
    crate::stage::seeing::model(&dir.path().join("model"));
    let program = Program::start(dir.path(), &dir.path().join("model"));
    let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
    attachment.service(crate::stage::seeing::ready()).await;
    // A good one first: what serving takes at all is in use.
    serve_one(&program, &mut fake).await;
    let hostile = crate::hostile::all();
    assert!(hostile.len() >= 40, "{}", hostile.len());
    let before = program.memory("VmRSS");
    for one in &hostile {
        let begun = clock();
        let status = ask(&program, one.file.clone()).await.expect_err(one.name);
        let took = begun.elapsed();
        is(&status, Code::InvalidArgument, Reason::BadImage);
        assert!(status.message().contains(one.word), "{}: {}", one.name, status.message());
        assert!(took < REFUSAL_TIMEOUT, "{}: refused after {took:?}", one.name);
    }
    let one_by_one = program.memory("VmHWM").saturating_sub(before);
    // The worst of them all at once.
    let worst = hostile.iter().filter(|one| one.word.starts_with("whole")).cycle().take(16);
    let together =
        futures::future::join_all(worst.map(|one| ask(&program, one.file.clone()))).await;
    for refused in together {
        is(&refused.expect_err("hostile"), Code::InvalidArgument, Reason::BadImage);
    }
    let added = program.memory("VmHWM").saturating_sub(before);
    eprintln!("added one by one {} MiB, together {} MiB", one_by_one >> 20, added >> 20);
    assert!(added <= MAX_ADDED, "{} MiB more than before", added >> 20);
    let left = std::fs::read_dir(dir.path().join("run/images")).expect("there").count();
    assert_eq!(left, 0, "files of images that were refused");
    // A hundred good ones in one request are too many.
    let hundred = chat(vec![says("user", (0..100).map(|_| image(file("dot.png"))).collect())]);
    let status =
        within(program.client.clone().chat(hundred)).await.map(|_| ()).expect_err("too many");
    is(&status, Code::InvalidArgument, Reason::BadImage);
    assert!(status.message().contains("at most 8 images"), "{}", status.message());
}

/// Sends a good image until the gateway knows that there is a model, and refuses it upstream.
async fn serve_one(program: &Program, fake: &mut Fake) {
    loop {
        let asked = ask(program, file("up.png"));
        let answered = async {
            tokio::select! {
                submission = fake.submission() => submission.refuse(Reason::CrashLoop.status("not yet")),
                () = std::future::pending() => {}
            }
        };
        // Until the supervisor has reported a model, requests are refused.
        tokio::select! {
            status = asked => assert_eq!(status.expect_err("refused").code(), Code::Unavailable),
            () = async { answered.await; std::future::pending().await } => {}
        }
        if within(program.client.clone().get_model(paceline_proto::v1::GetModelRequest::default()))
            .await
            .is_ok()
        {
            break;
        }
    }
}

/// Sends an image.
async fn ask(program: &Program, file: Vec<u8>) -> Result<(), Status> {
    let mut client = program.client.clone();
    let request = chat(vec![says("user", vec![image(file), text("?")])]);
    within(client.chat(request)).await.map(|_| ())
}

#[expect(clippy::disallowed_methods, reason = "how long it took is what is tested")]
fn clock() -> Instant {
    Instant::now()
}
