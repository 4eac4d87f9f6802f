//! Processes that are killed, frozen and restarted in a seeded order under clients that go on:
//! every stream that is not a killed gateway's has the tokens of an undisturbed run, and nothing is
//! left afterwards. `make chaos MINUTES=5 SEED=7` runs it for longer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::signal::Signal;
use paceline_process::Clock;
use paceline_proto::v1::grammar::Kind;
use paceline_proto::v1::{Grammar, RouteWish};
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{Dice, same_but_near_ties, some_of_each};
use paceline_tests::{Answer, Stack, chat, continue_text, images, signal, wait};

/// A budget of restarts that is not used up; a frozen worker is found within seconds.
const SETTINGS: &str = "supervisor.restarts = 100000\nsupervisor.lease_s = 30\n\
                        supervisor.hang_s = 3\nlimits.queue_wait_s = 120\n";
const CLIENTS: usize = 8;

/// A number of the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var_os(name).map_or(default, |text| {
        let number = text.to_str().and_then(|text| text.parse().ok());
        number.unwrap_or_else(|| panic!("{name}: expected a number, found {}", text.display()))
    })
}

/// One request of each kind, different for each client.
fn asks(client: usize) -> Vec<Ask> {
    let prompts = some_of_each(CLIENTS);
    let of = |kind: usize| prompts[client * 6 + kind].ask.clone().exactly(200).with_margins();
    let mut stopped = chat(&format!("Tell a long story of {client} birds.")).max_tokens(200);
    stopped.limits().stop = vec!["zzzz".into()];
    let mut held = continue_text(&format!("Words {client}: ")).max_tokens(150);
    if let Ask::Continue(request) = &mut held {
        request.grammar = Some(Grammar { kind: Some(Kind::Regex("([a-z]{3} ){30}".into())) });
    }
    vec![
        of(0),
        of(1).sampled(0.9, 0.9, 11),
        of(2).sampled(0.8, 1.0, 12).penalty(1.2),
        of(3).route(RouteWish::Speculative),
        of(4).with_logprobs(2),
        stopped.with_margins(),
        held.with_margins(),
        images::about(images::noise(96, 64, client as u64), "What is it?")
            .exactly(100)
            .with_margins(),
    ]
}

/// What the clients saw.
#[derive(Debug, Default)]
struct Seen {
    whole: u64,
    resumed: u64,
    /// Streams of a gateway that ended.
    cut: u64,
    near_ties: u32,
    /// The longest pause of each resumed stream, in milliseconds.
    pauses: Vec<f64>,
}

/// Goes on asking until `over`. `gateways` counts the ends of gateways, before and after each.
fn client(
    stack: &Stack,
    asks: &[(Ask, Answer)],
    mut dice: Dice,
    over: &AtomicBool,
    gateways: &AtomicU64,
    seen: &Mutex<Seen>,
) {
    while !over.load(Ordering::Relaxed) {
        let at = dice.roll(asks.len() as u64) as usize;
        let (ask, expected) = &asks[at];
        let before = gateways.load(Ordering::SeqCst);
        let outcome = stack.ask(ask.clone());
        // A gateway that is being ended counts once before and once after.
        let disturbed = before % 2 == 1 || gateways.load(Ordering::SeqCst) != before;
        let mut seen = seen.lock().expect("no panic");
        match outcome {
            Ok(answer) => {
                same_but_near_ties(expected, &answer, &format!("kind {at}"), &mut seen.near_ties);
                assert_eq!(answer.logprobs, expected.logprobs, "kind {at}");
                seen.whole += 1;
                if answer.end.resumed > 0 {
                    seen.resumed += 1;
                    seen.pauses.push(answer.longest_gap_ms());
                }
            }
            Err(status) => {
                assert!(disturbed, "kind {at}: {status:?}");
                seen.cut += 1;
            }
        }
    }
}

