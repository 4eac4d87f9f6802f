use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::top::throughput::Throughput;
use crate::top::view::{EventRow, Figures, Gauge, LaneRow, ProcessRow};

fn process(name: &'static str, state: &str, tone: Tone, pid: &str, model: &str) -> ProcessRow {
    ProcessRow {
        name,
        state: state.into(),
        tone,
        pid: pid.into(),
        epoch: "3".into(),
        restarts: "0".into(),
        uptime: "1 h 12 min".into(),
        model: model.into(),
    }
}

fn view() -> View {
    let lane = |ended, last_minute, lane: &str, reason: &str| LaneRow {
        ended,
        last_minute,
        lane: lane.into(),
        reason: reason.into(),
    };
    let event = |time: &str, text: &str| EventRow { time: time.into(), text: text.into() };
    View {
        model: "org/模型-1".into(),
        notice: None,
        figures: Some(Figures {
            processes: vec![
                process("gateway", "ready", Tone::Good, "4711", ""),
                process("supervisor", "ready", Tone::Good, "4712", ""),
                process(
                    "target",
                    "ready",
                    Tone::Good,
                    "4713",
                    "/models/a/very/long/way/to/target (1.2 GiB)",
                ),
                process("drafter", "backing_off", Tone::Bad, "-", "/models/drafter"),
            ],
            reasons: vec!["drafter: it ended by signal 9".into()],
            requests: "3 run (2 may draft, 1 plain), 4 wait".into(),
            lanes: vec![lane(34, 3, "speculative", "benefit"), lane(2, 0, "plain", "concurrency")],
            speculation: vec!["link up".into(), "75 % of 40 drafted accepted".into()],
            acceptance: vec![Some(0.0), None, Some(0.5), Some(1.0)],
            gauges: vec![Gauge {
                name: "KV",
                held: 0.5,
                evictable: 0.25,
                tone: Tone::Good,
                text: " 50 %  1.0 GiB held".into(),
            }],
            throughput_title: "throughput: 5.0 tokens/s".into(),
            throughput: Throughput { interval_s: 2, tokens_per_s: vec![0.0, 2.0, 4.0, 8.0] },
        }),
        events: vec![
            event("08:00:02", "drafter 4 ready -> backing_off: signal 9"),
            event("08:00:01", "service serving"),
        ],
        footer: Footer {
            text: "target ready".into(),
            tone: Tone::Good,
            keys: "q quit",
            ..Footer::default()
        },
    }
}

#[test]
fn a_wide_terminal_shows_every_part() {
    let expected = "\
paceline top  org/模型-1
─ processes ────────────────────────────────────────────────────────────────────────────
PROCESS     STATE         PID     UP         RESTARTS EPOCH MODEL
gateway     ready         4711    1 h 12 min 0        3
supervisor  ready         4712    1 h 12 min 0        3
target      ready         4713    1 h 12 min 0        3     …ong/way/to/target (1.2 GiB)
drafter     backing_off   -       1 h 12 min 0        3     /models/drafter
drafter: it ended by signal 9
─ requests ───────────────────────────────  ─ speculation ──────────────────────────────
3 run (2 may draft, 1 plain), 4 wait        link up
  ENDED  MINUTE  LANE         REASON        75 % of 40 drafted accepted
     34       3  speculative  benefit       last minute ▁ ▅█
      2       0  plain        concurrency
─ memory ───────────────────────────────────────────────────────────────────────────────
KV     █████▒▒▒░░  50 %  1.0 GiB held

─ throughput: 5.0 tokens/s ─────────────────────────────────────────────────────────────
                                                                                       █
                                                                                      ▄█
                                                                                     ▆██
─ events (UTC) ─────────────────────────────────────────────────────────────────────────
08:00:02  drafter 4 ready -> backing_off: signal 9
08:00:01  service serving


target ready
 q quit
";
    let page = page_text(&view(), 88, 27);
    assert_eq!(page, expected, "\n{page}");
}

#[test]
fn a_small_terminal_shows_the_processes_and_a_tiny_one_the_reason() {
    let expected = "\
paceline top  org/模型-1
─ processes ────────────────────────────
PROCESS     STATE         PID
gateway     ready         4711
supervisor  ready         4712
target      ready         4713
drafter     backing_off   -
drafter: it ended by signal 9

target ready
 q quit
";
    let page = page_text(&view(), 40, 11);
    assert_eq!(page, expected, "\n{page}");
    let tiny = page_text(&view(), 30, 4);
    assert_eq!(
        tiny.replace('\n', " ").split_whitespace().collect::<Vec<_>>().join(" "),
        "expected a terminal of 40 columns and 10 rows, found 30 and 4; q quits"
    );
}

#[test]
fn no_size_of_a_terminal_is_too_small_to_draw_on() {
    let mut no_figures = view();
    no_figures.figures = None;
    no_figures.notice =
        Some((Tone::Bad, "no service at /run/supervisor.sock; trying again".into()));
    let mut typed = view();
    typed.footer = Footer {
        text: format!("Which? {}", "/模型".repeat(2_000)),
        is_typed: true,
        ..view().footer
    };
    for view in [view(), no_figures, typed, View::default()] {
        for width in (0..130).step_by(9) {
            for height in (0..50).step_by(2) {
                let mut terminal =
                    Terminal::new(TestBackend::new(width, height)).expect("a terminal");
                let drawn = terminal.draw(|frame| draw(&view, frame.area(), frame.buffer_mut()));
                drawn.expect("a page");
            }
        }
    }
}

#[test]
fn a_long_question_keeps_room_for_the_page_and_typed_text_shows_its_end() {
    let mut long = view();
    long.footer.text = format!("Swap the drafter for {}?", "/model".repeat(500));
    let page = page_text(&long, 60, 24);
    assert!(page.contains("Swap the drafter for") && page.contains('…'), "{page}");
    assert!(page.contains("supervisor  ready") && page.ends_with(" q quit\n"), "{page}");
    long.footer = Footer {
        text: format!("Which? {}end_", "/model".repeat(500)),
        is_typed: true,
        ..long.footer
    };
    let page = page_text(&long, 60, 24);
    assert!(page.contains("end_") && !page.contains("Which?"), "{page}");
}

#[test]
fn without_a_supervisor_the_notice_stands_above_the_events() {
    let mut lost = view();
    lost.figures = None;
    lost.notice = Some((Tone::Bad, "no service at /run/supervisor.sock; trying again".into()));
    let page = page_text(&lost, 60, 12);
    assert!(
        page.contains("\nno service at /run/supervisor.sock; trying again\n─ events (UTC)"),
        "{page}"
    );
}
