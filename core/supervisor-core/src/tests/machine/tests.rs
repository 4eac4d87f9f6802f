use super::*;

/// Number of schedules in the suite.
const SUITE: u64 = 2_000;

fn many(seeds: std::ops::RangeInclusive<u64>) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for seed in seeds {
        for (kind, times) in check(seed, size(seed)) {
            *all.entry(kind).or_insert(0) += times;
        }
    }
    all
}

/// A simulation that never gets somewhere proves nothing about it.
fn reached(seen: &BTreeMap<String, u64>, least: u64, kinds: &[&str]) {
    for kind in kinds {
        assert!(
            seen.get(*kind).is_some_and(|times| *times >= least),
            "{kind} is hardly reached: {seen:#?}"
        );
    }
}

#[test]
fn schedules_of_a_machine_keep_the_invariants() {
    let seen = many(1..=SUITE);
    reached(
        &seen,
        20,
        &[
            "admit speculative prior",
            "admit speculative forced",
            "admit plain forced",
            "admit plain concurrency",
            "admit plain modality",
            "drafts with images",
            "admit plain kv_pressure",
            "admit plain drafter_absent",
            "admit plain drafter_loading",
            "admit plain drafter_suspect",
            "admit plain drafter_incompatible",
            "admit speculative drafter_late",
            "refused next",
            "calm",
            "abort TARGET_GONE",
            "gives way",
            "deny CRASH_LOOP",
            "deny DEADLINE_PASSED",
            "deny QUEUE_FULL",
            "passed at its share",
            "passed at its limit",
            "deny QUEUE_WAIT",
            "deny RESTARTING",
            "deny TARGET_LOADING",
            "deny PROMPT_TOO_LONG",
            "kill",
            "overslept",
            "phase ready->suspect",
            "phase suspect->ready",
            "phase ready->ending",
            "phase failed->starting",
            "look",
            "other files are tried",
            "phase ending->backing_off",
            "repermit speculative prior",
            "repermit plain drafter_absent",
            "started",
            "stopped",
            "swapped",
            "permits are lost",
            "permits are faster than requests",
            "a policy is lost",
            "fault silence",
            "fault asleep",
            "exit",
        ],
    );
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn a_hundred_thousand_schedules_of_a_machine_keep_the_invariants() {
    // On all cores: seeds know nothing of each other.
    std::thread::scope(|scope| {
        (0..10).for_each(|tenth| {
            drop(scope.spawn(move || many(1 + tenth * 10_000..=(tenth + 1) * 10_000)))
        })
    });
}

/// A day of one schedule: 86,400 requests, at least 1,000 faults, in at most a minute.
#[test]
fn a_day_keeps_the_invariants() {
    let day = Size { ms: 24 * 3_600_000, request_ms: 1_250, fault_ms: 60_000, order_ms: 600_000 };
    let inputs = draw(&mut Random::new(1), day);
    let count = |fault: bool| inputs.iter().filter(|input| input.is_fault() == fault).count();
    assert!(
        count(false) >= 86_400 && count(true) >= 1_000,
        "{} requests, {} faults",
        count(false),
        count(true)
    );
    #[expect(clippy::disallowed_methods, reason = "how long the machine takes is what is measured")]
    let begun = std::time::Instant::now();
    let seen = check(1, day);
    println!("24 hours in {:.1} s", begun.elapsed().as_secs_f64());
    // Loose: two cores took 8 s in the dev profile.
    assert!(
        begun.elapsed() <= std::time::Duration::from_secs(60),
        "24 hours took {:?}",
        begun.elapsed()
    );
    let sum = |first: &str| {
        seen.iter().filter(|(kind, _)| kind.starts_with(first)).map(|(_, times)| times).sum::<u64>()
    };
    assert!(sum("admit") > 40_000, "{seen:#?}");
}

/// Whether what the simulation asserts can be broken: each planted bug (`fault_injection.rs`) is
/// caught, and soon.
#[test]
fn planted_bugs_are_caught() {
    for (bug, words) in [
        (Bug::StickyFallback, "(I12)"),
        (Bug::LostStatus, "(I4)"),
        (Bug::OldEpoch, "(I7)"),
        (Bug::LostPermit, "(I12)"),
        (Bug::UnfairTurn, "share"),
        (Bug::MissedRefusal, "nothing has changed"),
    ] {
        let caught = (1..=SUITE).find_map(|seed| {
            let inputs = draw(&mut Random::new(seed), size(seed));
            run(seed, &inputs, Some(bug)).err().map(|why| (seed, why))
        });
        let (seed, why) =
            caught.unwrap_or_else(|| panic!("{bug:?} is not caught in {SUITE} schedules"));
        let what = why.lines().next().unwrap_or_default();
        println!("{bug:?}: {what}");
        assert!(seed <= 200, "{bug:?} is caught only by seed {seed}");
        assert!(what.contains(words), "{bug:?} is caught as {what}");
    }
}

/// The command of CONTRIBUTING.md. Cargo would run this executable with the words after `--lib`.
#[test]
fn a_schedule_that_was_written_down_runs_again_by_the_documented_command() {
    let line = "cargo test -p paceline-supervisor-core --lib tests::machine::tests::replay -- --ignored --nocapture";
    let (_, words) = line.split_once(" --lib ").expect("it is there");
    let path = std::env::temp_dir().join(format!("paceline-replay-{}", std::process::id()));
    let replay = |text: &str| {
        std::fs::write(&path, text).expect("written");
        let mut command = std::process::Command::new(std::env::current_exe().expect("known"));
        command.args(words.split(' ').filter(|word| *word != "--"));
        let output = command.env("PACELINE_SIMULATION", &path).output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let inputs = draw(&mut Random::new(1), size(1));
    let lines: String = inputs.iter().map(|input| format!("{input}\n")).collect();
    let (passes, said) = replay(&format!("# one that passes\nseed 1\n{lines}"));
    assert!(passes && said.contains("1 passed"), "{said}");
    let (passes, said) = replay("seed 1\n1.000 nonsense\n");
    assert!(!passes && said.contains("1 failed"), "{said}");
    std::fs::remove_file(&path).expect("written above");
}

#[test]
#[ignore = "by hand: runs PACELINE_SIMULATION, a schedule that was written down"]
fn replay() {
    #[expect(clippy::disallowed_methods, reason = "a test's own argument")]
    let path = std::env::var("PACELINE_SIMULATION")
        .expect("PACELINE_SIMULATION names the file of a schedule");
    let (seed, inputs) = read(&std::fs::read_to_string(&path).expect("it can be read"));
    if let Err(why) = run(seed, &inputs, None) {
        panic!("{why}");
    }
}