/// A fault.
#[derive(Clone, Copy)]
enum Fault {
    /// The process gets this signal.
    Signal(&'static str, Signal),
    /// An operator restarts the process.
    Restart(&'static str),
}

/// The faults and their names. The seed draws among them.
const FAULTS: [(&str, Fault); 9] = [
    ("target killed", Fault::Signal("target", Signal::SIGKILL)),
    ("target frozen", Fault::Signal("target", Signal::SIGSTOP)),
    ("supervisor killed", Fault::Signal("supervisor", Signal::SIGKILL)),
    ("drafter killed", Fault::Signal("drafter", Signal::SIGKILL)),
    ("drafter frozen", Fault::Signal("drafter", Signal::SIGSTOP)),
    ("gateway killed", Fault::Signal("gateway", Signal::SIGKILL)),
    ("target restarted", Fault::Restart("target")),
    ("supervisor restarted", Fault::Restart("supervisor")),
    ("drafter restarted", Fault::Restart("drafter")),
];

/// Carries out a fault. `gateways` is odd while a gateway is killed and replaced.
fn carry_out(stack: &Stack, fault: Fault, gateways: &AtomicU64) {
    match fault {
        Fault::Signal("gateway", with) => {
            gateways.fetch_add(1, Ordering::SeqCst);
            let old = stack.pid("gateway");
            signal(old, with);
            stack.wait_status("another gateway", |status| {
                status["gateway"]["state"] == "ready" && status["gateway"]["pid"] != old
            });
            gateways.fetch_add(1, Ordering::SeqCst);
        }
        // A process that is being started has no pid yet.
        Fault::Signal(process, with) => {
            let pid = stack.status().and_then(|status| status[process]["pid"].as_u64());
            pid.into_iter().for_each(|pid| signal(pid as u32, with));
        }
        // An order that meets a process that is down is refused.
        Fault::Restart(process) => drop(stack.paceline(&["restart", process], "")),
    }
}

/// The value that a share of the sorted values does not exceed.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[test]
#[ignore = "more: half a minute of faults; run by `make test-more` and `make chaos`"]
fn no_stream_is_lost_in_chaos() {
    let (seconds, seed) = (number("CHAOS_SECONDS", 30), number("CHAOS_SEED", 7));
    let stack = images::seeing_and_drafting(SETTINGS);
    let asks: Vec<Vec<(Ask, Answer)>> = (0..CLIENTS)
        .map(|client| {
            let answered = |ask: Ask| (ask.clone(), stack.ask(ask).expect("served"));
            asks(client).into_iter().map(answered).collect()
        })
        .collect();
    let (over, gateways, seen) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::default());
    let mut faults = std::collections::BTreeMap::<&str, u32>::new();
    std::thread::scope(|scope| {
        for (at, asks) in (1..).zip(&asks) {
            let (over, gateways, seen, stack) = (&over, &gateways, &seen, &stack);
            scope.spawn(move || client(stack, asks, Dice(seed * 100 + at), over, gateways, seen));
        }
        let (clock, mut dice) = (Clock::start(), Dice(seed));
        while clock.now().0 < seconds * 1_000 {
            // Streams run for a time that the seed draws.
            std::thread::sleep(std::time::Duration::from_millis(500 + dice.roll(2_500)));
            let (name, fault) = FAULTS[dice.roll(FAULTS.len() as u64) as usize];
            carry_out(&stack, fault, &gateways);
            *faults.entry(name).or_default() += 1;
            stack.wait_status("the service to serve again", |status| {
                ["target", "gateway"].iter().all(|process| status[process]["state"] == "ready")
            });
        }
        over.store(true, Ordering::Relaxed);
    });
    let mut seen: Seen = seen.into_inner().expect("no panic");
    seen.pauses.sort_by(f64::total_cmp);
    println!(
        "seed {seed}, {seconds} s, faults {faults:?}: {} streams whole, {} of them resumed, {} cut with their gateway; \
         pauses {:.0} ms in the middle, {:.0} ms in 99 of 100; {} near-ties",
        seen.whole,
        seen.resumed,
        seen.cut,
        quantile(&seen.pauses, 0.5),
        quantile(&seen.pauses, 0.99),
        seen.near_ties
    );
    assert!(seen.resumed > 0, "no fault met a stream");
    wait("all memory to be given back", || (stack.held_bytes() == 0).then_some(()));
    wait("no image's file to be left", || images::waiting(&stack).is_empty().then_some(()));
    wait("the usual processes", || (stack.processes().len() == 5).then_some(()));
    stack.stop();
}
