//! A worker's end: bounded, and without leftovers.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::super::{SendRefused, mailbox};
use super::*;

const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(30);

fn taken() -> StopOrder {
    Arc::new(|_| true)
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_an_engine_is_bounded_even_if_it_loads_or_steps() {
    let progress = Arc::new(Progress::default());
    let (_running, mut end) = oneshot::channel();
    let at_most = TEARDOWN_TIMEOUT + TEARDOWN_POLL;
    for phase in [WorkerPhase::Loading, WorkerPhase::Decode, WorkerPhase::Stopping] {
        progress.set_phase(phase);
        let busy = progress.clone();
        let at_work = task::spawn("engine", async move {
            for count in 0.. {
                busy.set_load(count, u64::MAX);
                busy.step_done(0, 1, 1);
                tokio::time::sleep(TEARDOWN_POLL).await;
            }
        });
        let outcome = tokio::time::timeout(
            at_most,
            await_teardown(&mut end, &taken(), &progress, TEARDOWN_TIMEOUT),
        )
        .await;
        assert_eq!(outcome, Ok(None), "{phase:?}");
        at_work.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_teardown_that_makes_progress_is_waited_for() {
    let progress = Arc::new(Progress::default());
    let (ended, mut end) = oneshot::channel();
    let engine = progress.clone();
    task::spawn("engine", async move {
        for left in (0..3).rev() {
            tokio::time::sleep(TEARDOWN_TIMEOUT - TEARDOWN_POLL).await;
            engine.set_phase(WorkerPhase::Stopping);
            engine.set_sequences(left);
        }
        tokio::time::sleep(TEARDOWN_TIMEOUT - TEARDOWN_POLL).await;
        ended.send(Exit::Asked).expect("it is waited for");
    });
    assert_eq!(
        await_teardown(&mut end, &taken(), &progress, TEARDOWN_TIMEOUT).await,
        Some(Exit::Asked)
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_order_is_repeated_until_the_mailbox_takes_it() {
    let (mail, inbox) = mailbox(1).expect("descriptors");
    mail.try_send("work").expect("room");
    let refused = Arc::new(AtomicU32::new(0));
    let stop: StopOrder = {
        let refused = refused.clone();
        Arc::new(move |_| match mail.try_send("stop") {
            Ok(()) => true,
            Err(why) => {
                assert_eq!(why, SendRefused::Full);
                refused.fetch_add(1, SeqCst);
                false
            }
        })
    };
    let (ended, mut end) = oneshot::channel();
    task::spawn("engine", async move {
        tokio::time::sleep(TEARDOWN_TIMEOUT / 2).await;
        let mut read = vec![];
        for _ in 0..10 {
            read.extend(inbox.try_recv());
            tokio::time::sleep(TEARDOWN_POLL).await;
        }
        assert_eq!(read, ["work", "stop"]);
        ended.send(Exit::Asked).expect("it is waited for");
    });
    assert_eq!(
        await_teardown(&mut end, &stop, &Progress::default(), TEARDOWN_TIMEOUT).await,
        Some(Exit::Asked)
    );
    assert!(refused.load(SeqCst) > 1);
}

fn args(epoch: u64) -> Args {
    Args { program: "paceline-target", name: "target".into(), epoch, term: 1, config: None }
}

/// Set in the process that is such a worker.
const WEDGED: &str = "PACELINE_TEST_WEDGED";

#[test]
fn a_worker_whose_engine_never_ends_exits_by_itself_and_removes_its_files() {
    if std::env::var_os(WEDGED).is_some() {
        let args = args(1);
        // As good as never: a bound, for the day it is waited for.
        let engine = || {
            std::thread::sleep(Duration::from_secs(30));
            Exit::Asked
        };
        let parts = |_: &WorkerContext| {
            Ok(WorkerParts {
                services: RoutesBuilder::default(),
                stop: taken(),
                engine: Box::new(engine),
            })
        };
        let exit = run_with(&args, 3 * TEARDOWN_POLL, parts);
        panic!("it returned {exit:?}");
    }
    let temp = tempfile::tempdir().expect("a temporary directory");
    let run = temp.path().join("run");
    let name = "worker::life::tests::a_worker_whose_engine_never_ends_exits_by_itself_and_removes_its_files";
    let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
    again.args([name, "--exact", "--nocapture"]).env(WEDGED, "1").env("PACELINE_CONFIG", "");
    again.env("PACELINE_SUPERVISOR__RUNTIME_DIR", &run).env("PACELINE_SUPERVISOR__LEASE_S", "1");
    let output = again.output().expect("it starts");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(70), "{text}");
    assert!(text.contains("gets no further") && text.contains("phase=Loading"), "{text}");
    assert_eq!(std::fs::read_dir(run).expect("there").count(), 0);
}

/// Set in the process that is such a worker.
const NAMESAKE: &str = "PACELINE_TEST_NAMESAKE";

#[test]
fn a_worker_keeps_the_socket_of_a_living_namesake_that_refuses_connections() {
    if std::env::var_os(NAMESAKE).is_some() {
        let args = args(2);
        let parts = |_: &WorkerContext| {
            let engine = Box::new(|| Exit::Asked);
            Ok(WorkerParts { services: RoutesBuilder::default(), stop: taken(), engine })
        };
        println!("\nexit {:?}", run_with(&args, 3 * TEARDOWN_POLL, parts));
        return;
    }
    let temp = tempfile::tempdir().expect("a temporary directory");
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(temp.path(), private).expect("the test's own");
    let socket = temp.path().join("target.sock");
    // A socket that refuses connections, as on macOS that of a process with a full backlog.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    let mut stuck = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep exists");
    let record = WorkerRecord::of(stuck.id(), 1).expect("it lives");
    std::fs::write(temp.path().join("target.json"), serde_json::to_vec(&record).expect("plain"))
        .expect("writable");
    let start = || {
        let name = "worker::life::tests::a_worker_keeps_the_socket_of_a_living_namesake_that_refuses_connections";
        let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
        again.args([name, "--exact", "--nocapture"]).env(NAMESAKE, "1").env("PACELINE_CONFIG", "");
        again.env("PACELINE_SUPERVISOR__RUNTIME_DIR", temp.path());
        let output = again.output().expect("it starts");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let (beside_it, left) = (start(), socket.exists());
    stuck.kill().expect("ours");
    stuck.wait().expect("ended");
    let after_it = start();
    assert!(
        beside_it.contains("exit Unavailable") && beside_it.contains(&stuck.id().to_string()),
        "{beside_it}"
    );
    assert!(left, "the socket of a living process was removed");
    assert!(
        after_it.contains("exit Asked"),
        "the socket of a dead process is replaced: {after_it}"
    );
}
