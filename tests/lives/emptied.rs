//! A cleaner removes the files of the runtime directory under a running service.

use nix::sys::signal::Signal;
use paceline_tests::procs::signal;
use paceline_tests::{Stack, chat, wait};

/// Settings under which processes may die often.
const MANY_LIVES: &str = "supervisor.restarts = 1000\nsupervisor.lease_s = 30\n";

fn kill_and_ask(stack: &Stack, process: &str) {
    signal(stack.pid(process), Signal::SIGKILL);
    wait("a request to be served", || stack.ask(chat("Tell a story.").exactly(8)).ok());
}

#[test]
fn an_emptied_runtime_directory_is_filled_again_and_every_process_may_die_afterwards() {
    let stack = Stack::drafting(MANY_LIVES);
    let names = || {
        let entries = std::fs::read_dir(stack.run_dir()).into_iter().flatten().flatten();
        let kept = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // Lines are written when there is one to write, and the next gateway that starts makes the
        // lock of starts.
        let later = |name: &String| {
            name.ends_with(".log") || name.ends_with(".jsonl") || name == "gateway.lock"
        };
        let mut kept: Vec<String> = kept.filter(|name| !later(name)).collect();
        kept.sort();
        kept
    };
    let target = stack.pid("target");
    let before = names();
    std::fs::remove_dir_all(stack.run_dir()).expect("removed");
    let missing = || -> Vec<String> {
        let present = names();
        before.iter().filter(|name| !present.contains(name)).cloned().collect()
    };
    wait("all files to be there again", || missing().is_empty().then_some(()));
    let second = stack.another_serve().wait().expect("it ends");
    assert!(!second.success(), "the locks are held again");
    kill_and_ask(&stack, "supervisor");
    stack.wait_linked();
    assert_eq!(stack.pid("target"), target, "the next supervisor has found it");
    for process in ["drafter", "target", "gateway"] {
        kill_and_ask(&stack, process);
    }
    stack.wait_linked();
    stack.stop();
}
